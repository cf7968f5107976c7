//! Events described in a program's file: ELF notes that the crate `tracer-events` writes to `.note.tracer`.
//!
//! Each note has the address of an instruction, the address of a semaphore, the event's names and the text of a
//! format file.
//!
//! The file is untrusted: a malformed note is an error, and so is a reference outside of the file or the record.

use object::{Object, ObjectSection, ObjectSegment, ReadRef};
use serde::{Deserialize, Serialize};

use super::{Format, FormatError, dynamic};

/// Name of the section, and owner and type of its notes.
const SECTION: &str = ".note.tracer";
const OWNER: &[u8] = b"tracer\0";
const TYPE: u32 = 1;
/// Maximum number of notes in one file, and maximum bytes of them.
const MOST: usize = 16384;
const SIZE_MAX: u64 = 32 << 20;
/// Maximum length of a system's or event's name, including the NUL (`MAX_EVENT_NAME_LEN`, kernel/trace/trace.h).
const NAME_MAX: usize = 64;

/// An event of a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Described {
    /// System, name, fields and print fmt; its id is 0.
    pub format: Format,
    /// Offset in the file of the instruction where the program passes records.
    pub offset: u64,
    /// Offset in the file of the semaphore, a counter that is above 0 while a uprobe is attached.
    pub reference: u64,
}

/// The unparsed notes of a program's file, and the mapping of addresses to file offsets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Notes {
    data: Vec<u8>,
    /// Address, offset and length of each segment.
    segments: Vec<(u64, u64, u64)>,
}

/// Why a file has no usable events.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProgramError {
    /// The file is not a program or library.
    #[error("not a program or a library")]
    NotElf,
    /// The notes are too large.
    #[error("more than {SIZE_MAX} bytes of {SECTION}")]
    TooLarge,
    /// There are no notes.
    #[error("it has no events ({SECTION})")]
    NoEvents,
    /// A note is broken.
    #[error("event {number} of {SECTION}: {what}")]
    Note {
        /// Number of the note, from 1.
        number: usize,
        /// The defect.
        what: &'static str,
    },
    /// An event's format text is invalid.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// Two events have the same name.
    #[error("it has two events named {0}")]
    Twice(String),
}

/// Reads the events of a program's or library's file.
///
/// # Errors
/// If the file has no events or one of them is broken.
#[cfg(any(test, feature = "internals"))]
pub fn events(file: &[u8]) -> Result<Vec<Described>, ProgramError> {
    Notes::read(file)?.events()
}

impl Notes {
    /// Reads the notes of a file; of the rest, reads only the parts that lead to them.
    ///
    /// # Errors
    /// If the file is not a program or has no notes.
    pub fn read<'data, R: ReadRef<'data>>(file: R) -> Result<Self, ProgramError> {
        let file = object::File::parse(file).map_err(|_| ProgramError::NotElf)?;
        let section = file.section_by_name(SECTION).ok_or(ProgramError::NoEvents)?;
        if section.size() > SIZE_MAX {
            return Err(ProgramError::TooLarge);
        }
        let data = section.data().map_err(|_| ProgramError::NotElf)?.to_vec();
        let segments = file.segments().map(|segment| {
            let (offset, length) = segment.file_range();
            (segment.address(), offset, length)
        });
        Ok(Self { data, segments: segments.collect() })
    }

    /// The events that the notes describe.
    ///
    /// # Errors
    /// If there are none or one of them is broken.
    pub fn events(&self) -> Result<Vec<Described>, ProgramError> {
        described(&self.data, &self.segments)
    }
}

fn described(data: &[u8], segments: &[(u64, u64, u64)]) -> Result<Vec<Described>, ProgramError> {
    let offset = |address: u64, size: u64| {
        segments.iter().find_map(|(start, offset, length)| {
            let ahead = address.checked_sub(*start)?;
            if ahead.checked_add(size)? <= *length { offset.checked_add(ahead) } else { None }
        })
    };
    let mut events: Vec<Described> = Vec::new();
    let mut rest = data;
    for number in 1.. {
        let broken = |what| ProgramError::Note { number, what };
        if rest.len() < 12 {
            break;
        }
        if number > MOST {
            return Err(broken("exceeds the maximum number of notes"));
        }
        let (owner, kind, body) = note(&mut rest).ok_or_else(|| broken("is truncated"))?;
        if owner != OWNER || kind != TYPE {
            continue;
        }
        let (head, texts) = body.split_first_chunk::<16>().ok_or_else(|| broken("is too short"))?;
        let ([site, semaphore], _) = head.as_chunks() else { return Err(broken("is too short")) };
        let (site, semaphore) = (u64::from_le_bytes(*site), u64::from_le_bytes(*semaphore));
        // The linker removed the code and kept the note.
        if site == 0 {
            continue;
        }
        let mut texts = texts.split(|byte| *byte == 0).map(std::str::from_utf8);
        let mut text = |what| texts.next().and_then(Result::ok).ok_or_else(|| broken(what));
        let system = text("has no system")?;
        let name = text("has no name")?;
        let description = text("has no description")?;
        if !is_name(system) || !is_name(name) {
            return Err(broken("has an invalid name"));
        }
        let format = Format::parse(system, &format!("name: {name}\nID: 0\nformat:\n{description}"))?;
        let format = Format { common: dynamic::common_fields(), ..format };
        check(&format).map_err(broken)?;
        let described = Described {
            offset: offset(site, 1).ok_or_else(|| broken("has a place outside the file"))?,
            reference: offset(semaphore, 2).ok_or_else(|| broken("has a semaphore outside the file"))?,
            format,
        };
        match events.iter().find(|other| other.format.system == system && other.format.name == name) {
            Some(same) if *same == described => {}
            Some(_) => return Err(ProgramError::Twice(described.format.full_name())),
            None => events.push(described),
        }
    }
    events.sort_by(|a, b| (&a.format.system, &a.format.name).cmp(&(&b.format.system, &b.format.name)));
    if events.is_empty() { Err(ProgramError::NoEvents) } else { Ok(events) }
}

