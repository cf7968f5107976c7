//! Renders one event's records as text.
//!
//! Tracefs prints most events by their print fmt, syscall events by their own functions, and any event field by field
//! with `options/fields`. If a print fmt cannot be rendered, the event is printed field by field, and
//! [`Printer::reason`] returns the reason.

use super::env::{KernelFacts, RenderEnv};
use super::event_text::probe::{ProbeHead, ProbeText, ProbeValue};
use super::event_text::syscall::CallText;
use super::fields;
use super::fmt::{self, Builder, Flat, Program};
use super::synthetic::{self, SynthValue};
use super::text_buffer::TextBuffer;
use super::value::{self, FieldValue};
use crate::event::Format;
use crate::kernel::Change;

/// Renders the records of one event.
#[derive(Clone, Debug)]
pub struct Printer {
    format: Format,
    body: Body,
    reason: Option<String>,
    /// The start of the event's line: its name, a colon and a space. A system call's text begins with its name.
    head: Vec<u8>,
    version: (u32, u32),
}

#[derive(Clone, Debug)]
enum Body {
    /// A print fmt, or the form of system calls. `typed` is used with `options/verbose`.
    Text {
        program: Box<Program>,
        flat: Flat,
        typed: Option<Flat>,
    },
    Probe(ProbeText),
    Call(Box<CallText>),
    Synthetic(Vec<SynthValue>),
    Fields,
}

impl Printer {
    /// Prepares an event. This never fails: an event that cannot be rendered is printed field by field.
    pub fn compile(format: &Format, facts: &dyn KernelFacts) -> Self {
        let version = facts.version();
        if let Some(body) = syscall(format, version) {
            return Self { head: Vec::new(), ..Self::of(format, body, version) };
        }
        let program = fmt::parse(&format.print_fmt)
            .map_err(|error| error.to_string())
            .and_then(|parsed| fmt::lower(&parsed, format, facts));
        match program {
            Ok(program) => {
                let flat = Flat::of(&head(format), &program);
                let body = Body::Text { program: Box::new(program), flat, typed: None };
                Self::of(format, body, version)
            }
            Err(reason) => Self { reason: Some(reason), ..Self::of(format, Body::Fields, version) },
        }
    }

    /// Prepares an event that is always printed field by field, in the form of this kernel version.
    pub fn fields_only(format: &Format, version: (u32, u32)) -> Self {
        Self::of(format, Body::Fields, version)
    }

    /// Prepares a dynamic event.
    pub fn probe(format: &Format, head: ProbeHead, values: Vec<ProbeValue>) -> Self {
        Self::of(format, Body::Probe(ProbeText { head, values }), ().version())
    }

    /// Prepares a synthetic event.
    pub fn synthetic(format: &Format, values: Vec<SynthValue>) -> Self {
        Self::of(format, Body::Synthetic(values), ().version())
    }

    fn of(format: &Format, body: Body, version: (u32, u32)) -> Self {
        Self { head: head(format), body, reason: None, version, format: format.clone() }
    }

    /// The event's format.
    pub fn format(&self) -> &Format {
        &self.format
    }

