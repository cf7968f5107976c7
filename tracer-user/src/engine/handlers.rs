//! Plans for raw tracepoints that are derived from the kernel's own handlers of events.
//!
//! A handler's instructions show where each field of a record comes from ([`kernel::handler`](crate::kernel::handler)),
//! so these plans need no table and no trial.

use std::collections::HashMap;

use crate::{
    attach::TextReader,
    event::Format,
    kernel::{
        self, Btf,
        btf::RecordField,
        handler::{self, Callees, InstructionSet, Stores, Unfollowed},
    },
    plan::{
        derived::{self, Underived},
        source::FieldSource,
    },
};

/// Why no plan is derived for an event.
#[derive(Clone, Debug, thiserror::Error)]
pub enum NoDerivedPlan {
    /// Programs cannot read the kernel's instructions, or addresses are hidden.
    #[error("the kernel's instructions cannot be read")]
    NoReader,
    /// The kernel shows no BTF.
    #[error("the kernel shows no BTF (CONFIG_DEBUG_INFO_BTF)")]
    NoBtf,
    /// The kernel's types could not be read.
    #[error("{0}")]
    Types(String),
    /// BTF does not have the tracepoint.
    #[error("BTF has no tracepoint of this name")]
    NoTracepoint,
    /// No handler has the tracepoint's arguments and makes records with these fields.
    #[error("BTF has no handler for its arguments and fields")]
    NoHandler,
    /// Several handlers come into question, and their plans differ.
    #[error("several handlers match its arguments and fields, and their plans differ")]
    Ambiguous,
    /// The handler is not understood.
    #[error("its handler is not followed: {0}")]
    Unfollowed(Unfollowed),
    /// A field has no source.
    #[error("{field}: {why}")]
    Field {
        /// The field's name.
        field: String,
        /// The reason.
        why: Underived,
    },
}

/// Follows handlers of the running kernel.
#[derive(Debug)]
pub struct Handlers {
    text: TextReader,
    set: InstructionSet,
    callees: Callees,
    /// What handlers store, by name.
    known: HashMap<String, Result<Stores, Unfollowed>>,
}

impl Handlers {
    /// Loads the programs that read the kernel; `None` if it refuses them or hides addresses.
    pub fn new() -> Option<Self> {
        let text =
            TextReader::new().inspect_err(|error| tracing::debug!("reading the kernel: {error}")).ok()?;
        let (set, callees) = (InstructionSet::NATIVE?, text.callees()?);
        Some(Self { text, set, callees, known: HashMap::new() })
    }

    /// The sources of all fields of an event at its raw tracepoint.
    ///
    /// # Errors
    /// The reason why there is no plan.
    pub fn plan(&mut self, format: &Format, btf: &Btf) -> Result<Vec<FieldSource>, NoDerivedPlan> {
        let types = |error: kernel::Error| NoDerivedPlan::Types(error.to_string());
        let tracepoint = btf.tracepoint(&format.name).map_err(types)?.ok_or(NoDerivedPlan::NoTracepoint)?;
        let fields: Vec<RecordField<'_>> = format
            .fields
            .iter()
            .map(|field| RecordField {
                name: &field.name,
                offset: field.offset as u32,
                size: field.size as u32,
            })
            .collect();
        let mut found: Option<Vec<FieldSource>> = None;
        for name in btf.handlers(&format.name, &tracepoint, &fields).map_err(types)? {
            let stores = self.stores(&name).map_err(NoDerivedPlan::Unfollowed)?;
            let plan = derived::sources(format, &tracepoint, stores)
                .map_err(|(field, why)| NoDerivedPlan::Field { field, why })?;
            match &found {
                Some(other) if *other != plan => return Err(NoDerivedPlan::Ambiguous),
                _ => found = Some(plan),
            }
        }
        found.ok_or(NoDerivedPlan::NoHandler)
    }

    /// What the handler of this name stores.
    fn stores(&mut self, name: &str) -> Result<&Stores, Unfollowed> {
        let stores = self.known.entry(name.to_owned()).or_insert_with(|| {
            let address = self.text.address(name).ok_or(Unfollowed::NoSymbol)?;
            handler::follow(address, self.set, &self.callees, &mut self.text)
        });
        stores.as_ref().map_err(Clone::clone)
    }
}
