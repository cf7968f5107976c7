//! [`Tree`]: the operations on directories and open files. It does not use FUSE, so that tests can call it directly.
//!
//! A tree consists of the engine and a [`FileTable`]. [`Tree::over`] makes a tree of a borrowed engine, so that a
//! request can be served while a long operation has the engine. [`FileTable::is_busy`] reports the open file that
//! serves the long operation.

use std::{
    borrow::{Borrow, BorrowMut},
    sync::Arc,
    time::SystemTime,
};

use rustix::io::Errno;

use super::{
    attributes::{Attributes, Changed, Owner},
    file_table::{FileTable, Slot},
    held::Cursor,
    lookup::Lookup,
    node::{Dir, Node, ROOT},
    open::{Access, Open, Outcome, Ready},
};
use crate::{
    engine::{Client, Command, Engine, Reply, Request, records::LineContext},
    event::{EventId, InstanceId},
    fs::files::entry::{At, ReadKind, Result, Subject},
    lang::facts::{FileRequest, Files},
};

/// The engine as a tree of files. `M` is the engine or a borrowed one; a tree of `&Engine` cannot change it.
pub struct Tree<M = Engine> {
    engine: M,
    files: FileTable,
}

impl Tree {
    /// Creates a tree whose files belong to `owner`.
    pub fn new(mut engine: Engine, owner: Owner) -> Self {
        engine.publish();
        Self { engine, files: FileTable::new(owner) }
    }
}

impl<M: Borrow<Engine>> Tree<M> {
    /// Creates a tree of a borrowed engine that shares a file table.
    pub(crate) fn over(engine: M, files: &FileTable) -> Self {
        Self { engine, files: files.clone() }
    }

    fn seen(&self) -> &Engine {
        self.engine.borrow()
    }

    /// The time when the tree was created, which is the timestamp of all files.
    pub fn since(&self) -> SystemTime {
        self.files.since
    }

    pub(crate) fn files(&self) -> &FileTable {
        &self.files
    }

    fn node(&self, number: u64) -> Result<Node> {
        Node::of(number).filter(|node| node.exists(self.seen())).ok_or(Errno::NOENT)
    }

    /// The serial number of an event; `None` if it is gone.
    fn serial_of(&self, event: EventId) -> Option<u64> {
        self.seen().registry.events().get(event).map(|known| known.serial)
    }

    fn attributes_of(&self, node: Node) -> Attributes {
        let number = node.number();
        let (mode, links) = node.mode(self.seen());
        let changed = self.files.changed(number, node.serial(self.seen()));
        let owner = self.files.owner;
        let mut found = Attributes {
            number,
            is_dir: node.is_dir(),
            mode: changed.mode.unwrap_or(if number == ROOT { owner.mode } else { mode }),
            links,
            uid: changed.uid.unwrap_or(owner.uid),
            gid: changed.gid.unwrap_or(owner.gid),
            lasting: node.is_permanent(self.seen()),
            size: node.size(self.seen()),
            opened: false,
        };
        found.opened = changed.opened || found.opens_to_others();
        found
    }

    /// Returns the attributes of a file.
    ///
    /// # Errors
    /// `ENOENT` if there is no such file.
    pub fn attributes(&self, number: u64) -> Result<Attributes> {
        Ok(self.attributes_of(self.node(number)?))
    }

    /// Finds a name in a directory.
    ///
    /// # Errors
    /// `ENOENT` if there is no such directory or name.
    pub fn lookup(&self, parent: u64, name: &str) -> Result<Attributes> {
        let child = self.node(parent)?.child(name, self.seen()).ok_or(Errno::NOENT)?;
        Ok(self.attributes_of(child))
    }

    /// Finds the number of a file by its path from the root. Tests and the status page use it.
    ///
    /// # Errors
    /// `ENOENT` if there is no such path.
    #[cfg(any(test, feature = "internals"))]
    pub fn find(&self, path: &str) -> Result<u64> {
        path.split('/')
            .filter(|name| !name.is_empty())
            .try_fold(ROOT, |number, name| Ok(self.lookup(number, name)?.number))
    }

