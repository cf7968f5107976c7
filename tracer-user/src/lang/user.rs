//! Parser of user event commands: `name[:FLAGS] [type field[ size][; ...]]` (`user_event_parse_cmd()`).
//!
//! [`Command::split`] only separates the name, the flags and the arguments, which is enough to find an existing event.
//! The caller parses the fields only for a new event. A command for an existing event therefore reports the mismatch
//! before any error in its fields.

use rustix::io::Errno;

use super::{ctype, number};
use crate::event::user::Field;

/// Maximum length of a command in bytes, with the NUL (`MAX_EVENT_DESC`).
pub const COMMAND_MAX: usize = 512;
/// Maximum number of array elements (`MAX_FIELD_ARRAY_SIZE`).
const ARRAY_MAX: u64 = 1024;
/// Number of characters after the opening bracket that the kernel reads.
const ARRAY_TEXT: usize = 7;

/// Types and their sizes in bytes (`user_field_size()`). `long` is absent because its size depends on the architecture.
const TYPES: [(&str, u32); 14] = [
    ("s64", 8),
    ("u64", 8),
    ("s32", 4),
    ("u32", 4),
    ("int", 4),
    ("unsigned int", 4),
    ("s16", 2),
    ("u16", 2),
    ("short", 2),
    ("unsigned short", 2),
    ("s8", 1),
    ("u8", 1),
    ("char", 1),
    ("unsigned char", 1),
];

/// Prefixes of types whose name contains a blank.
const SPACED: [&str; 6] =
    ["unsigned ", "struct ", "__data_loc unsigned ", "__data_loc ", "__rel_loc unsigned ", "__rel_loc "];

/// A command, split into its parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Command<'a> {
    /// Name of the event.
    pub name: &'a str,
    /// Text after the colon of the name.
    pub flags: Option<&'a str>,
    arguments: Option<&'a str>,
}

impl<'a> Command<'a> {
    /// Splits a command.
    ///
    /// # Errors
    /// `EINVAL` if the text is not UTF-8 or the name is not a valid directory name. The kernel accepts such a name, but
    /// the event could not be enabled.
    pub fn split(text: &'a [u8]) -> Result<Self, Errno> {
        let text = std::str::from_utf8(text).map_err(|_| Errno::INVAL)?;
        let (head, arguments) = text.split_once(' ').map_or((text, None), |(head, rest)| (head, Some(rest)));
        let (name, flags) = head.split_once(':').map_or((head, None), |(name, flags)| (name, Some(flags)));
        let is_name = !matches!(name, "" | "." | "..") && !name.contains(['/', '\0']);
        if is_name { Ok(Self { name, flags, arguments }) } else { Err(Errno::INVAL) }
    }

    /// Returns the words after the name; a semicolon ends a word (`user_event_argv_split()`).
    pub fn words(&self) -> Vec<String> {
        let mut text = String::new();
        let mut rest = self.arguments.unwrap_or_default().chars().peekable();
        while let Some(one) = rest.next() {
            text.push(one);
            if one == ';' && rest.peek().is_none_or(|next| !is_space(*next)) {
                text.push(' ');
            }
        }
        text.split(is_space).filter(|word| !word.is_empty()).map(str::to_owned).collect()
    }

    /// Parses the fields.
    ///
    /// # Errors
    /// `EINVAL` for the first invalid field.
    pub fn fields(&self) -> Result<Vec<Field>, Errno> {
        let texts = self.arguments.into_iter().flat_map(|arguments| arguments.split(';'));
        let texts = texts.map(|text| text.trim_start_matches(is_space)).filter(|text| !text.is_empty());
        let fields = texts.map(field).collect::<Result<Vec<Field>, Errno>>()?;
        // No record is that long, and offsets must fit into an `i32`.
        let size: u64 = fields.iter().map(|field| u64::from(field.size)).sum();
        if size > i32::MAX as u64 { Err(Errno::INVAL) } else { Ok(fields) }
    }
}

fn is_space(character: char) -> bool {
    u8::try_from(character).is_ok_and(|byte| byte.is_ascii() && ctype::is_space(byte))
}

