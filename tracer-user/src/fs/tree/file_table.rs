//! The file table: open files by their handles, and changed attributes. It is the part of a tree that is not the
//! mirror.
//!
//! The table has its own lock, so that requests can be served while a long operation borrows the mirror. An open file
//! is taken out of the table while it serves a request.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    time::SystemTime,
};

use rustix::io::Errno;

use super::{
    attributes::{Changed, Owner},
    node::Dir,
    open::Open,
};
use crate::{
    engine::records::{Mark, Marks},
    event::EventId,
    fs::{
        files::entry::{Entry, ReadKind, Result},
        threads::lock,
    },
    kernel::Error,
};

/// Maximum number of files whose changed attributes are kept. Attributes of files that are gone are dropped first.
const CHANGED_MAX: usize = 65_536;

#[derive(Clone, Copy, Debug)]
struct EventOfFile {
    event: EventId,
    serial: u64,
    /// Whether the file outlives its event, until another event has its number: an open `id` keeps its number.
    outlives: bool,
}

/// An open file, and the facts about it that are needed while it serves a request.
pub(super) struct Slot {
    /// `None` while the file serves a request.
    open: Option<Open>,
    event: Option<EventOfFile>,
    /// The event whose format the file shows.
    format: Option<EventId>,
    /// Whether reads print records or histograms.
    prints: bool,
    /// Whether reads make text of records, which other threads do.
    text: bool,
    /// Whether closing the file has no other effect.
    plain: bool,
    /// The number of its table of user events.
    user: Option<u64>,
    /// The queue of marks that receives its writes.
    marks: Option<(Arc<Marks>, Mark)>,
}

impl Slot {
    /// Creates the slot of a file of directory `dir`, whose event has the serial number.
    pub(super) fn new(
        open: Open,
        (dir, serial): (Dir, u64),
        entry: &Entry,
        marks: Option<(Arc<Marks>, Mark)>,
    ) -> Self {
        let event = match dir {
            Dir::Event(event) => Some(event),
            _ => None,
        };
        Self {
            event: event.map(|event| EventOfFile { event, serial, outlives: entry.name == "id" }),
            format: event.filter(|_| matches!(entry.name, "format" | "id")),
            prints: matches!(
                entry.read_kind,
                ReadKind::Trace | ReadKind::Snapshot | ReadKind::Pipe | ReadKind::Hist(_)
            ),
            text: open.makes_text(),
            plain: open.closes_plainly(),
            user: open.user_file(),
            marks,
            open: Some(open),
        }
    }
}

#[derive(Default)]
struct Table {
    open: HashMap<u64, Slot>,
    last: u64,
    changed: HashMap<u64, Changed>,
}

/// The file table of a tree. Clones share one table.
#[derive(Clone)]
pub(crate) struct FileTable {
    table: Arc<Mutex<Table>>,
    /// The owner of files whose owner was not changed.
    pub(super) owner: Owner,
    /// The timestamps of all files.
    pub(crate) since: SystemTime,
}

impl FileTable {
    pub(super) fn new(owner: Owner) -> Self {
        Self { table: Arc::default(), owner, since: SystemTime::now() }
    }

    /// Whether an open file serves a request at the moment.
    pub(crate) fn is_busy(&self, handle: u64) -> bool {
        lock(&self.table).open.get(&handle).is_some_and(|slot| slot.open.is_none())
    }

    /// Whether an open file can serve a request: it is not busy, and if a thread is needed for its text, one is free.
    pub(crate) fn can_serve(&self, handle: u64, has_thread: bool) -> bool {
        let table = lock(&self.table);
        let Some(slot) = table.open.get(&handle) else { return true };
        slot.open.is_some() && (has_thread || !slot.text)
    }

    /// Whether a long operation can let this file serve a request: the file can serve it, and its requests are short.
    pub(crate) fn can_have_turn(&self, handle: u64, has_thread: bool) -> bool {
        let table = lock(&self.table);
        let Some(slot) = table.open.get(&handle) else { return true };
        slot.open.as_ref().is_some_and(|open| !open.takes_long()) && (has_thread || !slot.text)
    }

    /// Whether reads of an open file make text of records.
    pub(super) fn makes_text(&self, handle: u64) -> bool {
        lock(&self.table).open.get(&handle).is_some_and(|slot| slot.text)
    }

    /// Whether a file that is not busy can be closed without another effect.
    pub(crate) fn closes_plainly(&self, handle: u64) -> bool {
        lock(&self.table).open.get(&handle).is_none_or(|slot| slot.plain && slot.open.is_some())
    }

