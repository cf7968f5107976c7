//! Registers events and writes records through the user_events of a kernel or of a mirror of tracefs.
//!
//! <https://docs.kernel.org/trace/user_events.html>, the interface of 6.4 and later: the kernel sets a bit of the
//! event's word while the event is traced. The kernel lays fields out without padding, so a record with padding is
//! written in pieces.

use core::fmt::Write as _;
use std::{
    fs::File,
    io::{self, IoSlice, Write as _},
    sync::OnceLock,
};

use crate::{
    Event,
    event::{Class, Field, FieldLocation, Kind, USER_EVENTS_BIT},
    sys,
};

/// `DIAG_IOCSREG`, include/uapi/linux/user_events.h.
const REGISTER: u64 = 0xc008_2a00;
/// Size in bytes of the common fields.
const COMMON: usize = 8;
/// Maximum number of fields of a record with padding, which is written in pieces.
const RUNS: usize = 64;

/// `struct user_reg`, include/uapi/linux/user_events.h.
#[repr(C, packed)]
struct Registration {
    size: u32,
    enable_bit: u8,
    enable_size: u8,
    flags: u16,
    enable_addr: u64,
    name_args: u64,
    write_index: u32,
}

static DATA: OnceLock<File> = OnceLock::new();

/// Registers an event under its own name. The first call determines the data file for all events.
pub(crate) fn register(data: File, event: &'static Event) -> io::Result<()> {
    let data = DATA.get_or_init(|| data);
    let command = std::ffi::CString::new(command(event))?;
    let mut registration = Registration {
        size: size_of::<Registration>() as u32,
        enable_bit: USER_EVENTS_BIT,
        enable_size: size_of::<u32>() as u8,
        flags: 0,
        enable_addr: core::ptr::from_ref(event.word()).expose_provenance() as u64,
        name_args: command.as_ptr().expose_provenance() as u64,
        write_index: 0,
    };
    sys::register(data, REGISTER, &raw mut registration)?;
    event.set_index(registration.write_index);
    Ok(())
}

/// The registration text: `NAME TYPE FIELD;...`.
fn command(event: &Event) -> String {
    let mut text = event.name().to_owned();
    for (number, (field, place)) in event.class().fields().enumerate() {
        text.push(if number == 0 { ' ' } else { ';' });
        let ty = value_type(field, place);
        let name = field.name;
        let _ = match field.kind {
            Kind::Value => write!(text, "{ty} {name}"),
            Kind::Array if field.ty == "char" => write!(text, "char[{}] {name}", place.count),
            Kind::Array => write!(text, "struct {ty}_{} {name} {}", place.count, place.size),
            Kind::Dynamic => write!(text, "__data_loc {}[] {name}", field.ty),
        };
    }
    text
}

/// The user_events type of a field.
fn value_type(field: &Field, place: FieldLocation) -> &'static str {
    if let known @ ("char" | "int" | "unsigned int") = field.ty {
        return known;
    }
    match (place.size / place.count.max(1), place.signed) {
        (1, false) => "u8",
        (1, true) => "s8",
        (2, false) => "u16",
        (2, true) => "s16",
        (4, false) => "u32",
        (4, true) => "s32",
        (_, false) => "u64",
        (_, true) => "s64",
    }
}

/// Writes a record of an event.
pub(crate) fn write(index: u32, class: &'static Class, record: &[u8]) {
    let Some(mut data) = DATA.get() else { return };
    let index = index.to_ne_bytes();
    let end = class.fields().map(|(_, place)| place.offset + place.size).last().unwrap_or(COMMON);
    let padded = class.fields().fold(COMMON, |at, (_, place)| at + place.size) < end;
    // An error is dropped: the program does not depend on whether its tracer received the record.
    let _ = if padded {
        packed(class, end, record, |pieces| {
            let mut all = [IoSlice::new(&[]); RUNS + 2];
            all[0] = IoSlice::new(&index);
            for (to, piece) in all[1..].iter_mut().zip(pieces) {
                *to = IoSlice::new(piece);
            }
            data.write_vectored(&all[..=pieces.len()])
        })
    } else {
        // In user_events a record without dynamic data ends with its last field, without the padding of the
        // structure.
        let dynamic = class.fields().any(|(field, _)| field.kind == Kind::Dynamic);
        let length = if dynamic { record.len() } else { end };
        data.write_vectored(&[IoSlice::new(&index), IoSlice::new(&record[COMMON..length])])
    };
}

