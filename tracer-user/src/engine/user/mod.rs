//! User events: events that programs register through `user_events_data`, and the records that they write (the
//! kernel's trace_events_user.c, and docs/reference/user-events.md).
//!
//! An event exists as long as it has a holder: an open file that registered it, a process with a registered bit
//! ([`spaces`]), or an instance that has it enabled. A persistent event (of `dynamic_events`, or of the 6.1
//! interface) exists until it is deleted. Nothing here waits for a client. A program's memory is read before a
//! request gets here, and writes are queued in [`ClientMemory`](crate::engine::client_memory::ClientMemory), whose
//! ticket reports when they are done.

mod caller;
mod change;
mod enabler_list;
mod page;
mod record;
mod register;
mod spaces;
pub(crate) mod user_events;

use std::{
    fmt::Write as _,
    time::{Duration, Instant},
};

pub use caller::{Access, Answer, Caller, Request};
pub(crate) use change::UserChange;
pub use register::{Layout, Registered, Registration};
pub use user_events::{PendingUpdates, UserEvents};

pub use self::page::StatusBytes;
use self::{page::EVENTS_MAX, user_events::Known};
use crate::{
    buffer::clock::monotonic,
    engine::{
        command::error::{CommandError, ErrorKind},
        instances::Instances,
        operations::changes::Definitions,
        registry::table::{EventChanges, EventDefinition},
    },
    event::{
        EventId, InstanceId,
        user::{Event, MULTI_SYSTEM, SYSTEM},
    },
    lang::{ctype, define::Line, user::Command},
};

/// The start of a line of `dynamic_events` that defines a user event.
const PREFIX: &[u8] = b"u:";
/// Nanoseconds after a change during which a child may have been born with the previous state.
const SETTLING: u64 = 2_000_000_000;
/// Time limit for processing births and ends of processes, and the limit if a request waits for it.
const SLICE: Duration = Duration::from_millis(5);
const SLICE_OF_REQUEST: Duration = Duration::from_millis(25);

impl UserChange<'_> {
    /// Removes the table of a closed file, and the events without another holder.
    pub(crate) fn close(&mut self, file: u64) {
        for held in self.engine.user.files.remove(&file).map(|table| table.held).unwrap_or_default() {
            let known = self.engine.user.known.get_mut(&held.event);
            if let Some(holding) = known.and_then(|known| known.holders.get_mut(&held.payer)) {
                holding.files = holding.files.saturating_sub(1);
            }
            self.drop_holder(held.event);
        }
    }
}

/// The content of `user_events_status`. Events with a bit in the page are listed as on 6.1, others as on later kernels.
pub(crate) fn status(user: &UserEvents, instances: &Instances) -> Vec<u8> {
    let mut text = String::new();
    let mut busy = 0;
    for (event, known) in &user.known {
        if let Some(bit) = known.bit {
            let _ = write!(text, "{bit}:");
        }
        text += &known.event.tracepoint();
        if instances.is_enabled(*event) {
            text += " # Used by ftrace";
            busy += 1;
        }
        text.push('\n');
    }
    let _ = write!(text, "\nActive: {}\nBusy: {busy}\nMax: {EVENTS_MAX}\n", user.known.len());
    text.into_bytes()
}

impl UserChange<'_> {
    /// Processes births and ends of processes, and removes events without holders. Returns the updates of programs'
    /// memory that have been queued since the last call. If the time limit is reached first, another call is requested
    /// (`ClientMemory::on_attention`).
    pub(crate) fn take_updates(&mut self) -> PendingUpdates {
        self.updates_within(SLICE)
    }

    fn updates_within(&mut self, slice: Duration) -> PendingUpdates {
        if self.engine.user.known.is_empty() && self.engine.user.spaces.is_empty() {
            return std::mem::take(&mut self.engine.user.news);
        }
        let user = &mut self.engine.user;
        user.spaces.attend(|event| user.known.get(&event).map(|known| known.on));
        let (born, more) = user.spaces.learn(Instant::now() + slice);
        for born in born.iter().filter(|born| born.time < user.changed.saturating_add(SETTLING)) {
            let state = |event: EventId| {
                let known = user.known.get(&event)?;
                (born.time < known.changed.saturating_add(SETTLING)).then_some(known.on)
            };
            user.spaces.report_to_child(born, state, &mut user.news.ticket);
        }
        if more && let Some(memory) = user.spaces.memory() {
            memory.attend_again();
        }
        update_enabled(&mut self.engine.user, &self.engine.instances);
        let user = &mut self.engine.user;
        let mut unheld = std::mem::take(&mut user.unheld);
        unheld.append(&mut user.spaces.released);
        for event in unheld {
            self.drop_holder(event);
        }
        std::mem::take(&mut self.engine.user.news)
    }
}

/// Updates programs whose events were enabled or disabled. Looks at events only if an instance has changed.
fn update_enabled(user: &mut UserEvents, instances: &Instances) {
    let now: Vec<(InstanceId, u64)> =
        instances.iter().map(|(instance, state)| (instance, state.enabled.changes())).collect();
    if now == user.reported {
        return;
    }
    user.reported = now;
    let now = monotonic();
    for (event, known) in &mut user.known {
        let on = instances.is_enabled(*event);
        if on == known.on {
            continue;
        }
        (known.on, known.changed) = (on, now);
        user.changed = now;
        user.spaces.report(*event, on, &mut user.news.ticket);
        if let Some(bit) = known.bit {
            user.page.set(bit, on);
            user.news.page = true;
        }
        if !on {
            user.unheld.push(*event);
        }
    }
}

