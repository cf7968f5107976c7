//! The payer of a request: the uid whose quotas and turns it counts for.
//!
//! One person can have many uids. In a user namespace a process can take each uid that is mapped there. An unprivileged
//! user can map the uids that `/etc/subuid` grants, usually 65,536. All of them count for the owner of the namespace. A
//! process outside of the namespace can have such a uid, too, for example by a set-user-ID file, so the uids of
//! `/etc/subuid` count for the user to whom they are granted.
//!
//! Root's containers have namespaces that root owns, and so have sandboxes that a set-user-ID program makes. In these,
//! a uid that the host knows counts as outside. For other uids the namespace is the payer. Its number is greater than
//! all uids in use (`PROC_DYNAMIC_FIRST`, include/linux/proc_ns.h). It stays open while it is charged, so that no other
//! namespace gets its number.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    fmt, fs,
    fs::File,
    io::{self, Read},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant, SystemTime},
};

use super::quota::Quotas;
use crate::sys::process::user_namespace::{UserNamespace, number_of};

/// The smallest number of a namespace that is not the initial one.
const FIRST_NAMESPACE: u32 = 0xf000_0000;
/// Maximum depth of user namespaces (`create_user_ns()`, kernel/user_namespace.c).
const DEPTH: usize = 33;
/// Maximum number of namespaces whose outermost namespace is remembered.
const REMEMBERED: usize = 1024;
/// Number of namespaces that are payers from which on those without charges are closed.
const PAYERS: usize = 256;
/// How often the files of subordinate ids are looked at.
const LOOK_INTERVAL: Duration = Duration::from_secs(5);
/// Maximum bytes of such a file that are read.
const FILE_MAX: u64 = 4 << 20;

const SUBUID: &str = "/etc/subuid";
const PASSWD: &str = "/etc/passwd";

/// A payer, for messages.
#[derive(Clone, Copy, Debug)]
pub struct PayerName(pub u32);

impl fmt::Display for PayerName {
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
    files: Arc<Files>,
    looked: Mutex<Instant>,
    known: Mutex<KnownNamespaces>,
    quotas: Quotas,
}

/// A user namespace whose parent is the one of this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Outermost {
    owner: u32,
    number: u32,
}

/// Namespaces that requests came from. An open namespace keeps its number, and those of its ancestors.
#[derive(Debug, Default)]
struct KnownNamespaces {
    by_number: HashMap<u64, (UserNamespace, Outermost)>,
    /// Numbers in the order in which they were found.
    order: VecDeque<u64>,
    payers: HashMap<u32, UserNamespace>,
}

#[derive(Debug, Default)]
struct Files {
    /// The times of change of the files when they were read.
    read: Mutex<[Option<SystemTime>; 2]>,
    accounts: Mutex<Arc<Accounts>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl KnownNamespaces {
    fn outermost(&self, number: u64) -> Option<Outermost> {
        self.by_number.get(&number).map(|(_, outermost)| *outermost)
    }

    /// Remembers the outermost namespace of a namespace, instead of the oldest that is remembered.
    fn remember(&mut self, number: u64, namespace: UserNamespace, outermost: Outermost) {
        if self.by_number.insert(number, (namespace, outermost)).is_some() {
            return;
        }
        self.order.push_back(number);
        if self.order.len() > REMEMBERED
            && let Some(oldest) = self.order.pop_front()
        {
            self.by_number.remove(&oldest);
        }
    }

    /// Keeps a namespace that is a payer open, at least while it is charged.
    fn keep(&mut self, payer: u32, thread: u32, quotas: &Quotas) {
        if self.payers.contains_key(&payer) {
            return;
        }
        if self.payers.len() >= PAYERS {
            let charged = quotas.charged();
            self.payers.retain(|payer, _| charged.contains(payer));
        }
        if let Ok(namespace) = UserNamespace::of(thread) {
            self.payers.insert(payer, namespace);
        }
    }
}

impl Payers {
    /// Finds payers whose resources these quotas count.
    pub fn new(quotas: Quotas) -> Self {
        let files = Files::default();
        files.look();
        let own = number_of(std::process::id()).ok();
        let looked = Mutex::new(Instant::now());
        Self { own, files: Arc::new(files), looked, known: Mutex::default(), quotas }
    }

    /// The payer of a request of a thread with this uid. The thread waits for the answer, so it exists. Takes no
    /// reference to its address space.
    pub fn payer(&self, uid: u32, thread: u32) -> u32 {
        if uid == 0 {
            return 0;
        }
        let number = number_of(thread).ok();
        let accounts = self.accounts();
        let outside = || accounts.user(uid).unwrap_or(uid);
        let Some(number) = number.filter(|number| Some(*number) != self.own) else { return outside() };
        let Some(outermost) = self.outermost(number, thread) else { return outside() };
        let payer = accounts.of_namespace((outermost.owner, outermost.number), uid);
        if payer == outermost.number {
            lock(&self.known).keep(payer, thread, &self.quotas);
        }
        payer
    }

