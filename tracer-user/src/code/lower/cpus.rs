//! Tests of CPUs against a set.

use super::{Exits, Lower, LowerError};
use crate::plan::filter::{CpusOp, CpusSubject};

impl Lower<'_> {
    pub(super) fn cpus(
        &mut self,
        _subject: CpusSubject,
        _op: CpusOp,
        _set: &[u32],
        _exits: Exits,
    ) -> Result<(), LowerError> {
        Err(LowerError::NoData)
    }
}
