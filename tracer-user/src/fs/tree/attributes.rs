//! The attributes of files: what stat(2) shows, and what chmod(2) and chown(2) change.

/// The attributes that stat(2) shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attributes {
    /// The number of the file.
    pub number: u64,
    /// Whether it is a directory.
    pub is_dir: bool,
    /// Permissions.
    pub mode: u16,
    /// The number of links.
    pub links: u32,
    /// The owner.
    pub uid: u32,
    /// The group.
    pub gid: u32,
    /// Whether the name exists as long as the instance.
    pub lasting: bool,
    /// Size in bytes.
    pub size: u64,
    /// Whether users other than root may open the file, or could open it before a change.
    pub opened: bool,
}

impl Attributes {
    /// Whether a user other than root may open the file now. Root's group counts as root.
    pub(super) fn opens_to_others(&self) -> bool {
        let Self { mode, uid, gid, .. } = *self;
        mode & 0o006 != 0 || (gid != 0 && mode & 0o060 != 0) || (uid != 0 && mode & 0o600 != 0)
    }
}

/// The owner of all files, and the permissions of the top directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owner {
    /// The user.
    pub uid: u32,
    /// The group.
    pub gid: u32,
    /// The permissions of the top directory.
    pub mode: u16,
}

impl Default for Owner {
    /// Only root has access, as in tracefs.
    fn default() -> Self {
        Self { uid: 0, gid: 0, mode: 0o700 }
    }
}

/// Changes of attributes by chmod(2) or chown(2); `None` leaves an attribute unchanged.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Changed {
    /// The serial number of the file ([`Node::serial`](super::node::Node::serial)).
    pub(super) serial: u64,
    pub(super) mode: Option<u16>,
    pub(super) uid: Option<u32>,
    pub(super) gid: Option<u32>,
    /// [`Attributes::opened`].
    pub(super) opened: bool,
}
