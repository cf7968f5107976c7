//! The text of synthetic events' records. It follows the kernel's function instead of the print fmt
//! (`print_synth_event()`, kernel/trace/trace_events_synth.c).

use super::env::RenderEnv;
use super::event_text::probe;
use super::printer::Printer;
use super::printf::number::{decimal, hex, prefixed_hex};
use super::printf::pointer::{take, until_nul};

/// One field.
#[derive(Clone, Debug)]
pub struct SynthValue {
    /// Name.
    pub name: String,
    /// Byte offset in the record.
    pub offset: usize,
    /// Conversion, including its percent sign.
    pub conversion: &'static str,
    /// Kind of the field.
    pub kind: SynthKind,
}

/// The kind of a field.
#[derive(Clone, Debug)]
pub enum SynthKind {
    /// A number of this many bytes.
    Number(usize),
    /// Allocation flags, with a printer of their names.
    Flags(usize, Box<Printer>),
    /// Text in this many bytes of the record.
    Text(usize),
    /// Text after the fixed part of the record.
    DynText,
    /// Addresses after the fixed part of the record, preceded by their count.
    Stack,
}

/// Writes the text after the event's name.
pub(super) fn write(
    values: &[SynthValue],
    record: &[u8],
    env: &dyn RenderEnv,
    verbose: bool,
    out: &mut Vec<u8>,
) {
    for (at, value) in values.iter().enumerate() {
        if verbose {
            out.extend_from_slice(value.conversion.as_bytes());
            out.push(b' ');
        }
        out.extend(value.name.chars().map(|c| c as u8));
        out.push(b'=');
        let bytes = record.get(value.offset..).unwrap_or_default();
        match &value.kind {
            SynthKind::Number(size) | SynthKind::Flags(size, _) => {
                number(out, bytes, *size, value.conversion);
            }
            SynthKind::Text(size) => {
                out.extend_from_slice(until_nul(bytes.get(..*size).unwrap_or(bytes)));
            }
            SynthKind::DynText => out.extend_from_slice(until_nul(pointed_data(record, bytes))),
            SynthKind::Stack => {
                stack(out, pointed_data(record, bytes), env);
                continue;
            }
        }
        if at + 1 < values.len() {
            out.push(b' ');
        }
        if let SynthKind::Flags(_, names) = &value.kind {
            out.extend_from_slice(b" (");
            names.text(record, env, out);
            out.push(b')');
        }
    }
}

/// Writes a number as the kernel passes it to the conversion: a number of one or two bytes is never negative.
fn number(out: &mut Vec<u8>, bytes: &[u8], size: usize, conversion: &str) {
    let value = u64::from_ne_bytes(take(bytes.get(..size).unwrap_or(bytes)));
    match (size, conversion.ends_with('d')) {
        (4, true) => decimal(out, value as i32),
        (_, true) => decimal(out, value.cast_signed()),
        _ if conversion.ends_with('x') => hex(out, value),
        _ => decimal(out, value),
    }
}

/// The bytes that a location word points to.
fn pointed_data<'a>(record: &'a [u8], word: &[u8]) -> &'a [u8] {
    let word = u32::from_ne_bytes(take(word));
    let (start, length) = ((word & 0xffff) as usize, (word >> 16) as usize);
    record.get(start..record.len().min(start + length)).unwrap_or_default()
}

/// Writes the addresses after the first word, which is their number.
fn stack(out: &mut Vec<u8>, bytes: &[u8], env: &dyn RenderEnv) {
    out.extend_from_slice(b"STACK:\n");
    for address in bytes.as_chunks().0.iter().skip(1).map(|bytes| u64::from_ne_bytes(*bytes)) {
        out.extend_from_slice(b"=> ");
        match env.symbol(address) {
            Some(symbol) => probe::with_offset(out, &symbol),
            None => prefixed_hex(out, address),
        }
        out.push(b'\n');
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(name: &str, offset: usize, conversion: &'static str, kind: SynthKind) -> SynthValue {
        SynthValue { name: name.to_owned(), offset, conversion, kind }
    }

    #[test]
    fn records_as_the_kernel_prints_them() {
        let mut record = vec![0; 8];
        record.extend((-2_i64).to_ne_bytes());
        record.extend(*b"bash\0xyz");
        record.extend((32_u64 | 3 << 16).to_ne_bytes());
        record.extend(*b"ls\0");
        let values = [
            value("a", 8, "%d", SynthKind::Number(2)),
            value("b", 8, "%d", SynthKind::Number(4)),
            value("c", 8, "%llu", SynthKind::Number(8)),
            value("d", 8, "%x", SynthKind::Number(4)),
            value("e", 16, "%s", SynthKind::Text(256)),
            value("f", 24, "%s", SynthKind::DynText),
        ];
        let show = |verbose| {
            let mut out = Vec::new();
            write(&values, &record, &(), verbose, &mut out);
            String::from_utf8(out).unwrap()
        };
        assert_eq!(show(false), "a=65534 b=-2 c=18446744073709551614 d=fffffffe e=bash f=ls");
        assert!(show(true).starts_with("%d a=65534 %d b=-2 %llu c="));
        let stack: Vec<u8> =
            [0, 16 | 24 << 16, 2, 0x10, 0x20].into_iter().flat_map(u64::to_ne_bytes).collect();
        let mut out = Vec::new();
        write(&[value("s", 8, "%s", SynthKind::Stack)], &stack, &(), false, &mut out);
        assert_eq!(String::from_utf8(out).unwrap(), "s=STACK:\n=> 0x10\n=> 0x20\n");
    }
}
