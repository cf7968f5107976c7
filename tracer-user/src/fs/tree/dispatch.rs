//! The tree as a whole: directories, open files, attributes. It knows nothing of FUSE, so that tests use it as it is.
//!
//! Open files and changed attributes lie beside the mirror ([`OpenFiles`]), so that a request can be served while a long
//! operation has the mirror borrowed: [`Beside::over`] makes a tree of both. The open file that the long operation was
//! asked for through is taken out meanwhile; [`Beside::is_busy`] says so.

use std::{
    borrow::BorrowMut,
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::SystemTime,
};

use rustix::io::Errno;

use super::{
    node::{Dir, Node, ROOT},
    open::{Access, Open, Outcome, Ready},
};
use crate::{
    attach,
    engine::instance::{Marks, Mirror, mark::Mark},
    event::{EventId, InstanceId},
    fs::{
        files::entry::{At, Result, Shows, Subject},
        serve::lookups::Lookup,
    },
    kernel::Error,
    lang::facts::{FileRequest, Files},
};

/// What stat(2) shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attributes {
    /// Number.
    pub number: u64,
    /// Whether it is a directory.
    pub is_dir: bool,
    /// Permissions.
    pub mode: u16,
    /// Number of links.
    pub links: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Whether the name stays.
    pub lasting: bool,
    /// Size in bytes.
    pub size: u64,
}

/// Whose the files are, and who may enter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owner {
    /// User.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Permissions of the top directory.
    pub mode: u16,
}

impl Default for Owner {
    /// Root's alone, as tracefs is.
    fn default() -> Self {
        Self { uid: 0, gid: 0, mode: 0o700 }
    }
}

/// What somebody changed by chmod(2) or chown(2).
#[derive(Clone, Copy, Debug, Default)]
struct Changed {
    mode: Option<u16>,
    uid: Option<u32>,
    gid: Option<u32>,
}

/// Attributes that are remembered at most; those of files that are gone are dropped first.
const CHANGED: usize = 65_536;

/// An open file.
struct Slot {
    /// None while a request to it is being served.
    open: Option<Open>,
    /// The event that it is a file of.
    event: Option<EventId>,
    /// The event whose format it shows.
    format: Option<EventId>,
    /// Whether it shows records, or texts of their kind.
    prints: bool,
    /// Whether closing it does no more than to forget it.
    plain: bool,
    /// The number of its table of user events, where it has one.
    user: Option<u64>,
    /// Where its writes go, where they are marks.
    marks: Option<(Arc<Marks>, Mark)>,
}

/// What lies beside the mirror.
#[derive(Default)]
struct OpenFiles {
    open: HashMap<u64, Slot>,
    last: u64,
    changed: HashMap<u64, Changed>,
}

/// The part of a tree that is not the mirror. Clones are the same.
#[derive(Clone)]
pub(in crate::fs) struct Beside {
    files: Arc<Mutex<OpenFiles>>,
    owner: Owner,
    since: SystemTime,
}

impl Beside {
    fn files(&self) -> MutexGuard<'_, OpenFiles> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The tree of these files over a mirror.
    pub(in crate::fs) fn over<'a>(&self, mirror: &'a mut Mirror) -> Tree<&'a mut Mirror> {
        Tree { mirror, beside: self.clone() }
    }

    /// Whether a request to an open file is being served.
    pub(in crate::fs) fn is_busy(&self, handle: u64) -> bool {
        self.files().open.get(&handle).is_some_and(|slot| slot.open.is_none())
    }

    /// Whether a request to an open file can be served in a turn: it is not being served, and does not take long.
    pub(in crate::fs) fn can_have_turn(&self, handle: u64) -> bool {
        let files = self.files();
        let Some(slot) = files.open.get(&handle) else { return true };
        slot.open.as_ref().is_some_and(|open| !open.takes_long())
    }

    /// Whether closing a file changes nothing but that it is closed.
    pub(in crate::fs) fn closes_plainly(&self, handle: u64) -> bool {
        self.files().open.get(&handle).is_none_or(|slot| slot.plain)
    }

    /// The number of an open file's table of user events, where it has one.
    pub(in crate::fs) fn user_file(&self, handle: u64) -> Option<u64> {
        self.files().open.get(&handle)?.user
    }

    /// Hands an open file the text of the kernel's file that it shows, unless it is being served.
    pub(in crate::fs) fn put_text(&self, handle: u64, text: std::result::Result<Option<String>, Error>) {
        if let Some(open) = self.files().open.get_mut(&handle).and_then(|slot| slot.open.as_mut()) {
            open.put_text(text);
        }
    }

    /// Where writes to an open file go, where they are marks.
    pub(in crate::fs) fn marks(&self, handle: u64) -> Option<(Arc<Marks>, Mark)> {
        self.files().open.get(&handle)?.marks.clone()
    }
}

