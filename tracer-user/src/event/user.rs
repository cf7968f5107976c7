//! User events: the fields that a program registers, the record layout, and the `format` file (the kernel's
//! trace_events_user.c).
//!
//! Fields follow the common fields one after the other, unaligned. A program writes everything after the common
//! fields. The record path must therefore check the texts that words point to before they are shown.

use std::fmt::Write as _;

use tracer_abi::COMMON_SIZE;

use super::{
    Format,
    dynamic::{common_fields, field},
};

/// The system of user events.
pub const SYSTEM: &str = "user_events";
/// The system of events whose name may have several formats.
pub const MULTI_SYSTEM: &str = "user_events_multi";

/// A field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Field {
    /// C type as written, with the brackets of an array after it.
    pub ty: String,
    /// Name.
    pub name: String,
    /// Size in bytes.
    pub size: u32,
}

impl Field {
    /// Whether the type is a structure, whose size is part of the definition.
    fn is_struct(&self) -> bool {
        self.ty.starts_with("struct ")
    }

    /// The base of the offset in the field's word; None if the field is not such a word.
    fn points(&self) -> Option<OffsetBase> {
        if self.ty.starts_with("__data_loc ") {
            Some(OffsetBase::Record)
        } else {
            self.ty.starts_with("__rel_loc ").then_some(OffsetBase::Word)
        }
    }

    /// Type and name, and the size of a structure if `sized`.
    fn written(&self, sized: bool) -> String {
        let mut text = format!("{} {}", self.ty, self.name);
        if sized && self.is_struct() {
            let _ = write!(text, " {}", self.size as i32);
        }
        text
    }

    /// `user_field_format()`
    fn conversion(&self) -> &'static str {
        match self.ty.as_str() {
            "s64" => "%lld",
            "u64" => "%llu",
            "s32" | "int" | "s16" | "short" | "s8" | "char" => "%d",
            "u32" | "unsigned int" | "u16" | "unsigned short" | "u8" | "unsigned char" => "%u",
            ty if ty.contains("char[") => "%s",
            _ => "%llu",
        }
    }
}

/// The base of the offset in a word: the record's start, or the end of the word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OffsetBase {
    Record,
    Word,
}

/// A canonical form of the fields in the words of a command, equal for all commands with the same fields
/// ([`Event::has_fields`]).
pub fn fields_key(words: &[String]) -> String {
    let (mut key, mut begins) = (String::new(), true);
    for word in words {
        let (text, ends) = word.strip_suffix(';').map_or((word.as_str(), false), |text| (text, true));
        key.push(if begins { '\n' } else { ' ' });
        key += text;
        begins = ends;
    }
    key
}

/// A user event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// The name that programs register.
    pub name: String,
    /// The number in the event's directory name, if its name may have several formats.
    pub multi: Option<u64>,
    /// Fields.
    pub fields: Vec<Field>,
}

