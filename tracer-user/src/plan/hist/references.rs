//! Locations of the variables that a histogram looks up at a hit.
//!
//! A variable is in the entry of the same key in another histogram's table, or in the histogram's own entry
//! (`resolve_var_refs()`).

use super::{Layout, table::TableLayout};
use crate::lang::hist::{Hist, HistId, Set};

/// A variable that is looked up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reference {
    /// The number of its owner in [`References::owners`]; None for the histogram itself.
    pub owner: Option<usize>,
    /// The owner's table.
    pub table: TableLayout,
    /// Its number among the owner's variables.
    pub slot: usize,
    /// Its offset in the owner's entries.
    pub offset: usize,
    /// Offset there of the bits that record which variables are set.
    pub set_bits: usize,
    /// Whether looking it up consumes it.
    pub once: bool,
}

/// The variables that a histogram looks up, in the order of [`Hist::references`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct References {
    /// The other histograms that own them.
    pub owners: Vec<HistId>,
    /// The variables.
    pub list: Vec<Reference>,
}

impl References {
    /// Finds the variables; None if one of the histograms does not exist.
    pub fn of(hist: &Hist, set: &Set) -> Option<Self> {
        let mut found = Self::default();
        for (reference, once) in hist.references.iter().zip(&hist.read_once) {
            let id = reference.slot.hist;
            let (owner, layout) = if id == hist.id {
                (None, Layout::of(hist))
            } else {
                let layout = Layout::of(set.hist(id)?);
                let number = found.owners.iter().position(|owner| *owner == id).unwrap_or_else(|| {
                    found.owners.push(id);
                    found.owners.len() - 1
                });
                (Some(number), layout)
            };
            found.list.push(Reference {
                owner,
                // A histogram with variables has entries that all CPUs share.
                table: TableLayout::of(&layout, 1),
                slot: reference.slot.at,
                offset: layout.slot(reference.slot.at),
                set_bits: layout.set_bits(),
                once: *once,
            });
        }
        Some(found)
    }

    /// The number of the reference to a variable of the histogram itself.
    pub fn own(&self, slot: usize) -> Option<usize> {
        self.list.iter().position(|reference| reference.owner.is_none() && reference.slot == slot)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lang::hist::{Fixed, World};

    #[test]
    fn variables_of_other_histograms_and_own_variables() {
        let world = Fixed::small();
        let mut set = Set::default();
        for (event, command) in [
            ("start", "keys=pid:a=prio,ts=common_timestamp.usecs"),
            ("end", "keys=pid:lat=common_timestamp.usecs-$ts:onmatch(test.start).lat($lat,pid,comm)"),
        ] {
            let event = world.event("test", event).unwrap();
            set.apply(&event, Some(command.as_bytes()), false, &world).unwrap();
        }
        let hists: Vec<_> = set.triggers().map(|trigger| trigger.hist.clone()).collect();
        let found = References::of(&hists[1], &set).unwrap();
        assert_eq!(found.owners, [hists[0].id]);
        // The second variable after the hit count, read once; the references of the action are to its own variables.
        let table = TableLayout { entries: 2048, key_size: 8, entry_size: 32, copies: 1 };
        let ts = Reference { owner: Some(0), table, slot: 1, offset: 16, set_bits: 24, once: true };
        assert_eq!(found.list[0], ts);
        let own: Vec<_> = found.list[1..].iter().map(|reference| (reference.owner, reference.once)).collect();
        assert_eq!(own, [(None, false); 3]);
        assert_eq!(found.own(0), Some(1));
    }
}