impl UserChange<'_> {
    /// Removes an event that has lost its last holder, or releases the charges of payers that do not hold it any more.
    fn drop_holder(&mut self, event: EventId) {
        let lasts = self.engine.user.known.get(&event).is_none_or(|known| known.persists);
        if lasts || self.engine.user.is_busy(event, &self.engine.instances) {
            self.engine.user.settle_payers(event);
        } else {
            self.remove(event);
        }
    }

    fn remove(&mut self, event: EventId) {
        let Some(known) = self.engine.user.known.remove(&event) else { return };
        if let Some(bit) = known.bit {
            self.engine.user.page.free(bit);
            self.engine.user.news.page |= known.on;
        }
        if let Some(named) = self.engine.user.names.get_mut(&known.event.name) {
            if known.event.multi.is_some() {
                if named.formats.get(&known.fields) == Some(&event) {
                    named.formats.remove(&known.fields);
                }
            } else {
                named.single = None;
            }
            if named.single.is_none() && named.formats.is_empty() {
                self.engine.user.names.remove(&known.event.name);
            }
        }
        if known.is_saved() {
            self.engine.effects.touch_by_program();
        }
        let Known { event: Event { name, multi, .. }, fields, charge, mut holders, .. } = known;
        let (table, payer) = (self.engine.registry.table_mut(), charge.payer());
        if let Some(holding) = holders.remove(&payer) {
            table.keep_charge(event, holding.bytes);
        }
        table.keep_charge(event, charge);
        let mut changes = EventChanges::default();
        table.remove(event, &mut changes);
        if let Some(id) = changes.removed.last().and_then(|removed| removed.id) {
            let definition = EventDefinition { payer, name, fields, is_multi: multi.is_some() };
            table.keep_definition(id, definition, multi);
        }
        Definitions::of(self.engine).apply_changes(changes);
    }

    /// Deletes the events of a name (`DIAG_IOCSDEL`).
    ///
    /// # Errors
    /// `ENOENT` for an unknown name, `EBUSY` for an event with holders, `EPERM` for an event that another payer made,
    /// unless the caller is capable.
    fn delete(&mut self, name: &[u8], payer: u32, capable: bool) -> Result<(), CommandError> {
        self.learn();
        let named = std::str::from_utf8(name).map(|name| self.engine.user.named(name)).unwrap_or_default();
        if named.is_empty() {
            return Err(ErrorKind::NotFound.into());
        }
        for event in named {
            if self.engine.user.is_busy(event, &self.engine.instances) {
                return Err(ErrorKind::Busy.into());
            }
            let is_own = |known: &Known| known.maker == payer;
            if !capable && !self.engine.user.known.get(&event).is_some_and(is_own) {
                return Err(ErrorKind::Denied.into());
            }
            self.remove(event);
        }
        Ok(())
    }

    /// Processes the births and ends of processes up to now. Their updates wait for the next [`Self::take_updates`].
    fn learn(&mut self) {
        self.engine.user.news = self.updates_within(SLICE_OF_REQUEST);
    }

    /// Defines a user event by a line of `dynamic_events`.
    pub(crate) fn define(&mut self, line: &[u8]) -> Result<(), CommandError> {
        let text = line.strip_prefix(PREFIX).ok_or(ErrorKind::Invalid)?;
        self.find_lasting(ctype::trim_start(text))
    }

    /// Defines a saved user event by the text of [`Event::read_back`]. Names may have blanks and `#`, at which a line
    /// of `dynamic_events` would be cut.
    pub(crate) fn restore(&mut self, text: &[u8]) -> Result<(), CommandError> {
        self.find_lasting(text.strip_prefix(PREFIX).ok_or(ErrorKind::Invalid)?)
    }

    fn find_lasting(&mut self, command: &[u8]) -> Result<(), CommandError> {
        let kind = Registration { persists: true, multi: false };
        self.find(Command::split(command)?, kind, 0, true).map(drop)
    }

    /// Deletes user events by a line of `dynamic_events`. Returns their number.
    ///
    /// # Errors
    /// `EBUSY` for an event with holders. Events before it are deleted.
    pub(crate) fn delete_line(&mut self, line: &Line<'_>) -> Result<usize, CommandError> {
        let names = match line.word(0) {
            [b'-', b':', names @ ..] => Some(names),
            [b'-', ..] => None,
            head => ctype::split_once(head, |byte| byte == b':').map(|(_, names)| names),
        };
        let Some(names) = names.and_then(|names| std::str::from_utf8(names).ok()) else { return Ok(0) };
        let (system, name) =
            names.split_once('/').map_or((None, names), |(system, name)| (Some(system), name));
        if system.is_some_and(|system| system != SYSTEM && system != MULTI_SYSTEM) {
            return Ok(0);
        }
        let words: Vec<String> =
            line.words().skip(1).map(|w| String::from_utf8_lossy(w).into_owned()).collect();
        self.learn();
        let mut gone = 0;
        for event in self.engine.user.named(name) {
            if self.engine.user.known.get(&event).is_some_and(|known| known.event.matches_deletion(&words)) {
                if self.engine.user.is_busy(event, &self.engine.instances) {
                    return Err(ErrorKind::Busy.into());
                }
                self.remove(event);
                gone += 1;
            }
        }
        Ok(gone)
    }

    /// Deletes all user events without holders, when `dynamic_events` is emptied. The caller checks
    /// [`Self::is_any_busy`] first, and fails with `EBUSY`.
    pub(crate) fn clear(&mut self) {
        for event in self.engine.user.known.keys().copied().collect::<Vec<_>>() {
            self.remove(event);
        }
    }

    /// Whether any user event has a holder.
    pub(crate) fn is_any_busy(&mut self) -> bool {
        self.learn();
        self.engine.user.known.keys().any(|event| self.engine.user.is_busy(*event, &self.engine.instances))
    }
}
