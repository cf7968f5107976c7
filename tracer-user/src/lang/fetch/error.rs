//! Errors of a probe definition, with the wording of the kernel's probe parser (`ERRORS`,
//! `kernel/trace/trace_probe.h`), and their place.

use rustix::io::Errno;

use super::super::Span;
use super::super::error_kinds::error_kinds;

error_kinds! {
    FileNotFound => "Failed to find the given file",
    NoRegularFile => "Not a regular file",
    BadReference => "Invalid reference counter offset",
    ReferenceOpen => "Reference counter brace is not closed",
    BadReferenceSuffix => "Reference counter has wrong suffix",
    BadFileProbeOffset => "Invalid uprobe offset",
    MaxactiveType => "Maxactive is only for function exit",
    MaxactiveKprobe => "Maxactive is not for kprobe",
    BadMaxactive => "Invalid maxactive number",
    MaxactiveTooBig => "Maxactive is too big",
    BadProbeAddress => "Invalid probed address or symbol",
    NotUnique => "The symbol is not unique",
    BadReturnProbe => "Retprobe address must be an function entry",
    NoTracepoint => "Tracepoint is not found",
    BadTracepointName => "Invalid character in tracepoint name",
    BadAddressSuffix => "Invalid probed address suffix",
    NoGroupName => "Group name is not specified",
    GroupTooLong => "Group name is too long",
    BadGroupName => "Group name must follow the same rules as C identifiers",
    NoEventName => "Event name is not specified",
    EventTooLong => "Event name is too long",
    BadEventName => "Event name must follow the same rules as C identifiers",
    EventExists => "Given group/event name is already used by another event",
    RetvalOnProbe => "$retval is not available on probe",
    NoRetval => "This function returns 'void' type",
    BadStackNumber => "Invalid stack number",
    BadArgNumber => "Invalid argument number",
    BadVariable => "Invalid $-variable specified",
    BadRegister => "Invalid register name",
    BadMemoryAddress => "Invalid memory address",
    BadImmediate => "Invalid immediate value",
    TextOpen => "String is not closed with '\"'",
    FileOnKprobe => "File offset is not available with kprobe",
    BadFileOffset => "Invalid file offset value",
    SymbolOnUprobe => "Symbol is not available with uprobe",
    TooManyOps => "Dereference is too much nested",
    DerefNeedsBrace => "Dereference needs a brace",
    BadDerefOffset => "Invalid dereference offset",
    DerefOpen => "Dereference brace is not closed",
    CommDeref => "$comm can not be dereferenced",
    BadFetchArg => "Invalid fetch argument",
    ArrayOpen => "Array is not closed",
    BadArraySuffix => "Array has wrong suffix",
    BadArraySize => "Invalid array size",
    ArrayTooBig => "Array number is too big",
    BadType => "Unknown type is specified",
    BadString => "String accepts only memory argument",
    BadSymbolString => "Symbol String doesn't accept data/userdata",
    BadBitfield => "Invalid bitfield",
    ArgNameTooLong => "Argument name is too long",
    NoArgName => "Argument name is not specified",
    BadArgName => "Argument name must follow the same rules as C identifiers",
    UsedArgName => "This argument name is already used",
    ArgTooLong => "Argument expression is too long",
    NoArgBody => "No argument expression",
    InsideInstruction => "Probe point is not an instruction boundary",
    RegisterFailed => "Failed to register probe event",
    DifferentProbeType => "Probe type is different from existing probe",
    DifferentArgType => "Argument type or name is different from existing probe",
    SameProbe => "There is already the exact same probe event",
    NoEventInfo => "This requires both group and event name to attach",
    BadAttachEvent => "Attached event does not exist",
    NoAttachField => "Attached event does not have this field",
    NoEventFilter => "No filter rule after 'if'",
    TooManyArguments => "Too many arguments are specified",
    NoTypes => "BTF is not available or not supported",
    NoVariable => "This variable is not found at this probe point",
    NoTypesHere => "No BTF entry for this probe point",
    ArgsNotAtEntry => "$arg* can be used only on function entry or exit",
    ArgsTwice => "$arg* can be used only once in the parameters",
    ArgsTooLong => "$arg* failed because the argument list is too long",
    NoPointer => "This is not a pointer to union/structure.",
    DotOnArgument => "Non pointer structure/union argument is not supported.",
    BadHyphen => "Failed to parse single hyphen. Forgot '>'?",
    NoField => "This field is not found.",
    BadTypeId => "Failed to get BTF type info.",
    NotForString => "This type does not fit for string.",
    NeedsStringType => "$comm and immediate-string only accepts string type",
    EventTooBig => "Event too big (too many fields?)",
    FileOnKernelProbe => "File offset is not available for kernel probes",
    ThisCpuOutside => "Per-cpu variable access is only for kernel probes",
    NoEventField => "This event field is not found.",
    TooMuchNested => "Too many nested typecasts/dereferences",
    CastNeedsField => "Typecast requires a field access",
    CastSymbolOffset => "@SYM+/-OFFSET with typecast needs parentheses",
    CastArrow => "Typecast field option does not support -> operator",
    CastNotAligned => "Typecast field option is not byte-aligned",
    NoEventType => "No matching dynamic event type",
    // The kernel has no text for these.
    NoCommand => "Not a definition: it starts with f, t, p, r, e or -, and names its target",
    ArgumentsUnlogged => "More than 128 arguments",
    NoFunction => "The probed function has no name to find its types by",
    DentryTooLong => "The arguments with %pd and %pD are too long",
    NoSymbol => "No such symbol",
    TypelessText => "$comm and texts are of type string and no arrays",
    TracepointTaken => "This kernel takes one probe on a tracepoint, and there is one",
    ReferenceDiffers => "Another probe of this instruction has another reference counter",
    BadFilter => "The filter does not fit the event",
    NoSuchEvent => "No such dynamic event",
    BadDeletion => "A deletion is -:[GROUP/]EVENT or -:GROUP/",
    Busy => "The event is in use",
    LineTooLong => "The line is too long",
}