    /// The value of a field in a record; `None` if the event has no such field or the record ends before it.
    pub fn value<'a>(&self, name: &str, record: &'a [u8]) -> Option<FieldValue<'a>> {
        value::of(self.format.fields.iter().find(|field| field.name == name)?, record)
    }

    /// The fields of a record with their names, without the common ones.
    pub fn values<'a>(&'a self, record: &'a [u8]) -> impl Iterator<Item = (&'a str, FieldValue<'a>)> {
        let fields = self.format.fields.iter();
        fields.filter_map(move |field| Some((field.name.as_str(), value::of(field, record)?)))
    }

    /// Why the event is printed field by field; `None` if it is rendered.
    pub fn reason(&self) -> Option<&str> {
        self.reason.as_deref()
    }

    /// Writes the text of a record after the event's name. A syscall's text includes its name.
    pub fn text(&self, record: &[u8], env: &dyn RenderEnv, out: &mut Vec<u8>) {
        let start = out.len();
        match &self.body {
            Body::Text { program, flat, .. } => {
                let mut buffer = TextBuffer::after(std::mem::take(out));
                let is_complete = flat.run(program, record, env, &mut buffer);
                *out = buffer.into_text();
                if is_complete {
                    out.drain(start..start + self.head.len());
                } else {
                    out.truncate(start);
                    self.fields(record, env, out);
                    out.remove(start);
                }
            }
            Body::Probe(probe) => probe.write(record, env, out),
            Body::Call(call) => {
                let mut buffer = TextBuffer::after(std::mem::take(out));
                call.write(record, false, &mut buffer);
                *out = buffer.into_text();
            }
            Body::Synthetic(values) => synthetic::write(values, record, env, false, out),
            Body::Fields => {
                self.fields(record, env, out);
                if out.len() > start {
                    out.remove(start);
                }
            }
        }
    }

    /// Writes the part of a trace line after the timestamp, including the event's name, without a newline.
    pub fn event(&self, record: &[u8], env: &dyn RenderEnv, verbose: bool, out: &mut Vec<u8>) {
        let mut buffer = TextBuffer::after(std::mem::take(out));
        self.write_event(record, env, verbose, &mut buffer);
        *out = buffer.into_text();
    }

    /// As [`Printer::event`], to a buffer.
    #[inline]
    pub(super) fn write_event(
        &self,
        record: &[u8],
        env: &dyn RenderEnv,
        verbose: bool,
        out: &mut TextBuffer,
    ) {
        match &self.body {
            Body::Text { program, flat, typed } => {
                let flat = typed.as_ref().filter(|_| verbose).unwrap_or(flat);
                let start = out.length();
                if !flat.run(program, record, env, out) {
                    out.truncate(start);
                    out.with(|out| self.event_fields(record, env, out));
                }
            }
            Body::Probe(probe) => {
                out.bytes(&self.head);
                out.with(|out| probe.write(record, env, out));
            }
            Body::Call(call) => call.write(record, verbose, out),
            Body::Synthetic(values) => {
                out.bytes(&self.head);
                out.with(|out| synthetic::write(values, record, env, verbose, out));
            }
            Body::Fields => out.with(|out| self.event_fields(record, env, out)),
        }
    }

    /// As [`Printer::event`] with `options/fields` on.
    pub fn event_fields(&self, record: &[u8], env: &dyn RenderEnv, out: &mut Vec<u8>) {
        out.extend_from_slice(self.format.name.as_bytes());
        out.push(b':');
        if self.format.fields.is_empty() {
            out.extend_from_slice(b"No fields found");
        } else {
            self.fields(record, env, out);
        }
    }

    fn fields(&self, record: &[u8], env: &dyn RenderEnv, out: &mut Vec<u8>) {
        for field in &self.format.fields {
            fields::field(out, field, record, env, self.version);
        }
    }
}

/// The start of an event's line.
fn head(format: &Format) -> Vec<u8> {
    format!("{}: ", format.name).into_bytes()
}

/// How a syscall event is printed: `sys_NAME(arg: value, ...)` or `sys_NAME -> value` (`print_syscall_enter()` and
/// `..._exit()`, kernel/trace/trace_syscalls.c).
fn syscall(format: &Format, version: (u32, u32)) -> Option<Body> {
    if format.system != "syscalls" {
        return None;
    }
    if let Some(call) = CallText::of(format) {
        return Some(Body::Call(Box::new(call)));
    }
    let (_, arguments) = format.fields.split_first()?;
    // A system call's text has no pieces for the evaluator.
    let program = Box::default();
    if let Some(name) = format.name.strip_prefix("sys_exit_") {
        let mut text = Builder::default();
        text.literal(format!("sys_{name} -> 0x").as_bytes());
        text.register(arguments.first()?.offset, u64::MAX);
        return Some(Body::Text { program, flat: text.finish(), typed: None });
    }
    let name = format.name.strip_prefix("sys_enter_")?;
    // Arguments above this value are printed with a prefix, since 6.18.
    let prefix_above = if Change::PrefixesInCalls.is_in(version) { 9 } else { u64::MAX };
    let enter = |is_typed: bool| {
        let mut text = Builder::default();
        text.literal(format!("sys_{name}(").as_bytes());
        for (i, field) in arguments.iter().filter(|field| field.size == 8).enumerate() {
            let comma = if i > 0 { ", " } else { "" };
            let ty = if is_typed { format!("{} ", field.ty) } else { String::new() };
            text.literal(format!("{comma}{ty}{}: ", field.name).as_bytes());
            text.register(field.offset, prefix_above);
        }
        text.literal(b")");
        text.finish()
    };
    Some(Body::Text { program, flat: enter(false), typed: Some(enter(true)) })
}

