//! The kernel's own dump of a record, field by field: `options/fields` (`print_fields()` in
//! kernel/trace/trace_output.c).

use super::env::RenderEnv;
use super::printf::number::{self, decimal, hex, hex_byte};
use super::printf::pointer::{self, take, until_nul};
use super::printf::spec::{Number, Spec};
use crate::event::{Field, FieldClass};

const SIGNED: Number = Number { base: 10, lower: true, size: 8, signed: true };

/// Writes ` name=value`.
///
/// Since 6.15 a long that is the address of a kernel symbol prints as one (`symbols`). Those kernels print the address
/// of a string pointer field in the buffer instead of the pointer; this function prints the pointer.
pub(super) fn field(out: &mut Vec<u8>, field: &Field, record: &[u8], env: &dyn RenderEnv, symbols: bool) {
    out.push(b' ');
    out.extend_from_slice(field.name.as_bytes());
    out.push(b'=');
    let Some(bytes) = record.get(field.offset..field.end()) else {
        out.extend_from_slice(b"<OVERFLOW>");
        return;
    };
    match field.class {
        FieldClass::Comm | FieldClass::StaticString => out.extend_from_slice(until_nul(bytes)),
        FieldClass::DynString | FieldClass::RelString => match data(field, record) {
            Some(text) => out.extend_from_slice(until_nul(text)),
            None => out.extend_from_slice(b"<OVERFLOW>"),
        },
        FieldClass::PtrString => {
            let address = u64::from_ne_bytes(take(bytes));
            out.extend_from_slice(b"(0x");
            number::number(
                out,
                address,
                Number { base: 16, lower: true, size: 8, signed: false },
                Spec { width: 16, zero: true, ..Spec::PLAIN },
            );
            if let Some(text) = env.kernel_text(address) {
                out.push(b':');
                out.extend_from_slice(text);
            }
            out.push(b')');
        }
        FieldClass::CpuMask | FieldClass::Stacktrace => {
            out.extend_from_slice(b"<INVALID-TYPE>");
        }
        FieldClass::Number | FieldClass::Cpu => number_field(out, field, bytes, record, env, symbols),
    }
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
            out.push(b'(');
            decimal(out, u64::from(byte));
            out.push(b')');
            return;
        }
        4 if field.is_data_loc() || field.is_rel_loc() => {
            let Some(bytes) = data(field, record) else {
                out.extend_from_slice(b"<OVERFLOW>");
                return;
            };
            for (i, byte) in bytes.iter().enumerate() {
                if i > 0 {
                    out.push(b',');
                }
                hex_byte(out, *byte);
            }
            return;
        }
        2 => u64::from(u16::from_ne_bytes(take(bytes))),
        4 => u64::from(u32::from_ne_bytes(take(bytes))),
        8 => u64::from_ne_bytes(take(bytes)),
        _ => {
            out.extend_from_slice(b"<INVALID-SIZE>");
            return;
        }
    };
    // Symbols are in the upper half of the address space, so small numbers need no lookup.
    let named = symbols && field.size == 8 && value >> 63 != 0 && env.symbol(value).is_some();
    if named {
        pointer::symbol(out, value, true, false, Spec::PLAIN, env);
    } else {
        out.extend_from_slice(b"0x");
        hex(out, value);
    }
    out.extend_from_slice(b" (");
    // The kernel prints two bytes unsigned and longer values signed.
    let signed = if field.size == 4 { i64::from(value as i32) as u64 } else { value };
    number::number(out, signed, SIGNED, Spec::PLAIN);
    out.push(b')');
}

/// The bytes that a `__data_loc` or `__rel_loc` word points to; `None` if they are outside of the record.
pub(super) fn data<'a>(field: &Field, record: &'a [u8]) -> Option<&'a [u8]> {
    let word = u32::from_ne_bytes(*record.get(field.offset..)?.first_chunk()?);
    let base = if field.is_rel_loc() { field.offset + 4 } else { 0 };
    let start = base + (word & 0xffff) as usize;
    record.get(start..start + (word >> 16) as usize)
}