    /// The outermost namespace of a thread in another namespace, which has this number; `None` if that is outside of
    /// this process's namespace. A namespace can have 32 ancestors, and the client decides how many, so the answers are
    /// remembered.
    fn outermost(&self, number: u64, thread: u32) -> Option<Outermost> {
        if let Some(known) = lock(&self.known).outermost(number) {
            return Some(known);
        }
        let first = UserNamespace::of(thread).ok()?;
        let number = first.number().ok()?;
        let found = self.climb(&first)?;
        lock(&self.known).remember(number, first, found);
        Some(found)
    }

    fn climb(&self, first: &UserNamespace) -> Option<Outermost> {
        let mut below: Option<UserNamespace> = None;
        for _ in 0..DEPTH {
            let namespace = below.as_ref().unwrap_or(first);
            let parent = namespace.parent().ok()?;
            let number = parent.number().ok()?;
            if Some(number) == self.own {
                let number = namespace.number().ok()?.try_into().ok()?;
                return Some(Outermost { owner: namespace.owner().ok()?, number });
            }
            if let Some(known) = lock(&self.known).outermost(number) {
                return Some(known);
            }
            below = Some(parent);
        }
        None
    }

    /// The accounts. Another thread reads their files again if they have changed.
    fn accounts(&self) -> Arc<Accounts> {
        let mut looked = lock(&self.looked);
        if looked.elapsed() >= LOOK_INTERVAL {
            *looked = Instant::now();
            let files = Arc::clone(&self.files);
            let _ = std::thread::Builder::new().name("accounts".to_owned()).spawn(move || files.look());
        }
        drop(looked);
        Arc::clone(&lock(&self.files.accounts))
    }
}

impl Files {
    /// Reads the files if they have changed and no other thread is reading them.
    fn look(&self) {
        let Ok(mut read) = self.read.try_lock() else { return };
        let changed = |path| fs::metadata(path).and_then(|found| found.modified()).ok();
        let times = [changed(SUBUID), changed(PASSWD)];
        if times == *read {
            return;
        }
        if let (Ok(subuid), Ok(passwd)) = (content(SUBUID), content(PASSWD)) {
            *lock(&self.accounts) = Arc::new(Accounts::parse(&subuid, &passwd));
            *read = times;
        }
    }
}

/// The content of a file; nothing if there is no file.
fn content(path: &str) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    match File::open(path) {
        Ok(file) => file.take(FILE_MAX).read_to_end(&mut bytes).map(|_| bytes),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(bytes),
        Err(error) => Err(error),
    }
}

/// The accounts of the host, and the subordinate ids that are granted to them (subuid(5)).
#[derive(Debug, Default, PartialEq, Eq)]
struct Accounts {
    uids: HashSet<u32>,
    /// The first id, the id after the last one, and the user, sorted by the first id; and the greatest end so far.
    granted: Vec<(u32, u32, u32, u32)>,
}

impl Accounts {
    /// Reads the lines of `/etc/subuid`, `USER:FIRST:COUNT`, and of `/etc/passwd`. Other lines are ignored.
    fn parse(subuid: &[u8], passwd: &[u8]) -> Self {
        fn fields(text: &[u8]) -> impl Iterator<Item = Vec<&str>> {
            text.split(|byte| *byte == b'\n')
                .filter_map(|line| Some(std::str::from_utf8(line).ok()?.split(':').collect()))
        }
        let mut uids = HashMap::new();
        for line in fields(passwd) {
            if let [name, _, uid, ..] = line.as_slice()
                && let Ok(uid) = uid.parse::<u32>()
            {
                uids.entry(*name).or_insert(uid);
            }
        }
        let range = |line: Vec<&str>| {
            let [user, first, count] = line.as_slice() else { return None };
            let (first, count): (u32, u32) = (first.parse().ok()?, count.parse().ok()?);
            let user = user.parse().ok().or_else(|| uids.get(user).copied())?;
            (first > 0 && count > 0 && user != 0).then(|| (first, first.saturating_add(count), user))
        };
        let mut granted: Vec<_> = fields(subuid).filter_map(range).collect();
        granted.sort_unstable();
        let mut most = 0;
        let granted = granted.into_iter().map(|(first, end, user)| {
            most = end.max(most);
            (first, end, user, most)
        });
        Self { granted: granted.collect(), uids: uids.into_values().collect() }
    }

    /// The user for which a uid counts: the account that has it, or to which it is granted. `None` for other uids.
    fn user(&self, uid: u32) -> Option<u32> {
        if self.uids.contains(&uid) {
            return Some(uid);
        }
        let before = self.granted.partition_point(|(first, ..)| *first <= uid);
        let mut near = self.granted.get(..before)?.iter().rev().take_while(|(.., most)| uid < *most);
        near.find(|(_, end, ..)| uid < *end).map(|(_, _, user, _)| *user)
    }