#[cfg(test)]
mod tests {
    use super::super::env::Pointers;
    use super::*;

    fn format(fields: &str, print_fmt: &str) -> Format {
        let text = format!("name: ev\nID: 1\nformat:\n{COMMON}\n{fields}\nprint fmt: {print_fmt}\n");
        Format::parse("test", &text).unwrap()
    }

    const COMMON: &str = "\tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;\n\
        \tfield:unsigned char common_flags;\toffset:2;\tsize:1;\tsigned:0;\n\
        \tfield:unsigned char common_preempt_count;\toffset:3;\tsize:1;\tsigned:0;\n\
        \tfield:int common_pid;\toffset:4;\tsize:4;\tsigned:1;\n";

    fn show(fields: &str, print_fmt: &str, record: &[u8]) -> String {
        let printer = Printer::compile(&format(fields, print_fmt), &());
        let mut out = Vec::new();
        printer.event(record, &(), false, &mut out);
        String::from_utf8(out).unwrap() + &printer.reason().map(|r| format!(" [{r}]")).unwrap_or_default()
    }

    const FIELDS: &str = "\tfield:u8 small;\toffset:8;\tsize:1;\tsigned:0;\n\
        \tfield:int number;\toffset:12;\tsize:4;\tsigned:1;\n\
        \tfield:unsigned long long big;\toffset:16;\tsize:8;\tsigned:0;\n\
        \tfield:__data_loc char[] name;\toffset:24;\tsize:4;\tsigned:0;\n\
        \tfield:__u8 addr[4];\toffset:28;\tsize:4;\tsigned:0;\n\
        \tfield:__rel_loc u32[] list;\toffset:32;\tsize:4;\tsigned:0;\n\
        \tfield:char comm[4];\toffset:36;\tsize:4;\tsigned:0;\n";

    fn record() -> Vec<u8> {
        let mut record = vec![0; 8];
        record.extend([0x41, 0, 0, 0]);
        record.extend((-2i32).to_ne_bytes());
        record.extend(0xffff_ffff_0000_0001u64.to_ne_bytes());
        record.extend(((6u32 << 16) + 40).to_ne_bytes());
        record.extend([10, 0, 0, 7]);
        record.extend(((8u32 << 16) + 12).to_ne_bytes());
        record.extend(b"ab\0c");
        record.extend(b"hello\0\0\0");
        record.extend(7u32.to_ne_bytes());
        record.extend(8u32.to_ne_bytes());
        record
    }