/// The tree, over a mirror of its own or a borrowed one.
pub struct Tree<M = Mirror> {
    mirror: M,
    beside: Beside,
}

impl Tree {
    /// A tree over instances.
    pub fn new(mut mirror: Mirror, owner: Owner) -> Self {
        mirror.publish();
        let beside = Beside { files: Arc::default(), owner, since: SystemTime::now() };
        Self { mirror, beside }
    }
}

impl<M: BorrowMut<Mirror>> Tree<M> {
    /// The instances.
    pub fn mirror(&mut self) -> &mut Mirror {
        self.mirror.borrow_mut()
    }

    /// The same, to be looked at.
    fn seen(&self) -> &Mirror {
        self.mirror.borrow()
    }

    /// When it was made: the time of all files.
    pub fn since(&self) -> SystemTime {
        self.beside.since
    }

    /// What is not the mirror.
    pub(in crate::fs) fn beside(&self) -> &Beside {
        &self.beside
    }

    /// The same tree, borrowed.
    pub(in crate::fs) fn view(&mut self) -> Tree<&mut Mirror> {
        self.beside.over(self.mirror.borrow_mut())
    }

    fn node(&self, number: u64) -> Result<Node> {
        // A file of an instance that is gone has no device any more, as the kernel has it.
        Node::of(number).filter(|node| node.exists(self.seen())).ok_or(Errno::NOENT)
    }

    fn attributes_of(&self, node: Node) -> Attributes {
        let number = node.number();
        let (mode, links) = node.mode(self.seen());
        let changed = self.beside.files().changed.get(&number).copied().unwrap_or_default();
        let owner = self.beside.owner;
        Attributes {
            number,
            is_dir: node.is_dir(),
            mode: changed.mode.unwrap_or(if number == ROOT { owner.mode } else { mode }),
            links,
            uid: changed.uid.unwrap_or(owner.uid),
            gid: changed.gid.unwrap_or(owner.gid),
            lasting: node.is_lasting(self.seen()),
            size: node.size(self.seen()),
        }
    }

    /// Attributes of a file.
    ///
    /// # Errors
    /// `ENOENT`.
    pub fn attributes(&self, number: u64) -> Result<Attributes> {
        Ok(self.attributes_of(self.node(number)?))
    }

    /// Changes attributes.
    ///
    /// # Errors
    /// `ENOENT`, and `ENOSPC` when more files than can be remembered were changed.
    pub fn change(
        &mut self,
        number: u64,
        mode: Option<u16>,
        uid: Option<u32>,
        gid: Option<u32>,
    ) -> Result<Attributes> {
        let node = self.node(number)?;
        let mut files = self.beside.files();
        if files.changed.len() >= CHANGED && !files.changed.contains_key(&number) {
            let mirror = self.seen();
            files.changed.retain(|number, _| Node::of(*number).is_some_and(|node| node.exists(mirror)));
            if files.changed.len() >= CHANGED {
                return Err(Errno::NOSPC);
            }
        }
        let changed = files.changed.entry(number).or_default();
        changed.mode = mode.or(changed.mode);
        changed.uid = uid.or(changed.uid);
        changed.gid = gid.or(changed.gid);
        drop(files);
        Ok(self.attributes_of(node))
    }

    /// Finds a name in a directory.
    ///
    /// # Errors
    /// `ENOENT`.
    pub fn lookup(&self, parent: u64, name: &str) -> Result<Attributes> {
        let child = self.node(parent)?.child(name, self.seen()).ok_or(Errno::NOENT)?;
        Ok(self.attributes_of(child))
    }

    /// Finds a path from the root, for tests and commands.
    ///
    /// # Errors
    /// `ENOENT`.
    pub fn find(&self, path: &str) -> Result<u64> {
        path.split('/')
            .filter(|name| !name.is_empty())
            .try_fold(ROOT, |number, name| Ok(self.lookup(number, name)?.number))
    }

    /// What a directory holds: number, name, whether it is a directory; itself and its parent first.
    ///
    /// # Errors
    /// `ENOENT`, `ENOTDIR`.
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

