//! The payer of a request: the uid whose quotas and turns it counts for.
//!
//! One person can have many uids. In a user namespace a process can take each uid that is mapped there. An unprivileged
//! user can map the uids that `/etc/subuid` grants, usually 65,536. All of them count for the owner of the namespace. A
//! process outside of the namespace can have such a uid, too, for example by a set-user-ID file, so the uids of
//! `/etc/subuid` count for the user to whom they are granted.
//!
//! Root's containers have namespaces that root owns. Each of them is a payer of its own. Its number is the number of the
//! namespace, which is greater than all uids in use (`PROC_DYNAMIC_FIRST`, include/linux/proc_ns.h).

use std::{
    fmt,
    fs::File,
    io::Read,
    path::Path,
    sync::{Mutex, PoisonError},
    time::{Duration, Instant, SystemTime},
};

use crate::sys::process::user_namespace::{UserNamespace, number_of};

/// The smallest number of a namespace that is not the initial one.
const FIRST_NAMESPACE: u32 = 0xf000_0000;
/// Maximum depth of user namespaces (`create_user_ns()`, kernel/user_namespace.c).
const DEPTH: usize = 33;
/// How often the files of subordinate ids are looked at.
const LOOK_INTERVAL: Duration = Duration::from_secs(5);
/// Maximum bytes of such a file that are read.
const FILE_MAX: u64 = 4 << 20;

const SUBUID: &str = "/etc/subuid";
const PASSWD: &str = "/etc/passwd";

/// A payer, for messages.
#[derive(Clone, Copy, Debug)]
pub struct Shown(pub u32);

impl fmt::Display for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = if self.0 >= FIRST_NAMESPACE { "user namespace" } else { "uid" };
        write!(f, "{what} {}", self.0)
    }
}

/// Finds payers.
#[derive(Debug)]
pub struct Payers {
    /// The number of this process's user namespace.
    own: Option<u64>,
    subordinate: Mutex<Subordinate>,
}

#[derive(Debug, Default)]
struct Subordinate {
    ids: SubordinateIds,
    looked: Option<Instant>,
    /// The times of change of the files that were read.
    read: [Option<SystemTime>; 2],
}

impl Default for Payers {
    fn default() -> Self {
        Self { own: number_of(std::process::id()).ok(), subordinate: Mutex::default() }
    }
}

impl Payers {
    /// The payer of a request of a thread with this uid. The thread waits for the answer, so it exists. Takes no
    /// reference to its address space.
    pub fn payer(&self, uid: u32, thread: u32) -> u32 {
        if uid == 0 {
            return 0;
        }
        let number = number_of(thread).ok();
        if number.is_none() || number == self.own {
            return self.granted_to(uid);
        }
        self.in_namespace(thread).unwrap_or_else(|| self.granted_to(uid))
    }

    /// The payer for a thread in another namespace; `None` if that is outside of this process's namespace.
    fn in_namespace(&self, thread: u32) -> Option<u32> {
        let mut namespace = UserNamespace::of(thread).ok()?;
        for _ in 0..DEPTH {
            let parent = namespace.parent().ok()?;
            if parent.number().ok() == self.own {
                let owner = namespace.owner().ok()?;
                return if owner == 0 {
                    namespace.number().ok()?.try_into().ok()
                } else {
                    Some(self.granted_to(owner))
                };
            }
            namespace = parent;
        }
        None
    }

    /// The user to whom a uid is granted as a subordinate id, or the uid.
    fn granted_to(&self, uid: u32) -> u32 {
        let mut subordinate = self.subordinate.lock().unwrap_or_else(PoisonError::into_inner);
        if subordinate.looked.is_none_or(|last| last.elapsed() >= LOOK_INTERVAL) {
            subordinate.look();
        }
        subordinate.ids.user(uid).unwrap_or(uid)
    }
}

impl Subordinate {
    fn look(&mut self) {
        self.looked = Some(Instant::now());
        let changed = |path| std::fs::metadata(path).and_then(|found| found.modified()).ok();
        let found = [changed(SUBUID), changed(PASSWD)];
        if found != self.read {
            self.read = found;
            self.ids = SubordinateIds::parse(&content(SUBUID.as_ref()), &content(PASSWD.as_ref()));
        }
    }
}