    #[test]
    fn expressions_over_a_record() {
        let record = record();
        for (print_fmt, expected) in [
            (r#""%d %u %x", REC->number, REC->number, REC->number"#, "-2 4294967294 fffffffe"),
            (
                r#""%lx %llx", (long)REC->number, (unsigned long)(unsigned int)REC->number"#,
                "fffffffffffffffe fffffffe",
            ),
            (r#""%d %llu", (int)REC->big, REC->big >> 32"#, "1 4294967295"),
            (
                r#""%s|%-8s|%.2s|%8.3s|", __get_str(name), __get_str(name), __get_str(name), __get_str(name)"#,
                "hello|hello   |he|     hel|",
            ),
            (r#""%.*s", 3, __get_str(name)"#, "hel"),
            (r#""%s %c", REC->comm, REC->small"#, "ab A"),
            (r#""%pI4 %*phC", REC->addr, 4, REC->addr"#, "10.0.0.7 0a:00:00:07"),
            (r#""%d", REC->addr[3] + 1"#, "8"),
            (r#""%s", REC->number < 0 ? "neg" : "pos""#, "neg"),
            (r#""%s", REC->number < 0U ? "neg" : "pos""#, "pos"),
            (r#""%s", __get_str(name)[0] ? "some" : "none""#, "some"),
            (r#""%s", __print_flags(REC->small, "|", { 1, "A" }, { 0x40, "B" })"#, "A|B"),
            (r#""%s", __print_flags(REC->number, "|", { 2, "A" })"#, "A|0xfffffffffffffffc"),
            (r#""%6s|", __print_symbolic(REC->small, { 'A', "a" })"#, "     a|"),
            (r#""%s", __print_symbolic(REC->number, { 1, "a" })"#, "0xfffffffffffffffe"),
            (
                r#""%s", __print_array(__get_rel_dynamic_array(list), __get_rel_dynamic_array_len(list) / 4, 4)"#,
                "{0x7,0x8}",
            ),
            (r#""%s", __print_hex(REC->addr, 4)"#, "0a 00 00 07"),
            (r#""%s", __print_hex_str(REC->addr, 4)"#, "0a000007"),
            (
                r#""%llu.%09u", __print_ns_to_secs(5000000007), __print_ns_without_secs(5000000007)"#,
                "5.000000007",
            ),
            (r#""%d", ({ int x = (REC->number); int y = (128); ((x) < (y) ? (x) : (y)); })"#, "-2"),
            (r#""%lu", sizeof(REC->addr) + sizeof(u64)"#, "12"),
            (
                r#""%s", ({ const char *saved = trace_seq_buffer_ptr(p); static const char *n[] = { "x", "y" }; trace_seq_printf(p, "<%d%s%c", REC->number, n[1], 0); saved; })"#,
                "<-2y",
            ),
            (r#""%p %p", (void *)0, REC->big"#, "0000000000000000 (____ptrval____)"),
            (r#""%p", (((struct page *)vmemmap_base) + (REC->small))"#, "(____ptrval____)"),
            (r#""%p", ((struct page *)-4096 - (memstart_addr >> 12)) + (REC->small)"#, "(____ptrval____)"),
            (r#""%p", REC->small ? vmemmap_base + 1 : 0"#, "(____ptrval____)"),
            (r#""%p", !REC->small ? vmemmap_base + 1 : 0"#, "0000000000000000"),
            (r#""%d%%", 1 ? REC->small : unknown()"#, "65%"),
            (r#""%u", (u8)(REC->big - 2)"#, "255"),
            (r#""%d %s", REC->number ?: 5, (REC->small & 2) ?: __get_str(name)"#, "-2 hello"),
            (r#""%s", REC->small == 'A' && !(REC->number & 1) ? "y" : "n""#, "y"),
            (r#""%d%s", REC->ent.pid, (REC->ent.flags & 0x18) ? "(in-irq)" : "-""#, "0-"),
            (
                r#""%s", __trace_print_untrusted_str(p, __get_str(name), __get_dynamic_array_len(name) - 1)"#,
                "hello",
            ),
            (r#""%s", __trace_print_untrusted_str(p, REC->addr, 4)"#, "\\n\\000\\000\\a"),
            (r#""%s", __trace_print_untrusted_str(p, " a=b'c", 6)"#, "\\040a\\075b\\047c"),
            (r#""%sqid=%d", nvme_trace_disk_name(p, REC->comm), 1"#, "disk=ab, qid=1"),
            (r#""%sqid=%d", nvme_trace_disk_name(p, ""), 1"#, "qid=1"),
            (
                r#""%s", ({ static const struct trace_print_flags __n[] = { { (1ULL << 0), "a" }, { (1ULL << 1), "b" }, { (1ULL << 2), "c" } }; __trace_landlock_print_layers( p, __get_dynamic_array(list), __get_dynamic_array_len(list) / sizeof(u32), __n, (sizeof(__n) / sizeof((__n)[0]) + ((int)sizeof(struct {_Static_assert(!(!(!__builtin_types_compatible_p(typeof((__n)), typeof(&(__n)[0])))), "must be array");})))); })"#,
                "{a|b|c,}",
            ),
        ] {
            assert_eq!(show(FIELDS, print_fmt, &record), format!("ev: {expected}"), "{print_fmt}");
        }
    }

    #[test]
    fn an_event_that_cannot_be_rendered_is_dumped_with_a_reason() {
        let record = record();
        let dump = "ev: small='A'(65) number=0xfffffffe (-2) big=0xffffffff00000001 (-4294967295) name=hello \
            addr=0x700000a (117440522) list=07,00,00,00,08,00,00,00 comm=ab";
        for (print_fmt, reason) in [
            (r#""%d", helper(REC->small)"#, "calls helper(), which runs only in the kernel"),
            (r#""%d", REC->nothing"#, "the record has no field nothing"),
            (r#""%d", SOME_ENUM"#, "the value of SOME_ENUM is not known"),
            (r#""%d", jiffies_base"#, "the value of the kernel's jiffies_base is not known"),
            (r#""%d""#, "the format string has more conversions than arguments"),
            (r#""%d" + "#, "`,` expected at byte 5"),
        ] {
            assert_eq!(show(FIELDS, print_fmt, &record), format!("{dump} [{reason}]"), "{print_fmt}");
        }
    }

    #[test]
    fn a_short_record_is_dumped() {
        assert_eq!(
            show(FIELDS, r#""%d", REC->number"#, &record()[..14]),
            "ev: small='A'(65) number=<OVERFLOW> big=<OVERFLOW> name=<OVERFLOW> addr=<OVERFLOW> \
             list=<OVERFLOW> comm=<OVERFLOW>"
        );
    }

    struct Old;

    impl KernelFacts for Old {
        fn version(&self) -> (u32, u32) {
            (6, 12)
        }
    }

    #[test]
    fn syscalls_have_their_own_form() {
        let text =
            |name: &str, fields: &str| format!("name: {name}\nID: 1\nformat:\n{fields}\nprint fmt: \"\"\n");
        let nr = "\tfield:int __syscall_nr;\toffset:8;\tsize:4;\tsigned:1;\n";
        let enter = text(
            "sys_enter_close",
            &format!("{nr}\tfield:unsigned int fd;\toffset:16;\tsize:8;\tsigned:0;\n"),
        );
        let exit =
            text("sys_exit_close", &format!("{nr}\tfield:long ret;\toffset:16;\tsize:8;\tsigned:1;\n"));
        let show = |text: &str, facts: &dyn KernelFacts, value: u64, verbose: bool| {
            let mut record = vec![0; 16];
            record.extend(value.to_ne_bytes());
            let mut out = Vec::new();
            let printer = Printer::compile(&Format::parse("syscalls", text).unwrap(), facts);
            printer.event(&record, &(), verbose, &mut out);
            String::from_utf8(out).unwrap()
        };
        assert_eq!(show(&enter, &(), 9, false), "sys_close(fd: 9)");
        assert_eq!(show(&enter, &(), 10, true), "sys_close(unsigned int fd: 0xa)");
        assert_eq!(show(&enter, &Old, 10, false), "sys_close(fd: a)");
        assert_eq!(show(&exit, &(), u64::MAX, false), "sys_close -> 0xffffffffffffffff");
    }

    struct Raw;

    impl RenderEnv for Raw {
        fn pointers(&self) -> Pointers {
            Pointers::Raw
        }
    }

    struct Lists;

    impl RenderEnv for Lists {
        fn lists_bitmasks(&self) -> bool {
            true
        }
    }

    #[test]
    fn bitmasks_are_lists_on_request() {
        let fields = "\tfield:__data_loc cpumask_t cpus;\toffset:8;\tsize:4;\tsigned:0;\n";
        let printer = Printer::compile(&format(fields, r#""%s", __get_cpumask(cpus)"#), &());
        let mut record = vec![0; 8];
        record.extend(((8_u32 << 16) + 12).to_ne_bytes());
        record.extend(0x1_0000_00f5_u64.to_ne_bytes());
        let shown = |env: &dyn RenderEnv| {
            let mut out = Vec::new();
            printer.text(&record, env, &mut out);
            String::from_utf8(out).unwrap()
        };
        assert_eq!([shown(&()), shown(&Lists)], ["00000001,000000f5", "0,2,4-7,32"]);
    }

    #[test]
    fn raw_pointers_on_request() {
        let printer = Printer::compile(&format(FIELDS, r#""%p %s", REC->big, REC->small ? "x" : "y""#), &());
        let mut out = Vec::new();
        printer.text(&record(), &Raw, &mut out);
        assert_eq!(String::from_utf8(out).unwrap(), "ffffffff00000001 x");
    }
}
