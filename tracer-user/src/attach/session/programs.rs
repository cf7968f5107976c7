//! The programs of a session: shared, built ahead, or built for one event.

use std::sync::{Arc, atomic::AtomicBool};

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

    /// Makes the programs of events that the caller is about to attach with exactly these requests. The requests must
    /// differ in their kinds. The programs are kept until [`Session::forget_ahead`]. If one cannot be made,
    /// [`Session::attach`] tries again and reports why.
    pub fn prepare(&mut self, requests: &[Request<'_>]) {
        let built = self.bulk_builder().build(requests, &AtomicBool::new(false));
        self.take_built(built);
    }

    /// A builder that makes programs of this session while the session is used for something else.
    pub fn bulk_builder(&self) -> BulkBuilder {
        BulkBuilder { maps: Arc::clone(&self.maps), context: self.context.clone(), known: self.cache.all() }
    }

    /// Stores programs for [`Session::attach`].
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
