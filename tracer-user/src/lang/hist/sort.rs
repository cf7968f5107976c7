//! Parser of `sort=FIELD[.ascending|.descending][,...]`, the order of the rows (`create_sort_keys()`).

use rustix::io::Errno;

use super::super::Span;
use super::checked::Hist;
use super::error::{ErrorKind, Log};
use super::split::Pieces;
use super::value::{Flags, Value};

/// Maximum number of sort fields: `TRACING_MAP_SORT_KEYS_MAX`.
const SORT_MAX: usize = 2;

/// A sort field.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SortKey {
    /// Number of the field among values and keys, without variables; 0 is the hit count.
    pub field: usize,
    /// Whether larger values come first.
    pub descending: bool,
}

impl SortKey {
    /// Number of the field in [`Hist::fields`].
    pub fn field_of(self, hist: &Hist) -> usize {
        // The variables are between the values and the keys.
        let first_key = hist.values - hist.variables;
        if self.field >= first_key { self.field + hist.variables } else { self.field }
    }

    pub(super) fn read_back(self, hist: &Hist) -> Vec<u8> {
        let mut text = match self.field {
            0 => b"hitcount".to_vec(),
            _ => hist.fields.get(self.field_of(hist)).map(Value::read_back).unwrap_or_default(),
        };
        if self.descending {
            text.extend(b".descending");
        }
        text
    }
}

/// Parses the text after `sort=`.
pub(super) fn read(
    hist: &Hist,
    text: &[u8],
    part: Option<Span>,
    log: &mut Log,
) -> Result<Vec<SortKey>, Errno> {
    let Some(part) = part else { return Ok(vec![SortKey::default()]) };
    let mut keys = Vec::new();
    let mut pieces = Pieces::of(text, part);
    for number in 0..SORT_MAX {
        let Some(piece) = pieces.up_to(b',') else { break };
        let mut whole = |kind| Err(log.add(kind, b"sort=", Some(part)));
        if piece.is_empty() {
            return whole(ErrorKind::EmptySortField);
        }
        if number == SORT_MAX - 1 && pieces.rest().is_some() {
            return whole(ErrorKind::TooManySortFields);
        }
        let mut parts = Pieces::of(text, piece);
        let name = parts.up_to(b'.').unwrap_or(piece);
        if name.is_empty() {
            return whole(ErrorKind::EmptySortField);
        }
        let Some(field) = find(hist, name.of(text)) else {
            return Err(log.add(ErrorKind::InvalidSortField, name.of(text), Some(name)));
        };
        let descending = match parts.rest().map(|direction| (direction, direction.of(text))) {
            None | Some((_, b"ascending")) => false,
            Some((_, b"descending")) => true,
            Some((culprit, direction)) => {
                return Err(log.add(ErrorKind::InvalidSortModifier, direction, Some(culprit)));
            }
        };
        keys.push(SortKey { field, descending });
    }
    Ok(keys)
}

/// Finds the number of a value or key by its name.
fn find(hist: &Hist, name: &[u8]) -> Option<usize> {
    if name == b"hitcount" {
        return Some(0);
    }
    let others = hist.fields.iter().skip(1).filter(|field| !field.flags.has(Flags::VAR));
    others.map(super::value::Value::shown_name).position(|shown| shown == name).map(|at| at + 1)
}
