//! Emitting synthetic events: in one call or piece by piece (kernel/trace/trace_events_synth.c, section 7.2 of the
//! document).
//!
//! A disabled event, or one that a trigger has disabled, discards values without an error. An enabled event passes
//! its filter and triggers in the instance that its file belongs to. As in the kernel, the call fails with `EINVAL`
//! while that instance does not record.
//!
//! ```no_run
//! use tracer_user::api::{Errno, Files, event_file::*, trace::*};
//!
//! let files = Files::at("/sys/kernel/tracing");
//! let file = trace_get_event_file(&files, None, "synthetic", "schedtest")?;
//! trace_array_set_clr_event(file.tr(), Some("synthetic"), Some("schedtest"), true)?;
//! synth_event_trace(&file, &[444.into(), "clackers".into(), 1_000_000.into()])?;
//! let mut state = synth_event_trace_start(&file)?;
//! synth_event_add_val("ts_ns", 1_000_000, &mut state)?;
//! synth_event_add_val("next_comm_field", "silly putty", &mut state)?;
//! synth_event_trace_end(state)?;
//! # Ok::<(), Errno>(())
//! ```

use rustix::io::Errno;

use super::{
    event_file::TraceEventFile,
    files::{FieldKind, SynthField},
};
pub use crate::event::synthetic::Value;

/// `ENOTSUPP` of include/linux/errno.h, which user space does not define.
pub const ENOTSUPP: Errno = Errno::from_raw_os_error(524);

/// Emits an event with one value for each field, in order.
///
/// If the number of values is wrong, the kernel records uninitialised memory. Here nothing is recorded.
///
/// # Errors
/// `EINVAL` if the values do not match the fields in number or kind, and while nothing is recorded; `ENODEV` if the
/// event was deleted.
pub fn synth_event_trace(file: &TraceEventFile<'_>, vals: &[Value<'_>]) -> Result<(), Errno> {
    file.opened.emit(vals)
}

/// Like [`synth_event_trace`]. In the kernel, one takes its values as arguments and the other as an array.
///
/// # Errors
/// As for [`synth_event_trace`].
pub fn synth_event_trace_array(file: &TraceEventFile<'_>, vals: &[Value<'_>]) -> Result<(), Errno> {
    synth_event_trace(file, vals)
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum AddedValue {
    Number(u64),
    Text(Vec<u8>),
}

/// The method by which values have been added so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AddOrder {
    Next,
    ByName,
}

/// An event that is emitted piece by piece. It is emitted by [`synth_event_trace_end`], or else when this value is
/// dropped, even if a piece was refused. Fields without a value are 0 or empty.
#[derive(Debug)]
pub struct SynthEventTraceState<'a> {
    file: &'a TraceEventFile<'a>,
    /// `None` if the event was disabled at the start, and after the end.
    fields: Option<Vec<(SynthField, AddedValue)>>,
    next: usize,
    adds: Option<AddOrder>,
}

/// Begins to emit an event.
///
/// # Errors
/// `ENOTSUPP` for an event with a field of variable length; `EINVAL` for an event that is not synthetic, and while
/// nothing is recorded; `ENODEV` if it was deleted.
pub fn synth_event_trace_start<'a>(file: &'a TraceEventFile<'a>) -> Result<SynthEventTraceState<'a>, Errno> {
    let mut state = SynthEventTraceState { file, fields: None, next: 0, adds: None };
    if file.opened.is_on()? {
        let fields = file.opened.fields()?;
        if fields.iter().any(|field| matches!(field.kind, FieldKind::DynText | FieldKind::Stack)) {
            return Err(ENOTSUPP);
        }
        if !file.opened.is_recording()? {
            return Err(Errno::INVAL);
        }
        let empty = |field: SynthField| match field.kind {
            FieldKind::Number => (field, AddedValue::Number(0)),
            _ => (field, AddedValue::Text(Vec::new())),
        };
        state.fields = Some(fields.into_iter().map(empty).collect());
    }
    Ok(state)
}

impl SynthEventTraceState<'_> {
    fn add(&mut self, name: Option<&str>, value: Value<'_>) -> Result<(), Errno> {
        let adds = if name.is_some() { AddOrder::ByName } else { AddOrder::Next };
        if self.adds.is_some_and(|before| before != adds) {
            return Err(Errno::INVAL);
        }
        self.adds = Some(adds);
        let Some(fields) = &mut self.fields else { return Ok(()) };
        let place = if let Some(name) = name {
            fields.iter().position(|(field, _)| field.name == name).ok_or(Errno::INVAL)?
        } else {
            self.next += 1;
            self.next - 1
        };
        let (field, given) = fields.get_mut(place).ok_or(Errno::INVAL)?;
        *given = match (field.kind, value) {
            (FieldKind::Number, Value::Number(number)) => AddedValue::Number(number),
            (FieldKind::Text, Value::Text(text)) => AddedValue::Text(text.to_vec()),
            _ => return Err(Errno::INVAL),
        };
        Ok(())
    }

    fn end(&mut self) -> Result<(), Errno> {
        let Some(fields) = self.fields.take() else { return Ok(()) };
        let values = fields.iter().map(|(_, given)| match given {
            AddedValue::Number(number) => Value::Number(*number),
            AddedValue::Text(text) => Value::Text(text),
        });
        let values: Vec<Value<'_>> = values.collect();
        self.file.opened.emit(&values)
    }
}

impl Drop for SynthEventTraceState<'_> {
    fn drop(&mut self) {
        if let Err(errno) = self.end() {
            tracing::warn!("{}: {errno}", self.file.name());
        }
    }
}

/// Sets the value of the next field.
///
/// # Errors
/// `EINVAL` after the last field, for a value of another kind, and after [`synth_event_add_val`].
pub fn synth_event_add_next_val<'v>(
    val: impl Into<Value<'v>>,
    state: &mut SynthEventTraceState<'_>,
) -> Result<(), Errno> {
    state.add(None, val.into())
}

/// Sets the value of the field of this name.
///
/// If no field has this name, the kernel sets the last field. Here it is an error.
///
/// # Errors
/// `EINVAL` for an unknown field, for a value of another kind, and after [`synth_event_add_next_val`].
pub fn synth_event_add_val<'v>(
    field_name: &str,
    val: impl Into<Value<'v>>,
    state: &mut SynthEventTraceState<'_>,
) -> Result<(), Errno> {
    state.add(Some(field_name), val.into())
}

/// Emits the event with the values that were added.
///
/// # Errors
/// `EINVAL` if nothing is recorded any more (the kernel reserves the record at the start); `ENODEV` if the event was
/// deleted.
pub fn synth_event_trace_end(mut state: SynthEventTraceState<'_>) -> Result<(), Errno> {
    state.end()
}
