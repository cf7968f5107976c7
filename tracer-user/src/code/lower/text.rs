//! Tests of text.

use super::{Exits, Lower, LowerError, memory::Fetched};
use crate::plan::filter::{Pattern, Text};

/// Text that was fetched.
#[derive(Clone, Debug, Default)]
pub(super) struct Texts {
    pub(super) fetched: Fetched<usize>,
}

impl Lower<'_> {
    pub(super) fn text(
        &mut self,
        _text: Text,
        _pattern: &Pattern,
        _not: bool,
        _exits: Exits,
    ) -> Result<(), LowerError> {
        Err(LowerError::NoData)
    }
}
