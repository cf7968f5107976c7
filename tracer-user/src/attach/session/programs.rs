//! The programs of a session: shared, made ahead, or made for one event.

use std::sync::{Arc, atomic::AtomicBool};

use super::Session;
use crate::{
    attach::{
        AttachError, Request,
        program::builder::{Built, BulkBuilder, Key, ProgramBuilder, SharedProgram},
    },
    event::Slot,
};

impl Session {
    pub(in crate::attach) fn maker(&self) -> ProgramBuilder<'_> {
        ProgramBuilder { shared: &self.shared, context: &self.context }
    }

    /// The program of a request for the dispatch table: an existing one, or a new one.
    pub(in crate::attach) fn behind_gate(
        &mut self,
        request: &Request<'_>,
        slot: Slot,
    ) -> Result<Arc<SharedProgram>, AttachError> {
        if let Some(behind) = self.prepared.remove(&request.kind) {
            return Ok(behind);
        }
        let maker = self.maker();
        let coded = maker.coded(request, slot)?;
        let Some(key) = &coded.key else { return maker.make(request, &coded) };
        if let Some(behind) = self.gate.find(request.via, key) {
            return Ok(behind);
        }
        let behind = maker.make(request, &coded)?;
        self.remember(request, key.clone(), &behind)?;
        Ok(behind)
    }

    fn remember(
        &mut self,
        request: &Request<'_>,
        key: Key,
        behind: &Arc<SharedProgram>,
    ) -> Result<(), AttachError> {
        self.gate
            .remember(request.via, key, behind)
            .map_err(|cause| AttachError::new(request.format.full_name(), cause))
    }

    /// Makes the programs of events that the caller is about to attach with exactly these requests. The requests must
    /// differ in their kinds. The programs are kept until [`Session::forget_ahead`]. If one cannot be made,
    /// [`Session::attach_hook`] tries again and reports why.
    pub fn prepare(&mut self, requests: &[Request<'_>]) {
        let built = self.bulk_builder().build(requests, &AtomicBool::new(false));
        self.take_built(built);
    }

    /// A builder that makes programs of this session while the session is used for something else.
    pub fn bulk_builder(&self) -> BulkBuilder {
        BulkBuilder {
            shared: Arc::clone(&self.shared),
            context: self.context.clone(),
            known: self.gate.all_known(),
        }
    }

    /// Stores programs for [`Session::attach_hook`].
    pub fn take_built(&mut self, built: Vec<Built>) {
        for Built { kind, via, name, key, place } in built {
            let Some(behind) = place.get() else { continue };
            let remembered = key.is_none_or(|key| {
                let done = self.gate.remember(&via, key, behind);
                done.inspect_err(|cause| tracing::debug!("{name}: {cause}")).is_ok()
            });
            if remembered {
                self.prepared.insert(kind, Arc::clone(behind));
            }
        }
    }
}
