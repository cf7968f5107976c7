//! Parser of the `inject` file of an event: `field=value` pairs that form a record
//! (`kernel/trace/trace_events_inject.c`, in kernels with `CONFIG_TRACE_EVENT_INJECT`).
//!
//! A value is a number or a text in single or double quotes. In a text, a backslash prevents the next character from
//! ending it, and stays in the text. A field without a value is 0 or empty. If a field has two values, the last one
//! applies.

use rustix::io::Errno;

use super::{
    Span,
    ctype::{is_alnum, is_space, rest, split_run, trim_end, trim_start},
    number,
};
use crate::event::{Field, FieldClass, Format};

/// Length limit of a text in bytes, with its NUL: the size of a filter string (`MAX_FILTER_STR_VAL`).
const TEXT_LIMIT: usize = 256;
/// Maximum size of a record in bytes: the limit of `kmalloc()` (`KMALLOC_MAX_SIZE`).
const RECORD_MAX: usize = 4 << 20;

/// Placeholder addresses in a record for pointers to an empty text and to [`STATIC_TEXT`]. Both are invalid as kernel
/// addresses.
const EMPTY_AT: u64 = 0x7261_6365_7200_0001;
const STATIC_AT: u64 = 0x7261_6365_7200_0002;
/// Text of a field that points to a string outside the record.
const STATIC_TEXT: &[u8] = b"STATIC STRING CAN NOT BE INJECTED";

/// Returns the text for a placeholder address that [`record`] stored.
pub fn pointed_text(address: u64) -> Option<&'static [u8]> {
    match address {
        EMPTY_AT => Some(b""),
        STATIC_AT => Some(STATIC_TEXT),
        _ => None,
    }
}

#[derive(Clone, Copy, Debug)]
enum Written<'a> {
    Number(&'a [u8]),
    Text(&'a [u8]),
}

#[derive(Clone, Copy, Debug)]
enum Named<'a> {
    Field(&'a Field),
    /// A generic field, which no record contains. `text` marks a field that is compared as text; the kernel accepts a
    /// text for it.
    Generic {
        text: bool,
    },
}

fn named<'a>(format: &'a Format, name: &[u8]) -> Option<Named<'a>> {
    let own =
        |fields: &'a [Field]| fields.iter().find(|field| field.name.as_bytes() == name).map(Named::Field);
    own(&format.fields).or_else(|| match name {
        b"CPU" | b"cpu" | b"common_cpu" | b"STACKTRACE" | b"stacktrace" | b"common_stacktrace" => {
            Some(Named::Generic { text: false })
        }
        b"COMM" | b"comm" | b"common_comm" => Some(Named::Generic { text: true }),
        _ => own(&format.common),
    })
}

/// Reads the name at the start of the text. Returns the name and the remaining text.
fn name(text: &[u8]) -> Result<(&[u8], &[u8]), Errno> {
    let (name, behind) = split_run(trim_start(text), |byte| is_alnum(byte) || byte == b'_');
    if name.is_empty() {
        return Err(Errno::INVAL);
    }
    Ok((name, trim_start(behind)))
}

/// Reads the value after a name. Returns the value and the remaining text.
fn value(text: &[u8]) -> Result<(Written<'_>, &[u8]), Errno> {
    let text = text.strip_prefix(b"=").ok_or(Errno::INVAL)?;
    let text = trim_start(text);
    match text.first() {
        Some(first) if first.is_ascii_digit() || *first == b'-' => {
            let sign = usize::from(*first == b'-');
            let end = sign + text.iter().skip(sign).take_while(|byte| is_alnum(**byte)).count();
            let (number, behind) = text.split_at_checked(end).ok_or(Errno::INVAL)?;
            match behind.first() {
                Some(next) if !is_space(*next) => Err(Errno::INVAL),
                _ => Ok((Written::Number(number), behind)),
            }
        }
        Some(quote @ (b'\'' | b'"')) => {
            let mut at = 1;
            loop {
                match text.get(at) {
                    None => return Err(Errno::INVAL),
                    Some(b'\\') if at + 1 < text.len() => at += 2,
                    Some(byte) if byte == quote => break,
                    Some(_) => at += 1,
                }
            }
            if at > TEXT_LIMIT {
                return Err(Errno::INVAL);
            }
            let inside = text.get(1..at).ok_or(Errno::INVAL)?;
            Ok((Written::Text(inside), rest(text, at + 1)))
        }
        _ => Err(Errno::INVAL),
    }
}