/// Parses `type name` or, for a structure, `struct type name size` (`user_event_parse_field()`).
fn field(text: &str) -> Result<Field, Errno> {
    let prefix =
        SPACED.into_iter().filter(|prefix| text.starts_with(prefix)).max_by_key(|prefix| prefix.len());
    let start = prefix.map_or(0, str::len);
    let blank = text.get(start..).and_then(|behind| behind.find(' ')).ok_or(Errno::INVAL)?;
    let (ty, behind) = text.split_at_checked(start + blank).ok_or(Errno::INVAL)?;
    let mut rest = behind.strip_prefix(' ').unwrap_or(behind).split(' ');
    let (name, size) = (rest.next().ok_or(Errno::INVAL)?, rest.next());
    if rest.next().is_some() {
        return Err(Errno::INVAL);
    }
    let size = match size {
        Some(size) if prefix == Some("struct ") => {
            let size = number::read_unsigned(size.as_bytes(), 10).map_err(|_| Errno::INVAL)?;
            let size = u32::try_from(size).map_err(|_| Errno::INVAL)?;
            // The kernel returns the size as an `int`, so a size with the highest bit set is an errno.
            match size.cast_signed() {
                0.. => size,
                number @ -4095.. => return Err(Errno::from_raw_os_error(-number)),
                _ => return Err(Errno::INVAL),
            }
        }
        Some(_) => return Err(Errno::INVAL),
        None => size_of_type(ty).ok_or(Errno::INVAL)?,
    };
    if size == 0 {
        return Err(Errno::INVAL);
    }
    Ok(Field { ty: ty.to_owned(), name: name.to_owned(), size })
}

fn size_of_type(ty: &str) -> Option<u32> {
    if let Some((_, size)) = TYPES.iter().find(|(name, _)| *name == ty) {
        return Some(*size);
    }
    if ty.starts_with("char[") || ty.starts_with("unsigned char[") {
        let text = ty.split_once('[')?.1;
        if text.len() > ARRAY_TEXT {
            return None;
        }
        let size = number::unsigned(text.split_once(']')?.0.as_bytes())?;
        return u32::try_from(size).ok().filter(|_| size <= ARRAY_MAX);
    }
    (ty.starts_with("__data_loc ") || ty.starts_with("__rel_loc ")).then_some(4)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(text: &str) -> Option<Vec<(String, String, u32)>> {
        let command = format!("test {text}");
        let fields = Command::split(command.as_bytes()).unwrap().fields().ok()?;
        Some(fields.into_iter().map(|field| (field.ty, field.name, field.size)).collect())
    }

    #[test]
    fn a_command_has_a_name_flags_and_words() {
        let command = Command::split(b"a:F,G u32 x;u8 y; u8 z").unwrap();
        assert_eq!((command.name, command.flags), ("a", Some("F,G")));
        assert_eq!(command.words(), ["u32", "x;", "u8", "y;", "u8", "z"]);
        let command = Command::split(b"a").unwrap();
        assert_eq!((command.flags, command.words().len(), command.fields().unwrap().len()), (None, 0, 0));
        assert_eq!(Command::split(b"a u8 x;").unwrap().words(), ["u8", "x;"]);
        for bad in [&b""[..], b" u32 x", b":x", b"a/b", b"..", b"\xff"] {
            assert_eq!(Command::split(bad), Err(Errno::INVAL), "{bad:?}");
        }
    }

    #[test]
    fn fields_have_the_sizes_of_their_types() {
        let one = |ty: &str| fields(&format!("{ty} a")).map(|all| (all[0].0.clone(), all[0].2));
        for (ty, size) in TYPES.into_iter().chain([
            ("char[20]", 20),
            ("unsigned char[0x14]", 20),
            ("char[010]", 8),
            ("char[1024]", 1024),
            ("__data_loc char[]", 4),
            ("__data_loc unsigned char[]", 4),
            ("__rel_loc char[]", 4),
            ("__rel_loc u64", 4),
        ]) {
            assert_eq!(one(ty), Some((ty.to_owned(), size)), "{ty}");
        }
        for bad in
            ["long", "u128", "char[aa]", "char[9999]", "char[0x0000000000001]", "char[]", "char[0]", "int[2]"]
        {
            assert_eq!(one(bad), None, "{bad}");
        }
        assert_eq!(fields("struct custom a 20"), Some(vec![("struct custom".into(), "a".into(), 20)]));
        for bad in [
            "struct custom a",
            "struct custom a x",
            "struct custom a 0",
            "struct c a 4294967295",
            "char a 20",
        ] {
            assert_eq!(fields(bad), None, "{bad}");
        }
        for bad in ["u32", "u32  a", "u32 a ", "u32 a b", "unsigned  int a", "unsigned"] {
            assert_eq!(fields(bad), None, "{bad}");
        }
        assert_eq!(fields("u8 a;;  u8 b; ").unwrap().len(), 2);
    }
}