    /// Opens a file for a thread. What it gives is the file's handle and whether it is a stream.
    ///
    /// # Errors
    /// `ENODEV` for a file of an instance that is gone, and what opening it does may refuse.
    pub fn open(&mut self, number: u64, access: Access, who: u32) -> Result<(u64, bool)> {
        let node = self.node(number).map_err(|_| Errno::NODEV)?;
        let entry = node.entry(self.seen()).ok_or(Errno::ISDIR)?;
        let subject = match node.dir {
            Dir::Options => Subject::Option(node.entry - 1),
            Dir::Cpu(cpu) => Subject::Cpu(cpu),
            Dir::System(system) => Subject::System(system),
            Dir::Event(event) => Subject::Event(event),
            Dir::Instance | Dir::Events | Dir::PerCpu | Dir::Instances => Subject::Instance,
        };
        let at = At { instance: node.instance, subject, who };
        let opened = Open::new(self.mirror(), entry, at, access);
        if access.truncate {
            self.mirror().publish();
        }
        let open = opened?;
        let stream = open.is_stream();
        // An open `id` has the number by itself, whatever becomes of the event.
        let event = match node.dir {
            Dir::Event(event) if entry.name != "id" => Some(event),
            _ => None,
        };
        let format = match node.dir {
            Dir::Event(event) if matches!(entry.name, "format" | "id") => Some(event),
            _ => None,
        };
        let slot = Slot {
            event,
            format,
            prints: matches!(entry.shows, Shows::Trace | Shows::Snapshot | Shows::Pipe | Shows::Hist(_)),
            plain: open.closes_plainly(),
            user: open.user_file(),
            marks: open.marks(self.seen()),
            open: Some(open),
        };
        let mut files = self.beside.files();
        files.last += 1;
        let handle = files.last;
        files.open.insert(handle, slot);
        Ok((handle, stream))
    }

    /// What a read of an open file would have to wait for.
    pub(in crate::fs) fn lookup_for(&self, handle: u64, offset: u64) -> Option<Lookup> {
        let (format, prints) = {
            let files = self.beside.files();
            let slot = files.open.get(&handle)?;
            (slot.format, slot.prints)
        };
        let mirror = self.seen();
        let format = format.filter(|event| mirror.events.known_format(*event).is_none());
        let cold = prints && !mirror.facts.can_print();
        let file = self.look(handle, |open| open.kernel_file(offset)).flatten();
        (format.is_some() || file.is_some() || cold).then(|| Lookup {
            file,
            prints: cold,
            ..self.lookup_of(format)
        })
    }

    /// A question for what printing takes, or for the format of an event.
    pub(in crate::fs) fn lookup_of(&self, format: Option<EventId>) -> Lookup {
        let mirror = self.seen();
        Lookup {
            facts: Arc::clone(&mirror.facts),
            events: Arc::clone(&mirror.events),
            format,
            file: None,
            prints: format.is_none(),
        }
    }

    /// Looks at an open file that is not being served.
    fn look<T>(&self, handle: u64, look: impl FnOnce(&Open) -> T) -> Option<T> {
        self.beside.files().open.get(&handle)?.open.as_ref().map(look)
    }

    /// Takes an open file out while something is done with it.
    fn with<T>(&mut self, handle: u64, act: impl FnOnce(&mut Open, &mut Mirror) -> Result<T>) -> Result<T> {
        let mut files = self.beside.files();
        let slot = files.open.get_mut(&handle).ok_or(Errno::BADF)?;
        if slot.event.is_some_and(|event| self.seen().events.get(event).is_none()) {
            return Err(Errno::NODEV);
        }
        let mut open = slot.open.take().ok_or(Errno::AGAIN)?;
        drop(files);
        let done = act(&mut open, self.mirror());
        if let Some(slot) = self.beside.files().open.get_mut(&handle) {
            slot.open = Some(open);
        }
        done
    }

    /// Whether what is read from an open file is pages.
    pub fn has_pages(&self, handle: u64) -> bool {
        self.look(handle, Open::has_pages).unwrap_or(false)
    }

    /// The number of an open file's table of user events, where it has one.
    pub fn user_file(&self, handle: u64) -> Option<u64> {
        self.beside.user_file(handle)
    }

    /// What is mapped of an open file, where it can be mapped.
    pub fn page(&self, handle: u64) -> Option<Vec<u8>> {
        let mirror = self.seen();
        self.look(handle, |open| open.page(mirror)).flatten()
    }

    /// Reads from an open file.
    ///
    /// # Errors
    /// What the file says; `EBADF` for no handle, `ENODEV` where its event is gone.
    pub fn read(&mut self, handle: u64, offset: u64, size: usize) -> Result<Outcome> {
        loop {
            if let Some(outcome) = self.read_some(handle, offset, size)? {
                return Ok(outcome);
            }
        }
    }

