//! Tracing synthetic events: in one call, or piece by piece (kernel/trace/trace_events_synth.c, section 7.2 of the document).
//!
//! An event that is off, or that a trigger has turned off, takes no values and says nothing about it. One that is on goes
//! through its filter and triggers in the instance that its file belongs to; where nothing is recorded there at the moment,
//! that is `EINVAL`, as in the kernel.
//!
//! ```no_run
//! use tracer_user::api::{Errno, Files, event_file::*, trace::*};
//!
//! let place = Files::at("/sys/kernel/tracing");
//! let file = trace_get_event_file(&place, None, "synthetic", "schedtest")?;
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
    place::{FieldKind, SynthField},
};
pub use crate::event::synthetic::Value;

/// `ENOTSUPP`, include/linux/errno.h, which user space has no name for.
pub const ENOTSUPP: Errno = Errno::from_raw_os_error(524);

/// Traces an event with one value a field, in order.
///
/// The kernel traces a record of whatever is in memory when the values are not as many as the fields; here there is none.
///
/// # Errors
/// `EINVAL` when the values are not as many as the fields or not of their kinds, or nothing is recorded; `ENODEV` when the
/// event is gone.
pub fn synth_event_trace(file: &TraceEventFile<'_>, vals: &[Value<'_>]) -> Result<(), Errno> {
    file.held().emit(vals)
}

/// The same; in the kernel one takes its values as arguments and the other one as an array.
///
/// # Errors
/// As for [`synth_event_trace`].
pub fn synth_event_trace_array(file: &TraceEventFile<'_>, vals: &[Value<'_>]) -> Result<(), Errno> {
    synth_event_trace(file, vals)
}

/// A value that a piecewise trace was given.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Given {
    Number(u64),
    Text(Vec<u8>),
}

/// How values have been added so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Adds {
    Next,
    ByName,
}

/// An event that is traced piece by piece. It is traced when this is dropped, if not by [`synth_event_trace_end`] before,
/// whatever became of the pieces; fields that were given no value are 0 or empty.
#[derive(Debug)]
pub struct SynthEventTraceState<'a> {
    file: &'a TraceEventFile<'a>,
    /// None when the event was off at the start.
    fields: Option<Vec<(SynthField, Given)>>,
    next: usize,
    adds: Option<Adds>,
    ended: bool,
}

/// Begins to trace an event.
///
/// # Errors
/// `ENOTSUPP` for an event with a field of any length; `EINVAL` for one that is not synthetic and where nothing is recorded;
/// `ENODEV` when it is gone.
pub fn synth_event_trace_start<'a>(file: &'a TraceEventFile<'a>) -> Result<SynthEventTraceState<'a>, Errno> {
    let mut state = SynthEventTraceState { file, fields: None, next: 0, adds: None, ended: true };
    if file.held().is_on()? {
        let fields = file.held().fields()?;
        if fields.iter().any(|field| matches!(field.kind, FieldKind::DynText | FieldKind::Stack)) {
            return Err(ENOTSUPP);
        }
        if !file.held().is_recording()? {
            return Err(Errno::INVAL);
        }
        let empty = |field: SynthField| match field.kind {
            FieldKind::Number => (field, Given::Number(0)),
            _ => (field, Given::Text(Vec::new())),
        };
        state.fields = Some(fields.into_iter().map(empty).collect());
    }
    state.ended = false;
    Ok(state)
}

impl SynthEventTraceState<'_> {
    fn add(&mut self, name: Option<&str>, value: Value<'_>) -> Result<(), Errno> {
        let adds = if name.is_some() { Adds::ByName } else { Adds::Next };
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
            (FieldKind::Number, Value::Number(number)) => Given::Number(number),
            (FieldKind::Text, Value::Text(text)) => Given::Text(text.to_vec()),
            _ => return Err(Errno::INVAL),
        };
        Ok(())
    }

    fn end(&mut self) -> Result<(), Errno> {
        if std::mem::replace(&mut self.ended, true) {
            return Ok(());
        }
        let Some(fields) = &self.fields else { return Ok(()) };
        let values = fields.iter().map(|(_, given)| match given {
            Given::Number(number) => Value::Number(*number),
            Given::Text(text) => Value::Text(text),
        });
        let values: Vec<Value<'_>> = values.collect();
        self.file.held().emit(&values)
    }
}

impl Drop for SynthEventTraceState<'_> {
    fn drop(&mut self) {
        if let Err(errno) = self.end() {
            tracing::warn!("{}: {errno}", self.file.name());
        }
    }
}

/// Gives the next field its value.
///
/// # Errors
/// `EINVAL` behind the last field, for a value of another kind, and after [`synth_event_add_val`].
pub fn synth_event_add_next_val<'v>(
    val: impl Into<Value<'v>>,
    state: &mut SynthEventTraceState<'_>,
) -> Result<(), Errno> {
    state.add(None, val.into())
}

/// Gives a field its value.
///
/// The kernel gives the value to the last field when there is none of this name.
///
/// # Errors
/// `EINVAL` without such a field, for a value of another kind, and after [`synth_event_add_next_val`].
pub fn synth_event_add_val<'v>(
    field_name: &str,
    val: impl Into<Value<'v>>,
    state: &mut SynthEventTraceState<'_>,
) -> Result<(), Errno> {
    state.add(Some(field_name), val.into())
}

/// Traces the event with the values that were added.
///
/// # Errors
/// `EINVAL` when nothing is recorded any more (the kernel reserves the record at the start); `ENODEV` when the event is gone.
pub fn synth_event_trace_end(mut state: SynthEventTraceState<'_>) -> Result<(), Errno> {
    state.end()
}