    /// The payer for a uid in a namespace with this owner and number.
    fn of_namespace(&self, (owner, number): (u32, u32), uid: u32) -> u32 {
        if owner == 0 { self.user(uid).unwrap_or(number) } else { self.user(owner).unwrap_or(owner) }
    }
}

#[cfg(test)]
mod tests {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

    use super::*;
    use crate::engine::quota::Kind;

    #[test]
    fn subordinate_ids_count_for_the_user_to_whom_they_are_granted() {
        let passwd =
            b"root:x:0:0::/root:/bin/sh\nanna:x:1000:1000::/home/anna:/bin/sh\nbad\nben:x:1001:1:::\n";
        let subuid =
            b"anna:100000:65536\n1001:165536:10\n# text\nben:300000:5\nnobody-here:1:2\nanna:x:1\n:\n\
            root:7:9\nben:100100:10\nanna:1001:1\n";
        let accounts = Accounts::parse(subuid, passwd);
        assert_eq!(accounts.granted.len(), 5);
        for (id, user) in [
            (99_999, None),
            (100_000, Some(1000)),
            // Ranges within others.
            (100_105, Some(1001)),
            (100_200, Some(1000)),
            (165_535, Some(1000)),
            (165_545, Some(1001)),
            (165_546, None),
            (300_004, Some(1001)),
            (300_005, None),
            // Accounts count for themselves.
            (1001, Some(1001)),
            (8, None),
        ] {
            assert_eq!(accounts.user(id), user, "{id}");
        }
        let all = Accounts::parse(b"5:4294967295:4294967295\n5:4294967000:295", b"");
        assert_eq!((all.user(u32::MAX - 1), all.user(u32::MAX)), (Some(5), None));
        assert_eq!(Accounts::parse(b"", b"\xff\n"), Accounts::default());
    }

    #[test]
    fn a_namespace_counts_for_its_owner_and_roots_for_known_uids() {
        let accounts = Accounts::parse(b"anna:100000:65536\n", b"anna:x:1000:1000:::\n");
        let number = FIRST_NAMESPACE + 7;
        for (owner, uid, payer) in [
            (1000, 100_005, 1000),
            (1000, 7, 1000),
            // A namespace that was made with a subordinate id.
            (100_005, 5, 1000),
            (1234, 100_005, 1234),
            // A container of root's, and a sandbox that a set-user-ID program made.
            (0, 500_000, number),
            (0, 1000, 1000),
            (0, 100_005, 1000),
        ] {
            assert_eq!(accounts.of_namespace((owner, number), uid), payer, "{owner} {uid}");
        }
    }

    #[test]
    fn this_process_and_missing_ones_pay_for_themselves() {
        let payers = Payers::new(Quotas::default());
        *lock(&payers.files.accounts) = Arc::default();
        let own = std::process::id();
        assert_eq!((payers.payer(0, own), payers.payer(1234, own), payers.payer(1234, 0)), (0, 1234, 1234));
        assert_eq!(PayerName(7).to_string(), "uid 7");
        assert_eq!(PayerName(u32::MAX).to_string(), "user namespace 4294967295");
    }

    #[test]
    fn namespaces_are_remembered_and_charged_ones_stay_open() {
        // Each remembered namespace has a descriptor, and the usual soft limit is 1,024.
        let limit = getrlimit(Resource::Nofile);
        if limit.current.is_some_and(|current| current < 4096) {
            let current = Some(limit.maximum.map_or(4096, |most| most.min(4096)));
            setrlimit(Resource::Nofile, Rlimit { current, ..limit }).unwrap();
        }
        let (mut known, own) = (KnownNamespaces::default(), std::process::id());
        let open = || UserNamespace::of(own).unwrap();
        let of = |number| Outermost { owner: number, number };
        for number in 0..REMEMBERED as u32 + 10 {
            known.remember(number.into(), open(), of(number));
            known.remember(number.into(), open(), of(number));
        }
        assert_eq!((known.by_number.len(), known.order.len()), (REMEMBERED, REMEMBERED));
        assert_eq!((known.outermost(9), known.outermost(10)), (None, Some(of(10))));
        let quotas = Quotas::default();
        let charge = quotas.charge(FIRST_NAMESPACE, Kind::OpenFiles, 1).unwrap();
        for number in 0..=PAYERS as u32 {
            known.keep(FIRST_NAMESPACE + number, own, &quotas);
        }
        let mut kept: Vec<_> = known.payers.keys().copied().collect();
        kept.sort_unstable();
        assert_eq!(kept, [FIRST_NAMESPACE, FIRST_NAMESPACE + PAYERS as u32]);
        drop(charge);
        assert!(quotas.charged().is_empty());
    }
}
