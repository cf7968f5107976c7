//! Facts about the code on all paths to a point: which values and texts have been fetched there.
//!
//! For each label, [`Facts`] keeps the set of facts that all jumps to it share. Code after the label fetches only
//! values outside of that set. A value may be fetched twice on some path, but it is never used before it is fetched.

use std::collections::{BTreeSet, HashMap};

use crate::code::asm::Label;

/// Something that was fetched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Fact {
    /// The group of kernel memory with this number is on the stack.
    Group(usize),
    /// The text of the region with this number is in scratch memory.
    Text(usize),
    /// The name of the hitting thread is on the stack.
    Comm,
}

/// The facts at each point of a function.
#[derive(Clone, Debug)]
pub(super) struct Facts {
    /// The facts at the current point; None where no path arrives.
    now: Option<BTreeSet<Fact>>,
    at: HashMap<Label, BTreeSet<Fact>>,
}

impl Default for Facts {
    fn default() -> Self {
        Self { now: Some(BTreeSet::new()), at: HashMap::new() }
    }
}

impl Facts {
    pub(super) fn has(&self, fact: Fact) -> bool {
        self.now.as_ref().is_some_and(|now| now.contains(&fact))
    }

    pub(super) fn add(&mut self, fact: Fact) {
        if let Some(now) = &mut self.now {
            now.insert(fact);
        }
    }

    /// Forgets the facts at the current point that fail the test.
    pub(super) fn retain(&mut self, test: impl Fn(Fact) -> bool) {
        if let Some(now) = &mut self.now {
            now.retain(|fact| test(*fact));
        }
    }

    /// Forgets all texts and the thread's name, also at labels that are not bound yet.
    pub(super) fn forget_texts(&mut self) {
        for facts in self.now.iter_mut().chain(self.at.values_mut()) {
            facts.retain(|fact| matches!(fact, Fact::Group(_)));
        }
    }

    /// Records a jump from the current point to the label.
    pub(super) fn leave(&mut self, to: Label) {
        let Some(now) = &self.now else { return };
        self.at
            .entry(to)
            .and_modify(|there| there.retain(|fact| now.contains(fact)))
            .or_insert_with(|| now.clone());
    }

    /// Ends the current path.
    pub(super) fn end(&mut self) {
        self.now = None;
    }

    /// Binds the label to the current point.
    pub(super) fn arrive(&mut self, label: Label) {
        match (&mut self.now, self.at.remove(&label)) {
            (Some(now), Some(there)) => now.retain(|fact| there.contains(fact)),
            (now @ None, there) => *now = there,
            (Some(_), None) => {}
        }
    }
}