fn number_of(field: &Field, text: &[u8]) -> Result<u64, Errno> {
    if field.signed {
        number::read_signed(text).map(i64::cast_unsigned)
    } else {
        number::read_unsigned(text, 0)
    }
}

fn put(record: &mut [u8], at: usize, bytes: &[u8]) -> Result<(), Errno> {
    let place = record.get_mut(at..).and_then(|behind| behind.get_mut(..bytes.len()));
    place.ok_or(Errno::INVAL)?.copy_from_slice(bytes);
    Ok(())
}

/// Encodes the location word of a text; `place` is the offset of the text in the record.
fn place(field: &Field, place: usize, length: usize) -> [u8; 4] {
    let mut at = place as u32 & 0xffff;
    if field.class == FieldClass::RelString {
        at = at.wrapping_sub(field.end() as u32);
    }
    ((length as u32) << 16 | at).to_ne_bytes()
}

/// Builds the record of a written text with the given common fields.
///
/// # Errors
/// - `ENOENT` if the event does not have a field of that name.
/// - `ENOMEM` if the record is longer than the kernel can allocate.
/// - `ERANGE` if a number does not fit into 64 bits.
/// - `EINVAL` for every other error.
pub fn record(text: &[u8], format: &Format, common: [u8; 8]) -> Result<Vec<u8>, Errno> {
    let size = format.fields.iter().map(Field::end).max().unwrap_or(0).max(common.len());
    if size > RECORD_MAX {
        return Err(Errno::NOMEM);
    }
    // The extra byte terminates every text that has no value.
    let mut record = vec![0; size + 1];
    for field in &format.fields {
        match field.class {
            FieldClass::DynString | FieldClass::RelString => {
                put(&mut record, field.offset, &place(field, size, 0))?;
            }
            FieldClass::PtrString => put(&mut record, field.offset, &EMPTY_AT.to_ne_bytes())?,
            _ => {}
        }
    }
    put(&mut record, 0, &common)?;
    let mut rest = trim_end(text);
    while !rest.is_empty() {
        let (name, behind) = name(rest)?;
        let target = named(format, name).ok_or(Errno::NOENT)?;
        let (written, behind) = value(behind)?;
        rest = behind;
        match (target, written) {
            (Named::Field(field), Written::Number(number)) if !field.class.is_string() => {
                let bytes = number_of(field, number)?.to_le_bytes();
                let bytes = bytes.get(..field.size).filter(|bytes| matches!(bytes.len(), 1 | 2 | 4 | 8));
                put(&mut record, field.offset, bytes.ok_or(Errno::INVAL)?)?;
            }
            (Named::Field(field), Written::Text(text)) => match field.class {
                FieldClass::StaticString => {
                    let text = Span::new(0, field.size.saturating_sub(1)).of(text);
                    put(&mut record, field.offset, text)?;
                    put(&mut record, field.offset + text.len(), &[0])?;
                }
                FieldClass::DynString | FieldClass::RelString => {
                    let word = place(field, record.len(), text.len() + 1);
                    put(&mut record, field.offset, &word)?;
                    record.extend_from_slice(text);
                    record.push(0);
                }
                FieldClass::PtrString => put(&mut record, field.offset, &STATIC_AT.to_ne_bytes())?,
                _ => return Err(Errno::INVAL),
            },
            // The kernel writes an address over the common fields here; this parser writes nothing.
            (Named::Generic { text: true }, Written::Text(_)) => {}
            _ => return Err(Errno::INVAL),
        }
    }
    Ok(record)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FORMAT: &str = "name: e\nID: 77\nformat:\n\
        \tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;\n\
        \tfield:unsigned char common_flags;\toffset:2;\tsize:1;\tsigned:0;\n\
        \tfield:unsigned char common_preempt_count;\toffset:3;\tsize:1;\tsigned:0;\n\
        \tfield:int common_pid;\toffset:4;\tsize:4;\tsigned:1;\n\n\
        \tfield:char comm[4];\toffset:8;\tsize:4;\tsigned:1;\n\
        \tfield:u16 small;\toffset:12;\tsize:2;\tsigned:0;\n\
        \tfield:u8 bytes[3];\toffset:14;\tsize:3;\tsigned:0;\n\
        \tfield:s64 wide;\toffset:24;\tsize:8;\tsigned:1;\n\
        \tfield:__data_loc char[] name;\toffset:32;\tsize:4;\tsigned:1;\n\
        \tfield:__rel_loc char[] near;\toffset:36;\tsize:4;\tsigned:1;\n\
        \tfield:const char * where;\toffset:40;\tsize:8;\tsigned:0;\n\n\
        print fmt: \"%s\", REC->comm\n";

    fn read(text: &str) -> Result<Vec<u8>, Errno> {
        record(text.as_bytes(), &Format::parse("s", FORMAT).unwrap(), [77, 0, 0, 0, 5, 0, 0, 0])
    }

    fn word(record: &[u8], at: usize) -> (usize, usize) {
        let word = u32::from_ne_bytes(record[at..at + 4].try_into().unwrap());
        ((word & 0xffff) as usize, (word >> 16) as usize)
    }

    #[test]
    fn an_empty_write_makes_a_record_of_zeroes_and_empty_texts() {
        for text in ["", "\n", " \t "] {
            let record = read(text).unwrap();
            assert_eq!(record.len(), 49);
            assert_eq!(record[..8], [77, 0, 0, 0, 5, 0, 0, 0]);
            assert_eq!(record[8..32], [0; 24]);
            assert_eq!((word(&record, 32), word(&record, 36)), ((48, 0), (48 - 40, 0)));
            assert_eq!(pointed_text(u64::from_ne_bytes(record[40..48].try_into().unwrap())), Some(&b""[..]));
        }
    }

    #[test]
    fn values_are_at_the_offsets_of_the_format() {
        let text = " wide = -2 small=0x12345\tname='a \"b\" \\' c'near=\"xy\"comm='longer' where=\"\" common_pid=-1\n";
        let record = read(text).unwrap();
        assert_eq!(record[4..8], [0xff; 4]);
        assert_eq!(record[8..12], *b"lon\0");
        assert_eq!(record[12..14], 0x2345_u16.to_le_bytes());
        assert_eq!(record[24..32], (-2_i64).to_le_bytes());
        let text = b"a \"b\" \\' c\0";
        assert_eq!(word(&record, 32), (49, text.len()));
        assert_eq!(record[49..49 + text.len()], *text);
        assert_eq!(word(&record, 36), (49 + text.len() - 40, 3));
        assert_eq!(record[49 + text.len()..], *b"xy\0");
        assert_eq!(
            pointed_text(u64::from_ne_bytes(record[40..48].try_into().unwrap())),
            Some(&b"STATIC STRING CAN NOT BE INJECTED"[..])
        );
    }

    #[test]
    fn the_last_of_two_values_applies() {
        let record = read("name='one' small=1 small=2 name='two'").unwrap();
        let (at, length) = word(&record, 32);
        assert_eq!((&record[at..at + length], record[12]), (&b"two\0"[..], 2));
    }

    #[test]
    fn invalid_text_is_refused() {
        let cases = [
            ("nothing=1", Errno::NOENT),
            ("wide=9223372036854775808", Errno::RANGE),
            ("small=18446744073709551616", Errno::RANGE),
        ];
        for (text, errno) in cases {
            assert_eq!(read(text), Err(errno), "{text}");
        }
        let invalid = "wide wide:1 =1 wide= wide=1,small=2 wide=x wide=1x wide=+1 wide='1' small=-1 bytes=1 \
                       bytes='a' name=1 name='a name='a\\' CPU=1 COMM=1 stacktrace='a'";
        let long = format!("name='{}'", "x".repeat(256));
        for text in invalid.split(' ').chain(["small=1 ;", &long]) {
            assert_eq!(read(text), Err(Errno::INVAL), "{text}");
        }
        let long = format!("name='{}'", "x".repeat(255));
        assert_eq!(read(&long).map(|record| record.len()), Ok(49 + 256));
        assert!(read("COMM='a' small=1").is_ok());
    }
}