/// Splits off one note: owner, type, content (`Elf64_Nhdr`).
fn note<'a>(rest: &mut &'a [u8]) -> Option<(&'a [u8], u32, &'a [u8])> {
    let word = |at: usize| Some(u32::from_le_bytes(rest.get(at..at + 4)?.try_into().ok()?));
    let (owner, length, kind) = (word(0)? as usize, word(4)? as usize, word(8)?);
    let start = owner.checked_next_multiple_of(4)?.checked_add(12)?;
    let end = start.checked_add(length)?;
    let found = (rest.get(12..owner.checked_add(12)?)?, kind, rest.get(start..end)?);
    *rest = rest.get(end.checked_next_multiple_of(4)?..).unwrap_or_default();
    Some(found)
}

fn is_name(name: &str) -> bool {
    let starts = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
    starts && name.len() < NAME_MAX && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

/// Checks that the fields form a record.
fn check(format: &Format) -> Result<(), &'static str> {
    let mut end = tracer_abi::COMMON_SIZE;
    for field in &format.fields {
        if field.name.is_empty() || field.name.starts_with("common_") {
            return Err("has a field without a valid name");
        }
        if field.offset < end || field.size == 0 || field.end() > tracer_abi::MAX_PAYLOAD / 2 {
            return Err("has fields that overlap or exceed a record");
        }
        if (field.is_data_loc() || field.is_rel_loc()) && field.size != 4 {
            return Err("has a data word that does not have four bytes");
        }
        end = field.end();
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(owner: &[u8], kind: u32, body: &[u8]) -> Vec<u8> {
        let mut note = Vec::new();
        for word in [owner.len() as u32, body.len() as u32, kind] {
            note.extend(word.to_le_bytes());
        }
        for part in [owner, body] {
            note.extend(part);
            note.resize(note.len().next_multiple_of(4), 0);
        }
        note
    }

    #[test]
    fn notes_are_parsed_one_by_one() {
        let both = [bytes(b"GNU\0", 3, b"12345"), bytes(OWNER, TYPE, b"x")].concat();
        let mut rest = &both[..];
        assert_eq!(note(&mut rest), Some((&b"GNU\0"[..], 3, &b"12345"[..])));
        assert_eq!(note(&mut rest), Some((OWNER, TYPE, &b"x"[..])));
        assert_eq!((note(&mut rest), rest.len()), (None, 0));
    }

    #[test]
    fn notes_with_wrong_lengths_are_refused() {
        for (owner, length) in [(u32::MAX, 0), (0, u32::MAX), (8, 1), (u32::MAX, u32::MAX)] {
            let mut note_bytes = Vec::new();
            for word in [owner, length, TYPE] {
                note_bytes.extend(word.to_le_bytes());
            }
            note_bytes.extend([0; 8]);
            assert_eq!(note(&mut &note_bytes[..]), None, "{owner} {length}");
        }
    }

    #[test]
    fn fields_that_overlap_or_exceed_a_record_are_refused() {
        let format = |lines: &str| Format::parse("s", &format!("name: n\nID: 0\nformat:\n{lines}")).unwrap();
        let line = |offset: usize, size: usize| {
            format!("\tfield:u32 f{offset};\toffset:{offset};\tsize:{size};\tsigned:0;\n")
        };
        assert_eq!(check(&format(&(line(8, 4) + &line(12, 4)))), Ok(()));
        assert!(check(&format(&(line(8, 4) + &line(10, 4)))).is_err());
        assert!(check(&format(&line(4, 4))).is_err());
        assert!(check(&format(&line(8, 60000))).is_err());
        assert!(check(&format("\tfield:__data_loc char[] x;\toffset:8;\tsize:2;\tsigned:0;\n")).is_err());
    }
}
