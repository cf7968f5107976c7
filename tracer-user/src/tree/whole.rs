//! The tree as a whole: directories, open files, attributes. It knows nothing of FUSE, so that tests use it as it is.

use std::{collections::HashMap, time::SystemTime};

use rustix::io::Errno;

use super::{
    entry::{At, Result},
    node::{Dir, Node, ROOT},
    open::Open,
};
use crate::control::instance::{Mirror, TOP};

/// What a file is ready for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ready {
    /// A read would not wait, or shows something new.
    pub input: bool,
    /// There is news since anything was last asked of the file.
    pub news: bool,
}

impl Ready {
    /// Whether it is ready for anything.
    pub fn any(self) -> bool {
        self.input || self.news
    }
}

/// How a file is opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Access {
    /// To be read.
    pub read: bool,
    /// To be written.
    pub write: bool,
    /// Emptied first.
    pub truncate: bool,
}

/// What a read comes to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// These bytes; none at the end.
    Data(Vec<u8>),
    /// Nothing yet.
    Wait,
}

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

/// The tree.
pub struct Tree {
    mirror: Mirror,
    open: HashMap<u64, Open>,
    /// The events of those that are files of one.
    of_event: HashMap<u64, u32>,
    next: u64,
    changed: HashMap<u64, Changed>,
    owner: Owner,
    /// When it was made: the time of all files.
    pub since: SystemTime,
}

impl Tree {
    /// A tree over instances.
    pub fn new(mut mirror: Mirror, owner: Owner) -> Self {
        mirror.publish();
        Self {
            mirror,
            open: HashMap::new(),
            of_event: HashMap::new(),
            next: 1,
            changed: HashMap::new(),
            owner,
            since: SystemTime::now(),
        }
    }

    /// The instances.
    pub fn mirror(&mut self) -> &mut Mirror {
        &mut self.mirror
    }

    fn node(&self, number: u64) -> Result<Node> {
        // A file of an instance that is gone has no device any more, as the kernel has it.
        Node::of(number).filter(|node| node.exists(&self.mirror)).ok_or(Errno::NOENT)
    }

