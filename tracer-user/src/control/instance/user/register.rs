//! Registration: a command finds its event or makes it, and the file that it came by has it in its table.
//!
//! Asking to be told by a bit takes two steps, as the bit is first written without the mirror in hand
//! ([`Mirror::user_register`], then [`Mirror::user_ask`]): that the address can be written is part of the answer.

use std::sync::Arc;

use rustix::io::Errno;

use super::{Held, Known, Memory, Mirror};
use crate::{control::instance::catalogue::Made, event::user::Event, lang::user::Command, render::Printer};

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
    pub event: u32,
    /// Its place in the file's table.
    pub index: u32,
    /// Its bit in the page; 0 for none.
    pub bit: u32,
    /// Whether it is on.
    pub on: bool,
}

impl Mirror {
    /// Finds an event, or makes it.
    ///
    /// # Errors
    /// `EADDRINUSE` when another one has the name, `EINVAL` for fields that are none, `EMFILE` when there are too many.
    pub(super) fn user_find(&mut self, command: Command<'_>, kind: Registration) -> Result<u32, Errno> {
        let words = command.words();
        for number in self.user.named(command.name) {
            let Some(known) = self.user.known.get(&number) else { continue };
            if known.event.multi.is_some() != kind.multi {
                continue;
            }
            if known.event.has_fields(&words) {
                return Ok(number);
            }
            if !kind.multi {
                return Err(Errno::ADDRINUSE);
            }
        }
        let multi = kind.multi.then_some(self.user.next_multi);
        self.user.next_multi += u64::from(kind.multi);
        let event = Event { name: command.name.to_owned(), multi, fields: command.fields()? };
        // As the kernel says it when there are too many.
        let id = self.events.free_id().ok_or(Errno::MFILE)?;
        let format = event.format(id);
        let text = event.format_text(id);
        let made = Made { printer: Printer::fields_only(&format, self.facts.version()), format, text };
        let number = self.add_event(made)?;
        self.touch();
        self.user.names.entry(event.name.clone()).or_default().push(number);
        let known = Known {
            event,
            serial: self.definitions,
            persists: kind.persists,
            files: 0,
            bit: None,
            on: false,
            changed: 0,
        };
        self.definitions += 1;
        self.user.known.insert(number, known);
        Ok(number)
    }

    /// Whether a task has asked for something at this place.
    pub fn user_has_asked(&mut self, task: u32, address: u64, bit: u8) -> bool {
        self.user_learn();
        self.user.spaces.has(task, address, bit)
    }

    /// Takes a command that came by an open file.
    ///
    /// # Errors
    /// Those of the kernel: `EADDRINUSE` when another event has the name, `EINVAL` for what is no command, `EPERM` for an
    /// event that is to persist and a caller who may not have it.
    pub fn user_register(
        &mut self,
        file: u64,
        text: &[u8],
        layout: Layout,
        kind: Registration,
        capable: bool,
    ) -> Result<Registered, Errno> {
        let first_age = layout == Layout::StatusPage;
        self.user_learn();
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
        let event = self.user_find(command, kind)?;
        let on = self.all().any(|state| state.is_enabled(event));
        let user = &mut self.user;
        let known = user.known.get_mut(&event).ok_or(Errno::NOENT)?;
        if first_age && known.bit.is_none() {
            let Some(bit) = user.page.give() else {
                self.user_let_go(event);
                return Err(Errno::MFILE);
            };
            known.bit = Some(bit);
            user.page.set(bit, on);
            user.news.page |= on;
        }
        let held = user.files.get_mut(&file).ok_or(Errno::BADF)?;
        let index = held.iter().position(|held| held.event == event).unwrap_or_else(|| {
            held.push(Held { event, first_age });
            known.files += 1;
            held.len() - 1
        });
        Ok(Registered { event, index: index as u32, bit: known.bit.unwrap_or(0), on })
    }

    /// A task asks to be told of an event that was registered just now by a bit that was written already, as `on` says.
    ///
    /// # Errors
    /// `EADDRINUSE` when it has asked for something there, `ENOMEM` when its memory cannot be kept.
    pub fn user_ask(
        &mut self,
        task: u32,
        registered: &Registered,
        address: u64,
        bit: u8,
    ) -> Result<(), Errno> {
        self.user_learn();
        self.user_follow();
        let event = registered.event;
        if self.user.spaces.has(task, address, bit) {
            return Err(Errno::ADDRINUSE);
        }
        let Some(on) = self.user.known.get(&event).map(|known| known.on) else { return Err(Errno::NOENT) };
        self.user.spaces.ask(task, event, address, bit)?;
        if on != registered.on {
            // It changed in between.
            let writes = self.user.spaces.writes(event, on);
            self.user.news.writes.extend(writes);
        }
        Ok(())
    }

    /// A task asks no more (`DIAG_IOCSUNREG`); the bit is for the caller to clear.
    ///
    /// # Errors
    /// `ENOENT` when it has not asked for anything there.
    pub fn user_forget(&mut self, task: u32, address: u64, bit: u8) -> Result<Arc<Memory>, Errno> {
        self.user_learn();
        let done = self.user.spaces.forget(task, address, bit);
        self.user_learn();
        done
    }
}
