//! Types of fetch arguments: `probe_fetch_types`, kernel/trace/trace_probe.c.

/// A type for the value of a fetch argument.
#[derive(Debug, PartialEq, Eq)]
pub struct FetchType {
    /// Name, as written after the colon.
    pub name: &'static str,
    /// Bytes in the record; 4 for texts, whose word has offset and length.
    pub size: u32,
    /// Whether the format file has `signed:1`.
    pub signed: bool,
    /// Whether the value is a text after the fixed part.
    pub string: bool,
    /// Conversion in the print fmt.
    pub conversion: &'static str,
    /// C type in the format file.
    pub field: &'static str,
}

const fn text(name: &'static str) -> FetchType {
    FetchType { string: true, ..number(name, 4, true, "\\\"%s\\\"", "__data_loc char[]") }
}

const fn number(
    name: &'static str,
    size: u32,
    signed: bool,
    conversion: &'static str,
    field: &'static str,
) -> FetchType {
    FetchType { name, size, signed, string: false, conversion, field }
}

/// All types.
pub static TYPES: [FetchType; 17] = [
    text("string"),
    text("ustring"),
    text("symstr"),
    number("u8", 1, false, "%u", "u8"),
    number("u16", 2, false, "%u", "u16"),
    number("u32", 4, false, "%u", "u32"),
    number("u64", 8, false, "%Lu", "u64"),
    number("s8", 1, true, "%d", "s8"),
    number("s16", 2, true, "%d", "s16"),
    number("s32", 4, true, "%d", "s32"),
    number("s64", 8, true, "%Ld", "s64"),
    number("x8", 1, false, "0x%x", "u8"),
    number("x16", 2, false, "0x%x", "u16"),
    number("x32", 4, false, "0x%x", "u32"),
    number("x64", 8, false, "0x%Lx", "u64"),
    number("char", 1, false, "'%c'", "u8"),
    number("symbol", 8, false, "%pS", "u64"),
];

impl FetchType {
    /// The type of this name.
    pub fn named(name: &str) -> Option<&'static Self> {
        TYPES.iter().find(|ty| ty.name == name)
    }

    /// The type of a value without an explicit type: a hexadecimal word.
    pub fn word() -> &'static Self {
        const { &number("x64", 8, false, "0x%Lx", "u64") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_have_distinct_names() {
        for (at, ty) in TYPES.iter().enumerate() {
            assert_eq!(TYPES.iter().position(|other| other.name == ty.name), Some(at), "{}", ty.name);
        }
        assert_eq!(FetchType::named("x64"), Some(FetchType::word()));
        assert_eq!(FetchType::named("u128"), None);
    }
}