    /// Lists a directory: number, name, and whether it is a directory. `.` and `..` come first.
    ///
    /// # Errors
    /// `ENOENT` if there is no such directory, `ENOTDIR` for a file.
    pub fn list(&self, number: u64) -> Result<Vec<(u64, String, bool)>> {
        let node = self.node(number)?;
        if !node.is_dir() {
            return Err(Errno::NOTDIR);
        }
        let mut all =
            vec![(number, ".".to_owned(), true), (node.parent(self.seen()).number(), "..".to_owned(), true)];
        let children = node.children(self.seen()).ok_or(Errno::NOENT)?;
        all.extend(children.into_iter().map(|(name, child)| (child.number(), name, child.is_dir())));
        Ok(all)
    }

    /// The facts that a read of an open file needs and that are not read yet. `None` if the read can be served at
    /// once.
    pub(crate) fn lookup_for(&self, handle: u64, offset: u64) -> Option<Lookup> {
        let (format, prints) = self.files.needs(handle)?;
        let engine = self.seen();
        let format = format.filter(|event| engine.registry.events().known_format(*event).is_none());
        let cold = prints && !engine.facts.can_print();
        let file = self.files.look(handle, |open| open.kernel_file(engine, offset)).flatten();
        (format.is_some() || file.is_some() || cold).then(|| Lookup {
            file,
            prints: cold,
            ..self.lookup_of(format)
        })
    }

    /// A lookup of an event's format, or of the facts that printing needs if `format` is `None`.
    pub(crate) fn lookup_of(&self, format: Option<EventId>) -> Lookup {
        let engine = self.seen();
        Lookup {
            facts: Arc::clone(&engine.facts),
            events: Arc::clone(engine.registry.events()),
            format,
            file: None,
            prints: format.is_none(),
        }
    }

    /// Whether reads of an open file return pages of records.
    pub fn has_pages(&self, handle: u64) -> bool {
        self.files.look(handle, Open::has_pages).unwrap_or(false)
    }

    /// The number of an open file's table of user events, if it has one.
    #[cfg(any(test, feature = "internals"))]
    pub fn user_file(&self, handle: u64) -> Option<u64> {
        self.files.user_file(handle)
    }

    /// The page that a mapping of an open file shows, if the file can be mapped.
    pub fn page(&self, handle: u64) -> Option<Vec<u8>> {
        let engine = self.seen();
        self.files.look(handle, |open| open.page(engine)).flatten()
    }

    pub(crate) fn instance_of(&self, handle: u64) -> Option<InstanceId> {
        self.files.look(handle, |open| open.at.instance)
    }

    /// The user files that a write to an open file names. The caller opens them first, where no other request waits.
    pub fn wanted(&self, handle: u64, data: &[u8]) -> Vec<FileRequest> {
        // Much text takes long to parse, so the file table is not locked here.
        let names = self.files.look(handle, Open::names).flatten();
        names.map_or_else(Vec::new, |names| (names.wanted)(data))
    }

    /// Whether an open file must be looked at regularly to learn when it is ready.
    pub fn needs_looking_at(&self, handle: u64) -> bool {
        self.files.look(handle, Open::needs_looking_at).unwrap_or(true)
    }
}

impl<M: BorrowMut<Engine>> Tree<M> {
    /// The engine.
    pub fn engine(&mut self) -> &mut Engine {
        self.engine.borrow_mut()
    }

    /// Changes attributes of a file; `None` leaves an attribute unchanged.
    ///
    /// # Errors
    /// `ENOENT` if there is no such file, `ENOSPC` if attributes of too many files are changed.
    pub fn change(
        &mut self,
        number: u64,
        mode: Option<u16>,
        uid: Option<u32>,
        gid: Option<u32>,
    ) -> Result<Attributes> {
        let node = self.node(number)?;
        let serial = |node: Node| node.serial(self.seen());
        let change = Changed { serial: serial(node), mode, uid, gid, opened: false };
        let exists = |number, known| self.node(number).is_ok_and(|node| serial(node) == known);
        self.files.change(number, change, exists)?;
        let found = self.attributes_of(node);
        if found.opened {
            self.files.mark_opened(number);
        }
        Ok(found)
    }

