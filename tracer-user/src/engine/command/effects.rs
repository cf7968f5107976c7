//! Effects of changes outside the engine.

use crate::engine::user::PendingUpdates;

/// When changed settings must be saved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Saving {
    /// Nothing changed.
    #[default]
    Nothing,
    /// Soon: programs changed user events, which can happen often.
    Soon,
    /// Before the client is answered.
    Now,
}

/// The effects of changes that no caller has taken yet.
#[derive(Debug)]
pub(crate) struct PendingEffects {
    saving: Saving,
    rings: bool,
    /// Whether the rules for marks may be outdated. Each step ends with their publication.
    marks_stale: bool,
}

impl Default for PendingEffects {
    fn default() -> Self {
        Self { saving: Saving::Nothing, rings: false, marks_stale: true }
    }
}

impl PendingEffects {
    /// Marks the settings as changed.
    pub(crate) fn touch(&mut self) {
        self.saving = Saving::Now;
        self.marks_stale = true;
    }

    /// Marks the settings as changed by a program.
    pub(crate) fn touch_by_program(&mut self) {
        self.saving = self.saving.max(Saving::Soon);
        self.marks_stale = true;
    }

    /// Marks the rules for marks as outdated.
    pub(crate) fn stale_marks(&mut self) {
        self.marks_stale = true;
    }

    /// Whether the rules for marks may be outdated. They are not any more after this.
    pub(crate) fn take_stale_marks(&mut self) -> bool {
        std::mem::take(&mut self.marks_stale)
    }

    /// Adds the effects of a new session.
    pub(crate) fn add_session(&mut self) {
        self.rings = true;
        self.marks_stale = true;
    }

    /// Takes the effects for the caller, with updates for programs.
    pub(super) fn take(&mut self, new_ring: bool, updates: PendingUpdates) -> Effects {
        let (saving, rings) = (std::mem::take(&mut self.saving), std::mem::take(&mut self.rings));
        Effects { saving, rings: rings | new_ring, updates }
    }
}

/// Effects of changes outside the engine.
#[derive(Debug, Default)]
#[must_use]
pub struct Effects {
    /// When the settings must be saved.
    pub saving: Saving,
    /// Whether there are new rings to watch ([`Engine::rings`]).
    pub rings: bool,
    /// Updates for programs with user events.
    pub updates: PendingUpdates,
}