impl ErrorKind {
    /// The kernel's text; `None` if the kernel fails without an entry in `error_log`.
    pub fn wording(self) -> Option<&'static str> {
        match self {
            Self::NoCommand
            | Self::ArgumentsUnlogged
            | Self::NoFunction
            | Self::DentryTooLong
            | Self::NoSymbol
            | Self::TypelessText
            | Self::TracepointTaken
            | Self::ReferenceDiffers
            | Self::BadFilter
            | Self::NoSuchEvent
            | Self::BadDeletion
            | Self::Busy
            | Self::LineTooLong => None,
            _ => Some(self.text()),
        }
    }
}

/// An error in one word of a definition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Kind of error.
    pub kind: ErrorKind,
    /// The kernel's position: bytes from the start of the word. It omits a `u` or a second sign before the offset of a
    /// dereference.
    pub offset: usize,
    /// The invalid text in the word.
    pub span: Span,
    /// Whether the kernel's position is undefined. After the last field of a BTF argument, the kernel's parser computes
    /// with a null pointer, so the caret is at an arbitrary column.
    pub astray: bool,
}

impl Fault {
    /// A fault at a defined position.
    pub fn new(kind: ErrorKind, offset: usize, span: Span) -> Self {
        Self { kind, offset, span, astray: false }
    }
}

/// Why a word is invalid: the errno of the write, and the faults. The kernel can log more than one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stop {
    /// Errno of the write.
    pub errno: Errno,
    /// The faults, in the order in which the kernel logs them.
    pub faults: Vec<Fault>,
}

impl Stop {
    /// A stop with one fault.
    pub fn new(errno: Errno, fault: Fault) -> Self {
        Self { errno, faults: vec![fault] }
    }

    /// A stop with one fault, whose kernel position is the start of the invalid text.
    pub fn at(errno: Errno, kind: ErrorKind, span: Span) -> Self {
        Self::new(errno, Fault::new(kind, span.start, span))
    }

    /// [`Self::at`] with EINVAL.
    pub fn invalid(kind: ErrorKind, span: Span) -> Self {
        Self::at(Errno::INVAL, kind, span)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_wording_is_unique() {
        let words: Vec<_> = ErrorKind::ALL.iter().filter_map(|kind| kind.wording()).collect();
        assert_eq!(words.iter().collect::<BTreeSet<_>>().len(), words.len());
        assert_eq!(ErrorKind::Busy.wording(), None);
        // A new kind is counted here, so that nobody forgets whether the kernel logs it.
        assert_eq!((words.len(), ErrorKind::ALL.len()), (88, 101));
    }
}