    /// Opens a file for a thread. Returns the handle, and whether the file is a stream without positions.
    ///
    /// # Errors
    /// `ENODEV` if the file is gone, `EISDIR` for a directory, and errors of the file itself.
    pub fn open(&mut self, number: u64, access: Access, thread: u32) -> Result<(u64, bool)> {
        let node = self.node(number).map_err(|_| Errno::NODEV)?;
        let entry = node.entry(self.seen()).ok_or(Errno::ISDIR)?;
        let serial = node.serial(self.seen());
        let subject = match node.dir {
            Dir::Options => Subject::Option(node.entry - 1),
            Dir::Cpu(cpu) => Subject::Cpu(cpu),
            Dir::System(system) => Subject::System(system),
            Dir::Event(event) => Subject::Event(event),
            Dir::Instance | Dir::Events | Dir::PerCpu | Dir::Instances => Subject::Instance,
        };
        let at = At { instance: node.instance, subject, client: Client { thread, payer: access.payer } };
        let open = Open::new(self.engine(), entry, at, access)?;
        let stream = open.is_stream();
        let marks = open.marks(self.seen());
        Ok((self.files.add(Slot::new(open, (node.dir, serial), entry, marks)), stream))
    }

    /// Takes an open file out of the table while `act` uses it.
    fn with<T>(&mut self, handle: u64, act: impl FnOnce(&mut Open, &mut Engine) -> Result<T>) -> Result<T> {
        let mut open = self.files.take(handle, |event| self.serial_of(event))?;
        let done = act(&mut open, self.engine());
        self.files.put_back(handle, open);
        done
    }

    /// Reads from an open file.
    ///
    /// # Errors
    /// Errors of the file, `EBADF` for an unknown handle, `ENODEV` if the file's event is gone.
    pub fn read(&mut self, handle: u64, offset: u64, size: usize) -> Result<Outcome> {
        self.with(handle, |open, engine| open.read(engine, offset, size))
    }

    /// Takes an open file out whose reads make text of records, with the context of the text and the cursor of a read at
    /// an offset. `begun` is the cursor of a read that needs more time. The caller puts the file back
    /// ([`FileTable::put_back`]). `None` for other files. Errors are those of [`Tree::read`].
    pub(crate) fn begin_text(
        &mut self,
        handle: u64,
        offset: u64,
        begun: Option<Box<Cursor>>,
    ) -> Result<Option<(Open, LineContext, Box<Cursor>)>> {
        if !self.files.makes_text(handle) {
            return Ok(None);
        }
        let mut open = self.files.take(handle, |event| self.serial_of(event))?;
        let begun = open.begin_text(self.seen(), offset, begun);
        if let (Some(context), Some(cursor)) = (LineContext::of(self.seen(), open.at.instance), begun) {
            return Ok(Some((open, context, cursor)));
        }
        self.files.put_back(handle, open);
        Err(Errno::NODEV)
    }

    /// Collects the records of an open file's instance for a short time. Returns whether all were collected.
    pub(crate) fn settle(&mut self, handle: u64) -> bool {
        self.instance_of(handle).is_none_or(|instance| self.engine().collect_some(instance))
    }

    /// Collects the records of an instance before one of its files is opened, if the file shows the records that
    /// exist at that time. Returns whether all were collected.
    pub(crate) fn settle_file(&mut self, number: u64) -> bool {
        let Ok(node) = self.node(number) else { return true };
        let read_kind = node.entry(self.seen()).map(|entry| entry.read_kind);
        !matches!(read_kind, Some(ReadKind::Trace | ReadKind::Snapshot))
            || self.engine().collect_some(node.instance)
    }

    /// Whether opening a file with `O_TRUNC` changes something. Most files have nothing to empty.
    pub(crate) fn truncates(&mut self, number: u64) -> bool {
        let Ok(node) = self.node(number) else { return false };
        node.entry(self.seen()).is_some_and(|entry| entry.truncates.is_some())
    }

    /// Writes to an open file and returns how many bytes were taken. User files that the data names are opened
    /// meanwhile.
    ///
    /// # Errors
    /// As [`Tree::read`].
    pub fn write(&mut self, handle: u64, data: &[u8], client: Client) -> Result<usize> {
        self.write_with(handle, data, client, &Files::at_once())
    }

    /// Writes to an open file with the opened user files of [`Tree::wanted`].
    ///
    /// # Errors
    /// As [`Tree::read`].
    pub fn write_with(&mut self, handle: u64, data: &[u8], client: Client, files: &Files) -> Result<usize> {
        self.with(handle, |open, engine| open.write(engine, data, client, files))
    }

    /// Returns the readiness of an open file; `waits` if the caller sleeps until it is ready.
    pub fn poll(&mut self, handle: u64, waits: bool) -> Ready {
        let gone = Ready { input: true, news: false };
        self.with(handle, |open, engine| Ok(open.poll(engine, waits))).unwrap_or(gone)
    }

