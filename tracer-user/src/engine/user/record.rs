//! Records that programs write to `user_events_data`: the index of an event in the file's table, and the record's
//! bytes.

use std::sync::Arc;

use super::UserChange;
use crate::{
    buffer::Page,
    engine::{
        command::error::{CommandError, ErrorKind},
        dependents::delivery::Delivery,
        instances::Status,
        records::{common::common_fields, mark::Writer},
    },
    event::InstanceId,
};

/// Size in bytes of the index before the record.
const INDEX: usize = 4;

impl UserChange<'_> {
    /// Records a write to an open file in every instance that has the event enabled. Returns the number of bytes
    /// accepted. As in the kernel, a record that is too long for the buffer is accepted and not recorded.
    ///
    /// # Errors
    /// `EFAULT` for a write without an index and for a text outside the record, `EINVAL` for a negative index and for
    /// a record shorter than the event's fields, `ENOENT` for an unknown index, `EBADF` while the event is disabled.
    pub(crate) fn write(&mut self, file: u64, written: &[u8], thread: u32) -> Result<usize, CommandError> {
        let (index, payload) = written.split_first_chunk::<INDEX>().ok_or(ErrorKind::BadAddress)?;
        let index = usize::try_from(i32::from_ne_bytes(*index)).map_err(|_| ErrorKind::Invalid)?;
        let table = self.engine.user.files.get_mut(&file).ok_or(ErrorKind::NotFound)?;
        let held = *table.held.get(index).ok_or(ErrorKind::NotFound)?;
        let event = held.event;
        let known = self.engine.user.known.get(&event).ok_or(ErrorKind::NotFound)?;
        if payload.len() < known.event.min_size() {
            return Err(ErrorKind::Invalid.into());
        }
        let on = self.engine.instances.iter().filter(|(_, state)| state.is_enabled(event));
        let on: Vec<InstanceId> = on.map(|(instance, _)| instance).collect();
        if on.is_empty() {
            return if held.first_age { Ok(written.len()) } else { Err(ErrorKind::BadFile.into()) };
        }
        let Some(id) =
            self.engine.registry.events().format(event, &self.engine.facts).map(|format| format.id)
        else {
            return Err(ErrorKind::NotFound.into());
        };
        let writer = Writer::again(thread, &mut table.writer);
        let record = [&common_fields(id, writer.pid), payload].concat();
        let sound = known.event.is_sound(&record);
        let mut faulted = false;
        for instance in on {
            let Some(status) = self.engine.status(instance).filter(Status::has_session) else { continue };
            let Some(state) = self.engine.instances.get(instance) else { continue };
            if record.len() > Page::longest(state.page()).min(tracer_abi::MAX_PAYLOAD) {
                continue;
            }
            if !sound {
                faulted |= status.records() && !status.is_soft_off(event);
                continue;
            }
            Delivery::of(self.engine, instance, &record, writer).deliver(event);
        }
        Arc::make_mut(&mut self.engine.tasks).look_up(writer.pid as i32, true);
        if faulted { Err(ErrorKind::BadAddress.into()) } else { Ok(written.len()) }
    }
}