    /// The same, for a while; None when it is to be asked again.
    ///
    /// # Errors
    /// As [`Tree::read`].
    pub(in crate::fs) fn read_some(
        &mut self,
        handle: u64,
        offset: u64,
        size: usize,
    ) -> Result<Option<Outcome>> {
        self.with(handle, |open, mirror| open.read(mirror, offset, size))
    }

    /// The instance of an open file.
    pub(in crate::fs) fn instance_of(&self, handle: u64) -> Option<InstanceId> {
        self.look(handle, |open| open.at.instance)
    }

    /// Takes in what was recorded for an open file's readers, for a while. Whether that was all.
    pub(in crate::fs) fn settle(&mut self, handle: u64) -> bool {
        let Some(instance) = self.look(handle, |open| open.at.instance) else { return true };
        self.mirror().collect_some(instance)
    }

    /// The same for a file that is about to be opened, if its readers begin with what there is then.
    pub(in crate::fs) fn settle_file(&mut self, number: u64) -> bool {
        let Ok(node) = self.node(number) else { return true };
        let shows = node.entry(self.seen()).map(|entry| entry.shows);
        !matches!(shows, Some(Shows::Trace | Shows::Snapshot)) || self.mirror().collect_some(node.instance)
    }

    /// The files of users that a write to an open file names: they are to be looked at first, where nobody has to wait for it.
    pub fn wanted(&self, handle: u64, data: &[u8]) -> Vec<FileRequest> {
        // It takes long for much text: not while the files are locked.
        let names = self.look(handle, Open::names).flatten();
        names.map_or_else(Vec::new, |names| (names.wanted)(data))
    }

    /// Writes to an open file, and says how much was taken. Files that it names are opened while it waits.
    ///
    /// # Errors
    /// As [`Tree::read`].
    pub fn write(&mut self, handle: u64, data: &[u8], who: u32) -> Result<usize> {
        self.write_with(handle, data, who, &Files::at_once())
    }

    /// The same with files that were looked at, those of [`Tree::wanted`].
    ///
    /// # Errors
    /// As [`Tree::read`].
    pub fn write_with(&mut self, handle: u64, data: &[u8], who: u32, files: &Files) -> Result<usize> {
        let moment = attach::moment();
        let done = self.with(handle, |open, mirror| open.write(mirror, data, who, files));
        self.mirror().await_unlinked(moment);
        self.mirror().publish();
        done
    }

    /// What an open file is ready for; `waits` where somebody goes to sleep until it is.
    pub fn poll(&mut self, handle: u64, waits: bool) -> Ready {
        let gone = Ready { input: true, news: false };
        self.with(handle, |open, mirror| Ok(open.poll(mirror, waits))).unwrap_or(gone)
    }

    /// Whether one who polls an open file is to be woken.
    pub fn is_awaited(&mut self, handle: u64) -> bool {
        self.with(handle, |open, mirror| Ok(open.is_awaited(mirror))).unwrap_or(true)
    }

    /// Whether who polls an open file is woken by nothing but our looking at it.
    pub fn needs_looking_at(&self, handle: u64) -> bool {
        self.look(handle, Open::needs_looking_at).unwrap_or(true)
    }

    /// Closes a file.
    pub fn close(&mut self, handle: u64) {
        let closed = self.beside.files().open.remove(&handle);
        if let Some(open) = closed.and_then(|slot| slot.open) {
            open.close(self.mirror());
        }
    }

    /// Makes an instance.
    ///
    /// # Errors
    /// `EPERM` anywhere but in `instances`, `EEXIST`.
    pub fn make_dir(&mut self, parent: u64, name: &str) -> Result<Attributes> {
        if self.node(parent)? != Node::dir(InstanceId::TOP, Dir::Instances) {
            return Err(Errno::PERM);
        }
        let instance = self.mirror().make(name)?;
        Ok(self.attributes_of(Node::dir(instance, Dir::Instance)))
    }

    /// Removes an instance.
    ///
    /// # Errors
    /// `EPERM` anywhere but in `instances`, `ENOENT`, and `EBUSY` while it is in use.
    pub fn remove_dir(&mut self, parent: u64, name: &str) -> Result<()> {
        if self.node(parent)? != Node::dir(InstanceId::TOP, Dir::Instances) {
            return Err(Errno::PERM);
        }
        let done = self.mirror().remove(name);
        self.mirror().publish();
        done
    }
}