    /// Whether a thread that polls an open file must be woken now.
    pub fn is_awaited(&mut self, handle: u64) -> bool {
        self.with(handle, |open, engine| Ok(open.is_awaited(engine))).unwrap_or(true)
    }

    /// Closes a file.
    pub fn close(&mut self, handle: u64) {
        if let Some(open) = self.files.remove(handle) {
            open.close(self.engine());
        }
    }

    /// Creates an instance.
    ///
    /// # Errors
    /// `EPERM` outside of `instances`, `EEXIST` if the name exists, `EINVAL` if it cannot be a name, `ENOSPC` or
    /// `ENOMEM` if there are too many instances.
    pub fn make_dir(&mut self, parent: u64, name: &str) -> Result<Attributes> {
        if self.node(parent)? != Node::dir(InstanceId::TOP, Dir::Instances) {
            return Err(Errno::PERM);
        }
        match self.engine().execute(&Request::own(InstanceId::TOP, Command::MakeInstance(name)))? {
            Reply::Instance(instance) => Ok(self.attributes_of(Node::dir(instance, Dir::Instance))),
            _ => Err(Errno::IO),
        }
    }

    /// Removes an instance.
    ///
    /// # Errors
    /// `EPERM` outside of `instances`, `ENOENT` if there is no such name, `EBUSY` while the instance is in use.
    pub fn remove_dir(&mut self, parent: u64, name: &str) -> Result<()> {
        if self.node(parent)? != Node::dir(InstanceId::TOP, Dir::Instances) {
            return Err(Errno::PERM);
        }
        self.engine().execute(&Request::own(InstanceId::TOP, Command::RemoveInstance(name)))?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::facts::Facts;

    /// A tree for this kernel, if one can be created.
    fn tree() -> Option<Tree> {
        let engine = Facts::running().ok().and_then(|facts| Engine::new(Arc::new(facts)).ok());
        if engine.is_none() {
            eprintln!("skipped: tracefs: no engine without it");
        }
        engine.map(|engine| Tree::new(engine, Owner::default()))
    }

    fn open(tree: &mut Tree, path: &str) -> u64 {
        let number = tree.find(path).unwrap();
        tree.open(number, Access { read: true, write: true, ..Access::default() }, 0).unwrap().0
    }

    fn define(tree: &mut Tree, line: &str) {
        let handle = open(tree, "dynamic_events");
        tree.write(handle, line.as_bytes(), Client::OWN).unwrap();
        tree.close(handle);
    }

    #[test]
    fn attributes_and_open_files_of_an_event_do_not_pass_on_to_the_next_one_of_its_number() {
        let Some(mut tree) = tree() else { return };
        define(&mut tree, "u:first u8 a");
        let file = tree.find("events/user_events/first/filter").unwrap();
        let dir = tree.find("events/user_events").unwrap();
        let fresh = [file, dir].map(|number| tree.attributes(number).unwrap());
        for number in [file, dir] {
            let changed = tree.change(number, Some(0o666), Some(7), Some(8)).unwrap();
            assert_eq!((changed.mode, changed.uid, changed.gid), (0o666, 7, 8));
        }
        let files = ["filter", "id"].map(|name| open(&mut tree, &format!("events/user_events/first/{name}")));
        let read = |tree: &mut Tree| files.map(|handle| tree.read(handle, 0, 100).err());
        assert_eq!(read(&mut tree), [None, None]);
        tree.engine().registry.table_mut().events_mut().use_up_numbers();
        define(&mut tree, "-:first");
        assert_eq!(
            read(&mut tree),
            [Some(Errno::NODEV), None],
            "an open id shows the number of a gone event"
        );
        define(&mut tree, "u:second u8 a");
        assert_eq!(tree.find("events/user_events/second/filter"), Ok(file));
        assert_eq!(tree.find("events/user_events"), Ok(dir));
        // Users may have the inodes open.
        let fresh = fresh.map(|found| Attributes { opened: true, ..found });
        assert_eq!([file, dir].map(|number| tree.attributes(number).unwrap()), fresh);
        assert_eq!(read(&mut tree), [Some(Errno::NODEV); 2]);
        // A change of one attribute brings none of the others back.
        let changed = tree.change(file, Some(0o600), None, None).unwrap();
        assert_eq!((changed.mode, changed.uid, changed.gid), (0o600, 0, 0));
        let other = open(&mut tree, "events/user_events/second/filter");
        assert!(tree.read(other, 0, 100).is_ok());
    }
}
