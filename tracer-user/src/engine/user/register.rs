//! Registration: a command finds its event or makes it, and the file that it came by has it in its table.
//!
//! Asking to be told by a bit takes two steps (`Engine::user_register`, then `Engine::user_ask`). The bit is written behind both;
//! that it can be is part of the answer, so the second is taken back where it cannot. Nothing here takes longer the more events
//! there are.

use rustix::io::Errno;

use super::{
    Engine,
    spaces::{Asking, Placed},
    user_events::{Held, Known},
};
use crate::{
    engine::{quota::Kind, registry::catalogue::Made},
    event::{
        EventId,
        user::{Event, fields_key},
    },
    lang::user::Command,
    render::Printer,
};

/// The two forms of `struct user_reg`, told apart by their size (include/uapi/linux/user_events.h).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// 5.18 to 6.3: a bit in the status page is given back.
    StatusPage,
    /// 6.4 and later: a bit in the program's memory is kept.
    Address,
}

/// What an event is to be, if it is new.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Registration {
    /// It stays when nobody holds it any more (`USER_EVENT_REG_PERSIST`).
    pub persists: bool,
    /// Others may have its name and other fields (`USER_EVENT_REG_MULTI_FORMAT`).
    pub multi: bool,
}

/// What a registration comes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Registered {
    /// Number of the event.
    pub event: EventId,
    /// Its place in the file's table.
    pub index: u32,
    /// Its bit in the page; 0 for none.
    pub bit: u32,
    /// Whether it is on.
    pub on: bool,
}

impl Engine {
    /// Finds an event, or makes it for a uid. `saved` says whether one that persists outlives the daemon.
    ///
    /// # Errors
    /// `EADDRINUSE` when another one has the name, `EINVAL` for fields that are none, `EMFILE` when there are too many (as
    /// `user_event_parse()` says it), `ENOMEM` when the definitions of the uid's events are too long.
    pub(super) fn user_find(
        &mut self,
        command: Command<'_>,
        kind: Registration,
        uid: u32,
        saved: bool,
    ) -> Result<EventId, Errno> {
        let fields = fields_key(&command.words());
        if let Some(named) = self.user.names.get(command.name) {
            if kind.multi {
                if let Some(event) = named.formats.get(&fields) {
                    return Ok(*event);
                }
            } else if let Some(event) = named.single {
                let same = self.user.known.get(&event).is_some_and(|known| known.fields == fields);
                return if same { Ok(event) } else { Err(Errno::ADDRINUSE) };
            }
        }
        let multi = kind.multi.then_some(self.user.next_multi);
        self.user.next_multi += u64::from(kind.multi);
        let event = Event { name: command.name.to_owned(), multi, fields: command.fields()? };
        // Not those of the command: a lone semicolon, say, is no field, and yet not what an event without fields is asked for by.
        let fields = event.key();
        let count = self.quotas.charge(uid, Kind::UserEvents, 1).map_err(|_| Errno::MFILE)?;
        let bytes = event.name.len() + fields.len();
        let bytes = self.quotas.charge(uid, Kind::DefinitionBytes, bytes).map_err(|_| Errno::NOMEM)?;
        // As the kernel says it when there are too many.
        let id = self.registry.events().free_id().ok_or(Errno::MFILE)?;
        let format = event.format(id);
        let text = event.format_text(id);
        let made = Made { printer: Printer::fields_only(&format, self.facts.version()), format, text };
        let number = self.registry.add(made)?;
        let named = self.user.names.entry(event.name.clone()).or_default();
        if kind.multi {
            named.formats.entry(fields.clone()).or_insert(number);
        } else {
            named.single = Some(number);
        }
        if kind.persists && saved {
            self.touch();
        }
        let known = Known {
            event,
            fields,
            serial: self.registry.count_definition(),
            persists: kind.persists,
            saved,
            _charges: [count, bytes],
            files: 0,
            bit: None,
            on: false,
            changed: 0,
        };
        self.user.known.insert(number, known);
        Ok(number)
    }

    /// Takes a command that came by an open file, from a uid. Whoever is `capable` may have events that persist, as anybody may by the
    /// first interface; those outlive the daemon only where the caller is.
    ///
    /// # Errors
    /// Those of the kernel: `EADDRINUSE` when another event has the name, `EINVAL` for what is no command, `EPERM` for an
    /// event that is to persist and a caller who may not have it.
    pub(super) fn user_register(
        &mut self,
        (file, uid): (u64, u32),
        text: &[u8],
        layout: Layout,
        kind: Registration,
        capable: bool,
    ) -> Result<Registered, Errno> {
        let first_age = layout == Layout::StatusPage;
        let command = Command::split(text)?;
        // The first age took them, and knew none.
        if command.flags.is_some() && !first_age {
            return Err(Errno::INVAL);
        }
        if kind.persists && !capable {
            return Err(Errno::PERM);
        }
        if !self.user.files.contains_key(&file) {
            return Err(Errno::BADF);
        }
        let kind = Registration { persists: kind.persists || first_age, ..kind };
        let before = self.user.known.len();
        let event = self.user_find(command, kind, uid, capable)?;
        let new = self.user.known.len() > before;
        let on = self.all().any(|state| state.is_enabled(event));
        let user = &mut self.user;
        let known = user.known.get_mut(&event).ok_or(Errno::NOENT)?;
        if first_age && known.bit.is_none() {
            let Some(bit) = user.page.give() else {
                if new {
                    self.user_remove(event);
                }
                return Err(Errno::MFILE);
            };
            known.bit = Some(bit);
            user.page.set(bit, on);
            user.news.page |= on;
        }
        let table = user.files.get_mut(&file).ok_or(Errno::BADF)?;
        let next = table.held.len() as u32;
        let index = *table.places.entry(event).or_insert(next);
        if index == next {
            table.held.push(Held { event, first_age });
            known.files += 1;
        }
        Ok(Registered { event, index, bit: known.bit.unwrap_or(0), on })
    }

