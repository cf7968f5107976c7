//! The programs of a session: shared, built ahead, or built for one event.

use std::sync::Arc;

use super::Session;
use crate::{
    attach::{
        AttachError, Request,
        program::builder::{Built, BulkBuilder, LoadedProgram, ProgramBuilder},
    },
    event::Slot,
};

impl Session {
    pub(crate) fn builder(&self) -> ProgramBuilder<'_> {
        ProgramBuilder { maps: &self.maps, context: &self.context }
    }

    /// The program of a request for the dispatch table: an existing one, or a new one.
    pub(super) fn shared_program(
        &mut self,
        request: &Request<'_>,
        slot: Slot,
    ) -> Result<Arc<LoadedProgram>, AttachError> {
        if let Some(program) = self.prepared.remove(&request.kind) {
            return Ok(program);
        }
        let builder = self.builder();
        let generated = builder.generate(request, slot)?;
        let Some(key) = &generated.key else { return builder.make(request, &generated) };
        if let Some(program) = self.cache.find(request.point, key) {
            return Ok(program);
        }
        let program = builder.make(request, &generated)?;
        self.cache.remember(request.point, key.clone(), &program);
        Ok(program)
    }

    /// A builder that makes programs of this session while the session is used for something else.
    pub fn bulk_builder(&self) -> BulkBuilder {
        BulkBuilder { maps: Arc::clone(&self.maps), context: self.context.clone(), known: self.cache.all() }
    }

    /// Drops the program that was made ahead for the event with this kind of records.
    pub fn forget_built(&mut self, kind: u16) {
        self.prepared.remove(&kind);
    }

    /// Stores programs for [`Session::attach`] with exactly the requests of which they were built. The kinds of the
    /// requests differ. The programs are kept until [`Session::forget_ahead`]. If one could not be made,
    /// [`Session::attach`] tries again and reports why.
    pub fn take_built(&mut self, built: Vec<Built>) {
        for Built { kind, point, key, place } in built {
            let Some(program) = place.get() else { continue };
            if let Some(key) = key {
                self.cache.remember(&point, key, program);
            }
            self.prepared.insert(kind, Arc::clone(program));
        }
    }
}
