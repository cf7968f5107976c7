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
