//! One field of a record: C type, offset and size, and how the filter language treats it.

/// A field of an event's record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Field {
    /// Name, without an array's brackets.
    pub name: String,
    /// C type as the format file shows it, with the array's brackets after the type (`char[16]`, `__data_loc char[]`,
    /// `const char *`).
    pub ty: String,
    /// Offset in bytes from the payload's start, common fields included.
    pub offset: usize,
    /// Size in bytes; 4 for `__data_loc` and `__rel_loc`, 0 for a trailing flexible array.
    pub size: usize,
    /// Whether the format file has `signed:1`.
    pub signed: bool,
    /// Number of elements if the type is an array with a length in its brackets.
    pub array: Option<usize>,
    /// How the filter language treats the field.
    pub class: FieldClass,
}

/// How the kernel's filter treats a field: `filter_assign_type()` in kernel/trace/trace_events_filter.c,
/// and the generic fields that no format file lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FieldClass {
    /// Compared as a number of the field's size and sign.
    Number,
    /// `char[N]` inside the record.
    StaticString,
    /// `__data_loc char[]`: the word is length << 16 | offset from the record's start.
    DynString,
    /// `__rel_loc char[]`: the offset counts from the end of the field itself.
    RelString,
    /// `char *` or `const char *`: a pointer to a string elsewhere.
    PtrString,
    /// `__data_loc cpumask_t`. The kernel treats a mask with `__rel_loc` as a number, the word itself.
    CpuMask,
    /// The generic field `common_cpu` / `CPU` / `cpu`: the CPU of the hit.
    Cpu,
    /// The generic field `COMM` / `comm`: the name of the current task.
    Comm,
    /// A stack of addresses (`common_stacktrace`, `STACK`).
    Stacktrace,
}

impl FieldClass {
    /// The class of a field with this type text, with brackets after the type.
    pub fn of(ty: &str) -> Self {
        let text = ty.contains("char");
        let mask = ty.contains("cpumask_t");
        if ty.contains("__data_loc") {
            if text {
                return Self::DynString;
            }
            if mask {
                return Self::CpuMask;
            }
        }
        if ty.contains("__rel_loc") && text {
            return Self::RelString;
        }
        if text && ty.contains('[') {
            return Self::StaticString;
        }
        if ty == "char *" || ty == "const char *" { Self::PtrString } else { Self::Number }
    }

    /// Whether the filter compares the field as text.
    pub fn is_string(self) -> bool {
        matches!(self, Self::StaticString | Self::DynString | Self::RelString | Self::PtrString | Self::Comm)
    }
}

impl Field {
    /// Whether the field is a `__data_loc` word.
    pub fn is_data_loc(&self) -> bool {
        self.ty.starts_with("__data_loc")
    }

    /// Whether the field is a `__rel_loc` word.
    pub fn is_rel_loc(&self) -> bool {
        self.ty.starts_with("__rel_loc")
    }

    /// Offset of the first byte after the field.
    pub fn end(&self) -> usize {
        self.offset + self.size
    }
}