impl Event {
    /// The event's system.
    pub fn system(&self) -> &'static str {
        if self.multi.is_some() { MULTI_SYSTEM } else { SYSTEM }
    }

    /// The name of the event's directory.
    pub fn tracepoint(&self) -> String {
        match self.multi {
            Some(number) => format!("{}.{number:x}", self.name),
            None => self.name.clone(),
        }
    }

    /// Fields with their offsets from the record's start.
    fn placed(&self) -> impl Iterator<Item = (usize, &Field)> {
        self.fields.iter().scan(COMMON_SIZE, |end, field| {
            let offset = *end;
            *end += field.size as usize;
            Some((offset, field))
        })
    }

    /// Minimum number of bytes that a program must write.
    pub fn min_size(&self) -> usize {
        self.fields.iter().map(|field| field.size as usize).sum()
    }

    /// The event's format, as used by the rest of the program.
    pub fn format(&self, id: u16) -> Format {
        let placed = self.placed().map(|(offset, own)| {
            field(&own.ty, &own.name, offset, own.size as usize, !own.ty.starts_with('u'))
        });
        Format {
            system: self.system().to_owned(),
            name: self.tracepoint(),
            id,
            common: common_fields(),
            fields: placed.collect(),
            print_fmt: self.print_fmt(),
        }
    }

    /// The print fmt (`user_event_set_print_fmt()`). Only tools use it: `trace` shows fields.
    pub fn print_fmt(&self) -> String {
        let texts: Vec<String> =
            self.fields.iter().map(|field| format!("{}={}", field.name, field.conversion())).collect();
        let mut fmt = format!("\"{}\"", texts.join(" "));
        for field in &self.fields {
            let _ = match field.points().filter(|_| field.ty.contains("char")) {
                Some(OffsetBase::Record) => write!(fmt, ", __get_str({})", field.name),
                Some(OffsetBase::Word) => write!(fmt, ", __get_rel_str({})", field.name),
                None => write!(fmt, ", REC->{}", field.name),
            };
        }
        fmt
    }

    /// The event's line in `dynamic_events`, including the newline.
    pub fn read_back(&self) -> String {
        let fields: Vec<String> = self.fields.iter().map(|field| field.written(true)).collect();
        let blank = if fields.is_empty() { "" } else { " " };
        format!("u:{}{blank}{}\n", self.name, fields.join("; "))
    }

    /// The result of [`fields_key`] for the fields as they are read back.
    pub fn key(&self) -> String {
        self.fields.iter().flat_map(|field| ["\n".to_owned(), field.written(true)]).collect()
    }

    /// Whether the words of a command, split at blanks, define the same fields (`user_fields_match()`).
    #[cfg(any(test, feature = "internals"))]
    pub fn has_fields(&self, words: &[String]) -> bool {
        self.words_match(words, true)
    }

    /// Whether the words of a deletion select this event: no words, or its fields. Kernels around 6.1 omit the size
    /// of a structure and accept an empty list for any fields; later kernels require both. This program accepts
    /// either.
    pub fn matches_deletion(&self, words: &[String]) -> bool {
        words.is_empty() || self.words_match(words, true) || self.words_match(words, false)
    }

    fn words_match(&self, words: &[String], sized: bool) -> bool {
        if words.is_empty() {
            return self.fields.is_empty();
        }
        let mut rest = words;
        for field in &self.fields {
            if rest.is_empty() {
                return false;
            }
            let ends = rest.iter().position(|word| word.contains(';'));
            let taken = ends.map_or(rest.len(), |at| at + 1);
            let mut own = field.written(sized);
            if ends.is_some() {
                own.push(';');
            }
            let (words, behind) = rest.split_at_checked(taken).unwrap_or((rest, &[]));
            if words.join(" ") != own {
                return false;
            }
            rest = behind;
        }
        rest.is_empty()
    }

    /// Whether the texts that a record's words point to are inside the record and terminated
    /// (`user_event_validate()`). The record must be at least as long as its fields.
    pub fn is_sound(&self, record: &[u8]) -> bool {
        self.placed().all(|(at, field)| {
            let Some(from) = field.points() else { return true };
            let Some(word) = record.get(at..at + 4).and_then(|word| word.try_into().ok()) else {
                return false;
            };
            let word = u32::from_ne_bytes(word);
            let (offset, size) = ((word & 0xffff) as usize, (word >> 16) as usize);
            let end = size + if from == OffsetBase::Word { at + 4 + offset } else { offset };
            let ends = || end.checked_sub(1).and_then(|last| record.get(last)) == Some(&0);
            end <= record.len() && (!field.ty.contains("char") || ends())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(fields: &[(&str, &str, u32)]) -> Event {
        let field = |(ty, name, size): &(&str, &str, u32)| Field {
            ty: (*ty).to_owned(),
            name: (*name).to_owned(),
            size: *size,
        };
        Event { name: "test".to_owned(), multi: None, fields: fields.iter().map(field).collect() }
    }

    fn words(text: &str) -> Vec<String> {
        text.split_whitespace().map(str::to_owned).collect()
    }

    #[test]
    fn texts_of_an_event() {
        let all = event(&[
            ("u8", "a", 1),
            ("__rel_loc char[]", "b", 4),
            ("struct x", "c", 20),
            ("char[4]", "d", 4),
            ("__data_loc unsigned char[]", "e", 4),
        ]);
        assert_eq!(
            all.read_back(),
            "u:test u8 a; __rel_loc char[] b; struct x c 20; char[4] d; __data_loc unsigned char[] e\n"
        );
        assert_eq!(
            all.print_fmt(),
            "\"a=%u b=%s c=%llu d=%s e=%s\", REC->a, __get_rel_str(b), REC->c, REC->d, __get_str(e)"
        );
        let format = all.format(7);
        let places: Vec<(usize, usize, bool)> =
            format.fields.iter().map(|field| (field.offset, field.size, field.signed)).collect();
        assert_eq!(places, [(8, 1, false), (9, 4, true), (13, 20, true), (33, 4, true), (37, 4, true)]);
        assert_eq!(all.min_size(), 33);
        assert_eq!(event(&[]).read_back(), "u:test\n");
        assert_eq!(event(&[]).print_fmt(), "\"\"");
        let multi = Event { multi: Some(26), ..event(&[]) };
        assert_eq!((multi.system(), multi.tracepoint().as_str()), ("user_events_multi", "test.1a"));
        assert_eq!(multi.read_back(), "u:test\n");
    }

    #[test]
    fn fields_are_the_same_by_their_text() {
        let two = event(&[("u32", "a", 4), ("u32", "b", 4)]);
        for same in ["u32 a; u32 b", "u32 a; u32 b;"] {
            assert!(two.has_fields(&words(same)), "{same}");
        }
        for other in ["", "u32 a", "u32 a;", "u32 b; u32 a", "u64 a; u64 b", "u32 a; u32 b; u32 c"] {
            assert!(!two.has_fields(&words(other)), "{other}");
        }
        let own = event(&[("struct my", "a", 20)]);
        assert!(own.has_fields(&words("struct my a 20")) && own.matches_deletion(&words("struct my a")));
        assert!(!own.has_fields(&words("struct my a 21")) && !own.matches_deletion(&words("struct my b")));
        assert!(!own.has_fields(&[]) && own.matches_deletion(&[]) && event(&[]).has_fields(&[]));
        // The canonical form yields the same result.
        let texts = [
            "",
            ";",
            "u32 a",
            "u32 a;",
            "u32 a; u32 b",
            "u32 a; u32 b;",
            "u32 a; ; u32 b",
            "u32 a ; u32 b",
            "u32 a u32 b",
        ];
        let all: [&[(&str, &str, u32)]; 3] = [&[], &[("u32", "a", 4)], &[("u32", "a", 4), ("u32", "b", 4)]];
        for own in all {
            let one = event(own);
            let key = one.key();
            for text in texts {
                assert_eq!(fields_key(&words(text)) == key, one.has_fields(&words(text)), "{text} {key}");
            }
        }
    }

    #[test]
    fn texts_must_lie_inside_and_end() {
        let relative = event(&[("__rel_loc char[]", "s", 4)]);
        let record = |word: u32, text: &[u8]| [&[0; 8][..], &word.to_ne_bytes(), text].concat();
        let word = |offset: u32, size: u32| size << 16 | offset;
        assert!(relative.is_sound(&record(word(0, 5), b"Test\0")));
        for (offset, size) in [(1024, 5), (1, 5), (0, 1029), (0, 6), (0xffff, 0xffff)] {
            assert!(!relative.is_sound(&record(word(offset, size), b"Test\0")), "{offset} {size}");
        }
        assert!(!relative.is_sound(&record(word(0, 5), b"TestA")));
        let absolute = event(&[("__data_loc char[]", "s", 4)]);
        assert!(absolute.is_sound(&record(word(12, 5), b"Test\0")));
        assert!(!absolute.is_sound(&record(word(13, 5), b"Test\0")));
        assert!(!absolute.is_sound(&record(0, b"Test\0")));
        let bytes = event(&[("__data_loc u8[]", "s", 4)]);
        assert!(bytes.is_sound(&record(word(12, 5), b"TestA")));
    }
}
