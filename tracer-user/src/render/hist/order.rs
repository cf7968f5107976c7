//! The order of a histogram's rows (`tracing_map_sort_entries()`): by the sort fields. Rows equal in these are ordered
//! by the bytes of their keys.

use std::cmp::Ordering;

use crate::event::FieldClass;
use crate::lang::hist::{Flags, Hist, SortKey, Value};
use crate::plan::hist::{KeyPart, Layout};
use crate::render::fmt::CType;
use crate::render::printf::pointer::until_nul;

type Row = (Vec<u8>, Vec<u8>);

/// Sorts the rows.
pub(super) fn sorted<'a>(hist: &Hist, layout: &Layout, rows: &'a [Row]) -> Vec<&'a Row> {
    let mut rows: Vec<&Row> = rows.iter().collect();
    // Makes the order of equal rows independent of the order in the table.
    rows.sort_by(|a, b| a.0.cmp(&b.0));
    rows.sort_by(|a, b| {
        let by = |ordering: Ordering, key: &SortKey| ordering.then_with(|| compare(*key, hist, layout, a, b));
        hist.sort.iter().fold(Ordering::Equal, by)
    });
    rows
}

fn compare(key: SortKey, hist: &Hist, layout: &Layout, a: &Row, b: &Row) -> Ordering {
    let ordering = if key.field < layout.sums {
        Layout::sum(&a.1, key.field).cmp(&Layout::sum(&b.1, key.field))
    } else {
        let at = key.field - layout.sums;
        match (hist.keys().get(at), layout.keys.get(at)) {
            (Some(value), Some(part)) => compare_keys(value, *part, &a.0, &b.0),
            _ => Ordering::Equal,
        }
    };
    if key.descending { ordering.reverse() } else { ordering }
}

/// Compares one part of two keys by its field's type.
fn compare_keys(value: &Value, part: KeyPart, a: &[u8], b: &[u8]) -> Ordering {
    let (a, b) = (part.of_key(a), part.of_key(b));
    if value.flags.has(Flags::STACKTRACE) {
        return Ordering::Equal;
    }
    let (size, signed) = match &value.field {
        Some(field) if value.flags.has(Flags::CPU) || field.size == 0 => (value.size as usize, value.signed),
        Some(field) if field.class.is_string() || field.class == FieldClass::PtrString => {
            return until_nul(a).cmp(until_nul(b));
        }
        Some(field) => (field.size, field.signed),
        None => (value.size as usize, value.signed),
    };
    match number(a, size, signed).zip(number(b, size, signed)) {
        Some((a, b)) => a.cmp(&b),
        None => Ordering::Equal,
    }
}

/// Reads a number of the size that sorting uses; `None` for other sizes.
fn number(bytes: &[u8], size: usize, signed: bool) -> Option<i128> {
    let word = u64::from_ne_bytes(*bytes.first_chunk()?);
    let size = u8::try_from(size).ok().filter(|size| matches!(size, 1 | 2 | 4 | 8))?;
    let value = CType { size, signed }.wrap(word);
    Some(if signed { i128::from(value.cast_signed()) } else { i128::from(value) })
}
