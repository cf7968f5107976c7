//! Changes of user events ([`UserChange`]).

use crate::engine::Engine;

/// The user events, with all that their changes change.
pub(crate) struct UserChange<'e> {
    pub(super) engine: &'e mut Engine,
}

impl<'e> UserChange<'e> {
    pub(crate) fn of(engine: &'e mut Engine) -> Self {
        Self { engine }
    }
}
