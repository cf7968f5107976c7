//! The kernel's own dump of a record, field by field: `options/fields` (`print_fields()` in
//! kernel/trace/trace_output.c).

use super::env::RenderEnv;
use super::fmt::CType;
use super::printf::number::{decimal, hex_bytes, prefixed_hex};
use super::printf::pointer::{self, take, until_nul};
use super::printf::spec::Spec;
use crate::event::{Field, FieldClass};
use crate::kernel::Change;

/// Writes ` name=value`.
///
/// Since 6.15 a long that is the address of a kernel symbol prints as one. Those kernels print the address of a string
/// pointer field in the buffer instead of the pointer; this function prints the pointer. Since 7.2 (not in 6.18), text of
/// varying length with bytes that are not printable is followed by all bytes.
pub(super) fn field(
    out: &mut Vec<u8>,
    field: &Field,
    record: &[u8],
    env: &dyn RenderEnv,
    version: (u32, u32),
) {
    let symbols = Change::SymbolsInFields.is_in(version);
    out.push(b' ');
    out.extend_from_slice(field.name.as_bytes());
    out.push(b'=');
    let Some(bytes) = record.get(field.offset..field.end()) else {
        return out.extend_from_slice(b"<OVERFLOW>");
    };
    match field.class {
        FieldClass::Comm | FieldClass::StaticString => out.extend_from_slice(until_nul(bytes)),
        FieldClass::DynString | FieldClass::RelString => match data(field, record) {
            Some(text) if Change::BytesOfTexts.is_in(version) && !is_printable(text) => {
                let shown = |byte: u8| if matches!(byte, 0x20..=0x7e) { byte } else { b'.' };
                out.extend(text.iter().map(|byte| shown(*byte)));
                out.extend_from_slice(b" (");
                hex_bytes(out, text, Some(b':'));
                out.push(b')');
            }
            Some(text) => out.extend_from_slice(until_nul(text)),
            None => out.extend_from_slice(b"<OVERFLOW>"),
        },
        FieldClass::PtrString => {
            let address = u64::from_ne_bytes(take(bytes));
            out.extend(format!("({address:#018x}").bytes());
            if let Some(text) = env.kernel_text(address) {
                out.push(b':');
                out.extend_from_slice(text);
            }
            out.push(b')');
        }
        FieldClass::CpuMask | FieldClass::Stacktrace => out.extend_from_slice(b"<INVALID-TYPE>"),
        FieldClass::Number | FieldClass::Cpu => number_field(out, field, bytes, record, env, symbols),
    }
}

fn is_printable(text: &[u8]) -> bool {
    text.iter().all(|byte| matches!(byte, 0 | 0x20..=0x7e))
}

fn number_field(
    out: &mut Vec<u8>,
    field: &Field,
    bytes: &[u8],
    record: &[u8],
    env: &dyn RenderEnv,
    symbols: bool,
) {
    let value = match field.size {
        1 => {
            let byte = bytes.first().copied().unwrap_or_default();
            if matches!(byte, 0x20..=0x7e | 0xa0..) {
                out.extend_from_slice(&[b'\'', byte, b'\'']);
            }
            return out.extend(format!("({byte})").bytes());
        }
        4 if field.is_data_loc() || field.is_rel_loc() => {
            return match data(field, record) {
                Some(bytes) => hex_bytes(out, bytes, Some(b',')),
                None => out.extend_from_slice(b"<OVERFLOW>"),
            };
        }
        2 | 4 | 8 => CType { size: field.size as u8, signed: false }.load(bytes).unwrap_or_default(),
        _ => return out.extend_from_slice(b"<INVALID-SIZE>"),
    };
    // Symbols are in the upper half of the address space, so small numbers need no lookup.
    let named = symbols && field.size == 8 && value >> 63 != 0 && env.symbol(value).is_some();
    if named {
        pointer::symbol(out, value, true, false, Spec::PLAIN, env);
    } else {
        prefixed_hex(out, value);
    }
    out.extend_from_slice(b" (");
    // The kernel prints two bytes unsigned and longer values signed.
    decimal(out, if field.size == 4 { i64::from(value as i32) } else { value.cast_signed() });
    out.push(b')');
}

/// The bytes that a `__data_loc` or `__rel_loc` word points to; `None` if they are outside of the record.
pub(super) fn data<'a>(field: &Field, record: &'a [u8]) -> Option<&'a [u8]> {
    let word = u32::from_ne_bytes(*record.get(field.offset..)?.first_chunk()?);
    let base = if field.is_rel_loc() { field.offset + 4 } else { 0 };
    let start = base + (word & 0xffff) as usize;
    record.get(start..start + (word >> 16) as usize)
}