    /// The number of an open file's table of user events, if it has one.
    pub(crate) fn user_file(&self, handle: u64) -> Option<u64> {
        lock(&self.table).open.get(&handle)?.user
    }

    /// The queue of marks that receives the writes to an open file, if there is one.
    pub(crate) fn marks(&self, handle: u64) -> Option<(Arc<Marks>, Mark)> {
        lock(&self.table).open.get(&handle)?.marks.clone()
    }

    /// Gives an open file the text of the kernel's file that it shows, unless it is busy.
    pub(crate) fn put_text(&self, handle: u64, text: std::result::Result<Option<String>, Error>) {
        if let Some(open) = lock(&self.table).open.get_mut(&handle).and_then(|slot| slot.open.as_mut()) {
            open.put_text(text);
        }
    }

    /// The event whose format an open file shows, and whether reads of it print records or histograms.
    pub(super) fn needs(&self, handle: u64) -> Option<(Option<EventId>, bool)> {
        lock(&self.table).open.get(&handle).map(|slot| (slot.format, slot.prints))
    }

    pub(super) fn add(&self, slot: Slot) -> u64 {
        let mut table = lock(&self.table);
        table.last += 1;
        let handle = table.last;
        table.open.insert(handle, slot);
        handle
    }

    /// Calls `look` with an open file that is not busy.
    pub(super) fn look<T>(&self, handle: u64, look: impl FnOnce(&Open) -> T) -> Option<T> {
        lock(&self.table).open.get(&handle)?.open.as_ref().map(look)
    }

    /// Takes an open file out, until [`FileTable::put_back`]. `serial` returns the serial number of an event that exists.
    /// `EBADF` for an unknown handle, `ENODEV` if the file's event is gone, `EAGAIN` if the file is busy.
    pub(super) fn take(&self, handle: u64, serial: impl FnOnce(EventId) -> Option<u64>) -> Result<Open> {
        let mut table = lock(&self.table);
        let slot = table.open.get_mut(&handle).ok_or(Errno::BADF)?;
        // Another event may have the number.
        let is_there =
            slot.event.is_none_or(|its| serial(its.event).map_or(its.outlives, |now| now == its.serial));
        if !is_there {
            return Err(Errno::NODEV);
        }
        slot.open.take().ok_or(Errno::AGAIN)
    }

    /// Puts an open file back that was taken out, unless it was removed meanwhile.
    pub(crate) fn put_back(&self, handle: u64, open: Open) {
        if let Some(slot) = lock(&self.table).open.get_mut(&handle) {
            slot.open = Some(open);
        }
    }

    pub(super) fn remove(&self, handle: u64) -> Option<Open> {
        let removed = lock(&self.table).open.remove(&handle);
        removed.and_then(|slot| slot.open)
    }

    /// The changed attributes of a file with this serial number.
    pub(super) fn changed(&self, number: u64, serial: u64) -> Changed {
        let changed = lock(&self.table).changed.get(&number).copied();
        let changed = changed.unwrap_or_default();
        // The kernel may have an inode of the number that users have open, whatever file the number stands for.
        if changed.serial == serial {
            changed
        } else {
            Changed { opened: changed.opened, ..Changed::default() }
        }
    }

    /// Stores that users may open a file whose attributes were changed ([`Attributes::opened`]).
    ///
    /// [`Attributes::opened`]: super::attributes::Attributes::opened
    pub(super) fn mark_opened(&self, number: u64) {
        if let Some(changed) = lock(&self.table).changed.get_mut(&number) {
            changed.opened = true;
        }
    }

    /// Changes attributes of a file; `ENOSPC` if those of [`CHANGED_MAX`] other files are changed. `exists` says whether
    /// the file with a number and a serial number still exists.
    pub(super) fn change(
        &self,
        number: u64,
        change: Changed,
        exists: impl Fn(u64, u64) -> bool,
    ) -> Result<()> {
        let mut table = lock(&self.table);
        if table.changed.len() >= CHANGED_MAX && !table.changed.contains_key(&number) {
            table.changed.retain(|number, changed| exists(*number, changed.serial));
            if table.changed.len() >= CHANGED_MAX {
                return Err(Errno::NOSPC);
            }
        }
        let changed = table.changed.entry(number).or_default();
        if changed.serial != change.serial {
            // Those of a file that is gone.
            *changed = Changed { opened: changed.opened, ..Changed::default() };
        }
        changed.serial = change.serial;
        changed.mode = change.mode.or(changed.mode);
        changed.uid = change.uid.or(changed.uid);
        changed.gid = change.gid.or(changed.gid);
        Ok(())
    }
}
