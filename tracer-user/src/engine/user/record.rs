//! What programs write into `user_events_data`: the number of an event in the file's table, and a record's bytes.

use rustix::io::Errno;

use super::Engine;
use crate::{
    attach,
    buffer::Page,
    engine::{instances::Status, records::mark::Writer},
    event::InstanceId,
};

/// Bytes of the number in front.
const INDEX: usize = 4;

impl Engine {
    /// Records a write to an open file in every instance that has the event on; how much was taken. What is longer than any
    /// record can be is taken and nothing recorded, as by the kernel.
    ///
    /// # Errors
    /// `EFAULT` for a write without a number and for texts that do not lie in the record, `EINVAL` for a negative number and for
    /// what is shorter than the event's fields, `ENOENT` for a number that is none, `EBADF` while the event is off.
    pub fn user_write(&mut self, file: u64, written: &[u8], writer: Writer) -> Result<usize, Errno> {
        let (index, payload) = written.split_first_chunk::<INDEX>().ok_or(Errno::FAULT)?;
        let index = usize::try_from(i32::from_ne_bytes(*index)).map_err(|_| Errno::INVAL)?;
        let held = self
            .user
            .files
            .get(&file)
            .and_then(|table| table.held.get(index))
            .copied()
            .ok_or(Errno::NOENT)?;
        let event = held.event;
        let known = self.user.known.get(&event).ok_or(Errno::NOENT)?;
        if payload.len() < known.event.min_size() {
            return Err(Errno::INVAL);
        }
        let on: Vec<InstanceId> = self
            .numbered()
            .filter(|(_, state)| state.is_enabled(event))
            .map(|(instance, _)| instance)
            .collect();
        if on.is_empty() {
            return if held.first_age { Ok(written.len()) } else { Err(Errno::BADF) };
        }
        let Some(id) = self.registry.events().format(event, &self.facts).map(|format| format.id) else {
            return Err(Errno::NOENT);
        };
        let mut record = Vec::with_capacity(tracer_abi::COMMON_SIZE + payload.len());
        record.extend(id.to_ne_bytes());
        record.extend([0, 0]);
        record.extend(writer.pid.to_ne_bytes());
        record.extend_from_slice(payload);
        let sound = known.event.is_sound(&record);
        let mut faulted = false;
        for instance in on {
            let Some(status) = self.status(instance).filter(Status::has_session) else { continue };
            let Some(state) = self.get(instance) else { continue };
            if record.len() > Page::longest(state.page()).min(tracer_abi::MAX_PAYLOAD) {
                continue;
            }
            if !sound {
                faulted |= status.records() && !status.is_soft_off(event);
                continue;
            }
            self.hand(instance, event, &record, &attach::Writer { cpu: writer.cpu, comm: writer.comm });
        }
        self.tasks.meet(writer.pid as i32, true);
        if faulted { Err(Errno::FAULT) } else { Ok(written.len()) }
    }
}