/// The content of a file; nothing if it cannot be read.
fn content(path: &Path) -> Vec<u8> {
    let mut bytes = Vec::new();
    if let Ok(file) = File::open(path) {
        let _ = file.take(FILE_MAX).read_to_end(&mut bytes);
    }
    bytes
}

/// Ranges of subordinate ids (subuid(5)).
#[derive(Debug, Default, PartialEq, Eq)]
struct SubordinateIds {
    /// The first id, the id after the last one, and the user. Sorted by the first id.
    ranges: Vec<(u32, u32, u32)>,
}

impl SubordinateIds {
    /// Reads the lines of `/etc/subuid`, `USER:FIRST:COUNT`, with the names of `/etc/passwd`. Other lines are ignored.
    fn parse(subuid: &[u8], passwd: &[u8]) -> Self {
        fn fields(text: &[u8]) -> impl Iterator<Item = Vec<&str>> {
            text.split(|byte| *byte == b'\n')
                .filter_map(|line| Some(std::str::from_utf8(line).ok()?.split(':').collect()))
        }
        let uid_of = |name: &str| {
            let line = fields(passwd).find(|line| line.first() == Some(&name))?;
            line.get(2)?.parse().ok()
        };
        let range = |line: Vec<&str>| {
            let [user, first, count] = line.as_slice() else { return None };
            let (first, count): (u32, u32) = (first.parse().ok()?, count.parse().ok()?);
            let user = user.parse().ok().or_else(|| uid_of(user))?;
            // Nobody is granted a uid of the host's own.
            (first > 0 && count > 0 && user != 0).then(|| (first, first.saturating_add(count), user))
        };
        let mut ranges: Vec<_> = fields(subuid).filter_map(range).collect();
        ranges.sort_unstable();
        Self { ranges }
    }

    /// The user to whom an id is granted.
    fn user(&self, id: u32) -> Option<u32> {
        let after = self.ranges.partition_point(|(first, ..)| *first <= id);
        let (_, end, user) = self.ranges.get(after.checked_sub(1)?)?;
        (id < *end).then_some(*user)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subordinate_ids_count_for_the_user_to_whom_they_are_granted() {
        let passwd =
            b"root:x:0:0::/root:/bin/sh\nanna:x:1000:1000::/home/anna:/bin/sh\nbad\nben:x:1001:1:::\n";
        let subuid = b"anna:100000:65536\n1001:165536:10\n# text\nben:300000:5\nnobody-here:1:2\nanna:x:1\n:\nroot:7:9\n";
        let ids = SubordinateIds::parse(subuid, passwd);
        assert_eq!(
            ids.ranges,
            [(100_000, 165_536, 1000), (165_536, 165_546, 1001), (300_000, 300_005, 1001)]
        );
        for (id, user) in [
            (99_999, None),
            (100_000, Some(1000)),
            (165_535, Some(1000)),
            (165_545, Some(1001)),
            (165_546, None),
            (300_004, Some(1001)),
            (300_005, None),
        ] {
            assert_eq!(ids.user(id), user, "{id}");
        }
        let all = SubordinateIds::parse(b"5:4294967295:4294967295\n5:4294967000:295", b"");
        assert_eq!((all.user(u32::MAX - 1), all.user(u32::MAX)), (Some(5), None));
        assert_eq!(SubordinateIds::parse(b"", b"\xff\n"), SubordinateIds::default());
    }

    #[test]
    fn this_process_and_missing_ones_pay_for_themselves() {
        let payers = Payers::default();
        *payers.subordinate.lock().unwrap() =
            Subordinate { looked: Some(Instant::now()), ..Subordinate::default() };
        let own = std::process::id();
        assert_eq!((payers.payer(0, own), payers.payer(1234, own), payers.payer(1234, 0)), (0, 1234, 1234));
        assert_eq!(
            (Shown(7).to_string(), Shown(u32::MAX).to_string().as_str()),
            ("uid 7".to_owned(), "user namespace 4294967295")
        );
    }
}
