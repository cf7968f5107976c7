//! Field types that are known by name, with their names in C.

/// A type that is known by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Primitive {
    /// The name in Rust; `char` is C's.
    pub(crate) rust: &'static str,
    /// The name in a format file.
    pub(crate) c: &'static str,
    /// Size in bytes.
    pub(crate) bytes: u8,
}

const fn primitive(rust: &'static str, c: &'static str, bytes: u8) -> Primitive {
    Primitive { rust, c, bytes }
}

const PRIMITIVES: [Primitive; 12] = [
    primitive("u8", "u8", 1),
    primitive("i8", "s8", 1),
    primitive("u16", "u16", 2),
    primitive("i16", "s16", 2),
    primitive("u32", "unsigned int", 4),
    primitive("i32", "int", 4),
    primitive("u64", "u64", 8),
    primitive("i64", "s64", 8),
    primitive("usize", "unsigned long", 8),
    primitive("isize", "long", 8),
    primitive("bool", "bool", 1),
    primitive("char", "char", 1),
];

/// The type with this name.
pub(crate) fn find(rust: &str) -> Option<Primitive> {
    PRIMITIVES.into_iter().find(|one| one.rust == rust)
}

/// Whether a type name is a pointer type.
pub(crate) fn is_pointer(rust: &str) -> bool {
    rust.trim_start().starts_with('*')
}
