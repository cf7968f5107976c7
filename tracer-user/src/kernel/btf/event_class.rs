//! The classes of events: several events can share a handler and the layout of their records.

use btf_rs::{BtfType as _, Type};

use super::{Btf, Prototype, index::HANDLER};
use crate::kernel::Error;

/// What the names of the structures of records begin with; the class of events follows.
const RECORD: &str = "trace_event_raw_";
/// What comes before the name of a field of varying length in the structure.
const VARYING: [&str; 2] = ["__data_loc_", "__rel_loc_"];

/// A field of an event's record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RecordField<'a> {
    pub(crate) name: &'a str,
    /// Byte offset in the record.
    pub(crate) offset: u32,
    /// In bytes.
    pub(crate) size: u32,
}

impl Btf {
    /// The names of the handlers that have the tracepoint's arguments and write these fields. If a handler is named after the
    /// event `name`, only that one is considered.
    pub(crate) fn handlers(
        &self,
        name: &str,
        tracepoint: &Prototype,
        fields: &[RecordField<'_>],
    ) -> Result<Vec<String>, Error> {
        let own = format!("{HANDLER}{name}");
        if let Some(id) = self.function_id(&own)? {
            let fits = self.has_arguments(id, tracepoint)? && self.has_fields(name, fields)?;
            return Ok(if fits { vec![own] } else { Vec::new() });
        }
        let Some(index) = self.index()? else { return Ok(Vec::new()) };
        let mut found = Vec::new();
        for id in index.handlers() {
            // Looking up a structure takes much longer than comparing arguments.
            if !self.has_arguments(*id, tracepoint)? {
                continue;
            }
            let Type::Func(function) = self.get(*id)? else { continue };
            let name = self.name_of(&function)?;
            let class = name.strip_prefix(HANDLER).unwrap_or_default();
            if !found.contains(&name) && self.has_fields(class, fields)? {
                found.push(name);
            }
        }
        Ok(found)
    }

    /// Whether the arguments of a handler are a tracepoint's, after the event's file.
    fn has_arguments(&self, handler: u32, tracepoint: &Prototype) -> Result<bool, Error> {
        let Type::Func(function) = self.get(handler)? else { return Ok(false) };
        let Type::FuncProto(proto) = self.get(function.get_type_id().unwrap_or(0))? else { return Ok(false) };
        if proto.parameters.len() != tracepoint.params.len() + 1 {
            return Ok(false);
        }
        let params = self.params(&proto)?;
        Ok(params.iter().skip(1).map(|param| &param.ty).eq(tracepoint.params.iter().map(|param| &param.ty)))
    }

    /// Whether the records of a class of events have these fields.
    fn has_fields(&self, class: &str, fields: &[RecordField<'_>]) -> Result<bool, Error> {
        let Some(record) = self.struct_id(&format!("{RECORD}{class}"))? else { return Ok(false) };
        for field in fields {
            let mut location = self.member_of(record, field.name)?;
            for prefix in VARYING {
                if location.is_none() {
                    location = self.member_of(record, &format!("{prefix}{}", field.name))?;
                }
            }
            if location.is_none_or(|at| (at.offset, at.ty.size) != (field.offset, field.size)) {
                return Ok(false);
            }
        }
        // The header, the fields, and where data of varying length begins.
        let members = self.member_names(record)?;
        Ok(members.iter().filter(|name| *name != "__data").count() == fields.len() + 1)
    }
}
