//! Changes of user events ([`UserChange`]).

use crate::engine::Engine;

/// Changes of user events. Borrows the engine.
pub(crate) struct UserChange<'e> {
    pub(super) engine: &'e mut Engine,
}

impl<'e> UserChange<'e> {
    pub(crate) fn of(engine: &'e mut Engine) -> Self {
        Self { engine }
    }
}