    /// A task asks to be told of an event that was registered just now; its bit, which is to show what `registered` says, and where
    /// to write it.
    ///
    /// # Errors
    /// `ENOMEM` when its memory cannot be kept.
    pub(super) fn user_ask(
        &mut self,
        asking: Asking<'_>,
        registered: &Registered,
        address: u64,
        bit: u8,
    ) -> Result<Placed, Errno> {
        self.user.follow(&self.facts);
        self.user.spaces.ask(asking, registered.event, (address, bit), registered.on)
    }

    /// A task asks no more (`DIAG_IOCSUNREG`); what clears the bit.
    ///
    /// # Errors
    /// `ENOENT` when it has not asked for anything there.
    pub(super) fn user_forget(&mut self, task: u32, address: u64, bit: u8) -> Result<Placed, Errno> {
        let done = self.user.spaces.forget(task, address, bit);
        self.user_learn();
        done
    }
}

#[cfg(test)]
mod tests {
    use std::{
        sync::Arc,
        time::{Duration, Instant},
    };

    use super::*;
    use crate::engine::{facts::Facts, quota::Quotas};

    /// A mirror over this kernel, where it can be had.
    fn mirror() -> Option<Engine> {
        let mirror = Facts::running().ok().and_then(|facts| Engine::new(Arc::new(facts)).ok());
        if mirror.is_none() {
            eprintln!("skipped: tracefs");
        }
        mirror
    }

    const KIND: Registration = Registration { persists: false, multi: false };

    fn register(mirror: &mut Engine, file: u64, uid: u32, number: u32) -> Result<Registered, Errno> {
        let text = format!("event_{number} u32 a; u64 b");
        mirror.user_register((file, uid), text.as_bytes(), Layout::StatusPage, KIND, false)
    }

    #[test]
    fn the_last_event_is_registered_as_fast_as_the_first() {
        const PART: u32 = 1000;
        let Some(mut mirror) = mirror() else { return };
        mirror.quotas = Quotas::unlimited();
        let file = mirror.user.open(7, &mirror.quotas).unwrap();
        let mut parts = Vec::new();
        for part in 0..30 {
            let since = Instant::now();
            for number in part * PART..(part + 1) * PART {
                let done = register(&mut mirror, file, 7, number).unwrap();
                assert_eq!((done.index, done.bit), (number, number + 1));
                // As behind each request.
                assert!(!mirror.user_news().page);
            }
            parts.push(since.elapsed());
        }
        eprintln!("1,000 registrations each: {parts:?}");
        // The fastest of each end, as the machine may have other things to do.
        let fastest = |parts: &[Duration]| parts.iter().min().copied().unwrap();
        let (first, last) = (fastest(&parts[..5]), fastest(&parts[25..]));
        assert!(last < 3 * first, "{first:?} {last:?}");
        // They persist, and are of a client: nothing of that is kept beyond the daemon.
        assert!(mirror.saved().definitions.is_empty());
        let since = Instant::now();
        mirror.user_clear();
        let took = since.elapsed();
        assert!(mirror.user.known.is_empty() && took < 10 * 30 * first, "{took:?} {first:?}");
    }

    #[test]
    fn clients_leave_root_its_ids() {
        let Some(mut mirror) = mirror() else { return };
        let limits = Kind::UserEvents.limits();
        let (mut made, mut uid) = (0_u32, 0);
        while (made as usize) < limits.total - limits.reserved {
            uid += 1;
            let file = mirror.user.open(uid, &mirror.quotas).unwrap();
            let mut own = 0;
            while register(&mut mirror, file, uid, made).is_ok() {
                (made, own) = (made + 1, own + 1);
            }
            assert!(own <= limits.per_uid && own > 0);
        }
        let file = mirror.user.open(0, &mirror.quotas).unwrap();
        for number in 0..limits.reserved as u32 {
            register(&mut mirror, file, 0, made + number).unwrap();
        }
        assert_eq!(register(&mut mirror, file, 0, u32::MAX).err(), Some(Errno::MFILE));
        let other = mirror.user.open(uid + 1, &mirror.quotas).unwrap();
        assert_eq!(register(&mut mirror, other, uid + 1, u32::MAX).err(), Some(Errno::MFILE));
    }

    #[test]
    fn events_of_one_name_are_found_by_their_fields() {
        let Some(mut mirror) = mirror() else { return };
        let file = mirror.user.open(0, &mirror.quotas).unwrap();
        let mut ask = |text: &str, multi| {
            let kind = Registration { persists: false, multi };
            mirror.user_register((file, 0), text.as_bytes(), Layout::Address, kind, true)
        };
        let one = ask("name u32 a; u32 b", false).unwrap().event;
        assert_eq!(ask("name u32 a;u32 b;", false).map(|done| done.event), Ok(one));
        assert_eq!(ask("name u32 a", false).err(), Some(Errno::ADDRINUSE));
        let many: Vec<EventId> =
            (1..50).map(|n| ask(&format!("name char[{n}] a"), true).unwrap().event).collect();
        for (n, event) in (1..).zip(&many) {
            assert_eq!(ask(&format!("name char[{n}] a;"), true).map(|done| done.event), Ok(*event));
        }
        assert_eq!(ask("name u32 a; u32 b", false).map(|done| done.event), Ok(one));
        assert_eq!(mirror.user.named("name").len(), 50);
    }
}
