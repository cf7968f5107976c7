//! `sort=FIELD[.ascending|.descending][,...]`: by what rows are sorted (`create_sort_keys()`).

use rustix::io::Errno;

use super::super::Span;
use super::checked::Hist;
use super::error::{ErrorKind, Log};
use super::split::Pieces;
use super::value::{Flags, Value};

/// Fields to sort by: `TRACING_MAP_SORT_KEYS_MAX`.
const SORT_MAX: usize = 2;

/// A field to sort by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SortKey {
    /// Its number among values and keys, variables left out; 0 is the hit count.
    pub field: usize,
    /// Whether greater ones come first.
    pub descending: bool,
}

impl SortKey {
    /// The field's number among all fields.
    pub fn field_of(self, hist: &Hist) -> usize {
        // Variables stand between the values and the keys.
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

/// Reads what stands behind `sort=`.
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
        let mut whole = |kind| {
            log.add(kind, b"sort=", Some(part));
            Err(Errno::INVAL)
        };
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
            log.add(ErrorKind::InvalidSortField, name.of(text), Some(name));
            return Err(Errno::INVAL);
        };
        let descending = match parts.rest().map(|direction| (direction, direction.of(text))) {
            None | Some((_, b"ascending")) => false,
            Some((_, b"descending")) => true,
            Some((culprit, direction)) => {
                log.add(ErrorKind::InvalidSortModifier, direction, Some(culprit));
                return Err(Errno::INVAL);
            }
        };
        keys.push(SortKey { field, descending });
    }
    Ok(keys)
}

/// The number of a value or key by its name.
fn find(hist: &Hist, name: &[u8]) -> Option<usize> {
    if name == b"hitcount" {
        return Some(0);
    }
    let others = hist.fields.iter().skip(1).filter(|field| !field.flags.has(Flags::VAR));
    others.map(super::value::Value::shown_name).position(|shown| shown == name).map(|at| at + 1)
}