    fn attributes_of(&self, node: Node) -> Attributes {
        let number = node.number();
        let (mode, links) = node.mode(&self.mirror);
        let changed = self.changed.get(&number).copied().unwrap_or_default();
        Attributes {
            number,
            is_dir: node.is_dir(),
            mode: changed.mode.unwrap_or(if number == ROOT { self.owner.mode } else { mode }),
            links,
            uid: changed.uid.unwrap_or(self.owner.uid),
            gid: changed.gid.unwrap_or(self.owner.gid),
            lasting: node.is_lasting(&self.mirror),
            size: node.size(&self.mirror),
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
    /// `ENOENT`.
    pub fn change(
        &mut self,
        number: u64,
        mode: Option<u16>,
        uid: Option<u32>,
        gid: Option<u32>,
    ) -> Result<Attributes> {
        let node = self.node(number)?;
        let changed = self.changed.entry(number).or_default();
        changed.mode = mode.or(changed.mode);
        changed.uid = uid.or(changed.uid);
        changed.gid = gid.or(changed.gid);
        Ok(self.attributes_of(node))
    }

    /// Finds a name in a directory.
    ///
    /// # Errors
    /// `ENOENT`.
    pub fn lookup(&self, parent: u64, name: &str) -> Result<Attributes> {
        let child = self.node(parent)?.child(name, &self.mirror).ok_or(Errno::NOENT)?;
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
            vec![(number, ".".to_owned(), true), (node.parent(&self.mirror).number(), "..".to_owned(), true)];
        let children = node.children(&self.mirror).ok_or(Errno::NOENT)?;
        all.extend(children.into_iter().map(|(name, child)| (child.number(), name, child.is_dir())));
        Ok(all)
    }

    /// Opens a file for a thread. What it gives is the file's handle and whether it is a stream.
    ///
    /// # Errors
    /// `ENODEV` for a file of an instance that is gone, and what opening it does may refuse.
    pub fn open(&mut self, number: u64, access: Access, who: u32) -> Result<(u64, bool)> {
        let node = self.node(number).map_err(|_| Errno::NODEV)?;
        let entry = node.entry(&self.mirror).ok_or(Errno::ISDIR)?;
        let (index, cpu) = match node.dir {
            Dir::Options => (node.entry - 1, None),
            Dir::Cpu(cpu) => (cpu, Some(cpu)),
            Dir::System(index) | Dir::Event(index) => (index, None),
            _ => (0, None),
        };
        let at = At { instance: node.instance, index, cpu, who };
        let opened = Open::new(&mut self.mirror, entry, at, access);
        if access.truncate {
            self.mirror.publish();
        }
        let open = opened?;
        let stream = open.is_stream();
        let handle = self.next;
        self.next += 1;
        self.open.insert(handle, open);
        // An open `id` has the number by itself, whatever becomes of the event.
        let outlives = entry.name == "id";
        if let (Dir::Event(event), false) = (node.dir, outlives) {
            self.of_event.insert(handle, event);
        }
        Ok((handle, stream))
    }

    /// Whether what is read from an open file is pages.
    pub fn has_pages(&self, handle: u64) -> bool {
        self.open.get(&handle).is_some_and(Open::has_pages)
    }

    /// The number of an open file's table of user events, where it has one.
    pub fn user_file(&self, handle: u64) -> Option<u64> {
        self.open.get(&handle)?.user_file()
    }

    /// What is mapped of an open file, where it can be mapped.
    pub fn page(&self, handle: u64) -> Option<Vec<u8>> {
        self.open.get(&handle)?.page(&self.mirror)
    }

    /// Whether an open file is one of an event that is gone.
    fn is_gone(&self, handle: u64) -> bool {
        self.of_event.get(&handle).is_some_and(|event| self.mirror.events.get(*event).is_none())
    }

    /// Reads from an open file.
    ///
    /// # Errors
    /// What the file says; `EBADF` for no handle, `ENODEV` where its event is gone.
    pub fn read(&mut self, handle: u64, offset: u64, size: usize) -> Result<Outcome> {
        if self.is_gone(handle) {
            return Err(Errno::NODEV);
        }
        self.open.get_mut(&handle).ok_or(Errno::BADF)?.read(&mut self.mirror, offset, size)
    }

    /// Writes to an open file, and says how much was taken.
    ///
    /// # Errors
    /// As [`Tree::read`].
    pub fn write(&mut self, handle: u64, data: &[u8], who: u32) -> Result<usize> {
        if self.is_gone(handle) {
            return Err(Errno::NODEV);
        }
        let done = self.open.get_mut(&handle).ok_or(Errno::BADF)?.write(&mut self.mirror, data, who);
        self.mirror.publish();
        done
    }

    /// What an open file is ready for; `waits` where somebody goes to sleep until it is.
    pub fn poll(&mut self, handle: u64, waits: bool) -> Ready {
        let gone = Ready { input: true, news: false };
        self.open.get_mut(&handle).map_or(gone, |open| open.poll(&mut self.mirror, waits))
    }

    /// Whether one who polls an open file is to be woken.
    pub fn is_awaited(&mut self, handle: u64) -> bool {
        self.open.get(&handle).is_none_or(|open| open.is_awaited(&mut self.mirror))
    }

    /// Whether who polls an open file is woken by nothing but our looking at it.
    pub fn needs_looking_at(&self, handle: u64) -> bool {
        self.open.get(&handle).is_none_or(Open::needs_looking_at)
    }

    /// Closes a file.
    pub fn close(&mut self, handle: u64) {
        self.of_event.remove(&handle);
        if let Some(open) = self.open.remove(&handle) {
            open.close(&mut self.mirror);
        }
    }

    /// Makes an instance.
    ///
    /// # Errors
    /// `EPERM` anywhere but in `instances`, `EEXIST`.
    pub fn make_dir(&mut self, parent: u64, name: &str) -> Result<Attributes> {
        if self.node(parent)? != Node::dir(TOP, Dir::Instances) {
            return Err(Errno::PERM);
        }
        let instance = self.mirror.make(name)?;
        Ok(self.attributes_of(Node::dir(instance, Dir::Instance)))
    }

    /// Removes an instance.
    ///
    /// # Errors
    /// `EPERM` anywhere but in `instances`, `ENOENT`, and `EBUSY` while it is in use.
    pub fn remove_dir(&mut self, parent: u64, name: &str) -> Result<()> {
        if self.node(parent)? != Node::dir(TOP, Dir::Instances) {
            return Err(Errno::PERM);
        }
        let done = self.mirror.remove(name);
        self.mirror.publish();
        done
    }
}