/// Passes a record without padding to `write`, in pieces, with the offsets in its data words adjusted.
fn packed(
    class: &'static Class,
    end: usize,
    record: &[u8],
    write: impl FnOnce(&[&[u8]]) -> io::Result<usize>,
) -> io::Result<usize> {
    let padding = end - class.fields().fold(COMMON, |at, (_, place)| at + place.size);
    let mut words = [[0; 4]; RUNS];
    let mut fields = class.fields();
    for (word, (field, place)) in words.iter_mut().zip(&mut fields) {
        if field.kind == Kind::Dynamic {
            let mut bytes = [0; 4];
            bytes.copy_from_slice(&record[place.offset..place.offset + 4]);
            *word = (u32::from_ne_bytes(bytes) - padding as u32).to_ne_bytes();
        }
    }
    if fields.next().is_some() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let mut pieces: [&[u8]; RUNS + 1] = [&[]; RUNS + 1];
    let mut count = 0;
    for ((field, place), word) in class.fields().zip(&words) {
        pieces[count] = match field.kind {
            Kind::Dynamic => word,
            _ => &record[place.offset..place.offset + place.size],
        };
        count += 1;
    }
    if class.fields().any(|(field, _)| field.kind == Kind::Dynamic) {
        pieces[count] = &record[end..];
        count += 1;
    }
    write(&pieces[..count])
}

#[cfg(test)]
mod tests {
    use super::*;

    extern "C" fn nowhere(_: *const u8, _: usize) {}

    static FIELDS: [Field; 4] = [
        Field { name: "flags", ty: "u8", kind: Kind::Value },
        Field { name: "pid", ty: "pid_t", kind: Kind::Value },
        Field { name: "comm", ty: "char", kind: Kind::Array },
        Field { name: "name", ty: "char", kind: Kind::Dynamic },
    ];
    static LAYOUT: [[usize; 4]; 4] = [[8, 1, 0, 1], [12, 4, 1, 1], [16, 16, 0, 16], [32, 4, 0, 4]];
    static CLASS: Class = Class::new(&FIELDS, &LAYOUT);
    static EVENT: Event = Event::new("one", "test", &CLASS, nowhere);

    #[test]
    fn commands_have_the_kernels_syntax() {
        assert_eq!(command(&EVENT), "one u8 flags;s32 pid;char[16] comm;__data_loc char[] name");
    }

    /// A word for data with a length and an offset.
    fn word(length: u32, offset: u32) -> [u8; 4] {
        (length << 16 | offset).to_ne_bytes()
    }

    #[test]
    fn padding_is_omitted_and_words_are_adjusted() {
        let mut record = vec![0_u8; 36];
        record[8] = 7;
        record[12..16].copy_from_slice(&9_i32.to_ne_bytes());
        record[16..20].copy_from_slice(b"comm");
        record[32..36].copy_from_slice(&word(3, 36));
        record.extend(b"ab\0");
        let mut written = Vec::new();
        let done = packed(&CLASS, 36, &record, |pieces| {
            written = pieces.concat();
            Ok(written.len())
        });
        assert_eq!(done.unwrap(), 28);
        assert_eq!(written[..5], [7, 9, 0, 0, 0]);
        assert_eq!(written[5..9], *b"comm");
        assert_eq!(written[21..25], word(3, 33));
        assert_eq!(written[25..], *b"ab\0");
    }
}
