//! Quotas per payer of the resources that all clients share.
//!
//! Each kind of resource has a limit per payer, one for all payers but root together, and one for root. So root can
//! continue after other payers have reached their limits, and the other way round. The payers that have the most leave
//! a part to others ([`Limits::admit`]). A [`Charge`] counts until it is dropped. At most one refusal per minute is
//! logged for each payer and kind. The caller chooses the error number, which depends on the operation.

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use super::{payers::PayerName, registry::EVENT_IDS};
use crate::{kernel::proc::memory, sys::cpus::Cpus};

/// Time between two log lines for one payer and kind.
const QUIET: Duration = Duration::from_secs(60);
/// Pairs of payer and kind whose last log line is remembered; while it is full, refusals of further pairs are not
/// logged.
const REMEMBERED: usize = 1024;

/// Maximum number of user events of all payers but root: a half of the events that an instance can enable.
const CLIENT_EVENTS: usize = 4096;

/// The limits of [`Kind::HeldBytes`] on this machine.
static HELD_BYTES: LazyLock<Limits> =
    LazyLock::new(|| held_bytes(Cpus::online().map_or(1, |cpus| cpus.count()), memory::available()));

/// A kind of resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// ioctl(2) requests whose callers wait for an answer.
    PendingRequests,
    /// User events. Each is charged to one of the payers that hold it.
    UserEvents,
    /// User events that a payer holds.
    HeldEvents,
    /// Bytes of the definitions of user, dynamic and synthetic events.
    DefinitionBytes,
    /// Open files `user_events_data`.
    UserEventFiles,
    /// Entries in the tables of open files `user_events_data`.
    TableEntries,
    /// Addresses of the bits that show programs whether a user event is enabled.
    Enablers,
    /// Address spaces with enable addresses.
    AddressSpaces,
    /// Open files other than `user_events_data`.
    OpenFiles,
    /// Reads that wait for records.
    WaitingReads,
    /// Writes that name files which are being opened, including those that timed out and were not answered yet.
    PendingFiles,
    /// Bytes of queued writes.
    QueuedBytes,
    /// Bytes of pages and texts that open files hold between two reads.
    HeldBytes,
    /// Threads that look for signals of the threads with waiting reads.
    SignalLooks,
}

/// The limits of a kind, in units or bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// For a payer that is not root.
    pub per_payer: usize,
    /// For all payers but root together.
    pub clients: usize,
    /// For root.
    pub root: usize,
}

impl Limits {
    /// Whether a payer may have `own` units when all payers but root together have `clients`, both with the new ones.
    ///
    /// A payer may not have more than what it leaves to others. So the payers that have the most leave a part of the
    /// total to those that have nothing: each payer up to its limit, then a half of the rest, a quarter of it, and so
    /// on.
    pub fn admit(self, payer: u32, own: usize, clients: usize) -> bool {
        if payer == 0 {
            return own <= self.root;
        }
        own <= self.per_payer && clients.saturating_add(own) <= self.clients
    }
}

impl Kind {
    /// The limits of a kind.
    pub fn limits(self) -> Limits {
        self.described().1
    }

    /// The name in messages, and the limits.
    fn described(self) -> (&'static str, Limits) {
        let limits = |per_payer, clients, root| Limits { per_payer, clients, root };
        // A registration has a table entry and an enabler, so neither kind is refused long before the other.
        let registrations = limits(4096, 229_376, 262_144);
        match self {
            Self::PendingRequests => ("pending requests", limits(128, 896, 1024)),
            Self::UserEvents => ("user events", limits(1024, CLIENT_EVENTS, EVENT_IDS - CLIENT_EVENTS)),
            Self::HeldEvents => ("user events", limits(1024, 57_344, 65_536)),
            Self::DefinitionBytes => ("bytes of events' definitions", limits(256 << 10, 14 << 20, 16 << 20)),
            Self::UserEventFiles => ("open user_events_data files", limits(256, 7168, 8192)),
            Self::TableEntries => ("entries in tables of user_events_data files", registrations),
            Self::Enablers => ("enable addresses of user events", registrations),
            Self::AddressSpaces => ("address spaces with user events", limits(256, 14_336, 16_384)),
            Self::OpenFiles => ("open files", limits(1024, 57_344, 65_536)),
            Self::WaitingReads => ("waiting reads", limits(64, 896, 1024)),
            Self::PendingFiles => ("files being opened", limits(4, 24, 32)),
            Self::QueuedBytes => ("bytes of writes that wait", limits(4 << 20, 48 << 20, 64 << 20)),
            Self::HeldBytes => ("bytes that open files hold", *HELD_BYTES),
            Self::SignalLooks => ("looks for signals of waiting reads", limits(2, 12, 16)),
        }
    }
}

/// The limits of [`Kind::HeldBytes`]: a payer can hold 16 MiB and two buffers of the initial size, but at most a
/// sixteenth of the memory that is available at the start, unless that is less than 4 MiB.
fn held_bytes(cpus: usize, available: Option<u64>) -> Limits {
    let most = available.map_or(usize::MAX, |bytes| usize::try_from(bytes / 16).unwrap_or(usize::MAX));
    let per_payer = ((16 << 20) + cpus.saturating_mul(3 << 20)).min(most).max(4 << 20);
    Limits { per_payer, clients: 2 * per_payer, root: per_payer }
}

/// A charge would exceed the limit of a payer or the total.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exceeded;

#[derive(Debug, Default)]
struct Counts {
    by_payer: HashMap<(u32, Kind), usize>,
    /// Of all payers but root.
    clients: HashMap<Kind, usize>,
    logged: HashMap<(u32, Kind), Instant>,
}

/// The counts of all payers. Clones share the counts.
#[derive(Clone, Debug, Default)]
pub struct Quotas {
    counts: Arc<Mutex<Counts>>,
    unlimited: bool,
}

impl Quotas {
    /// Determines the limits that depend on the machine, before clients can use its memory.
    pub fn prepare() {
        LazyLock::force(&HELD_BYTES);
    }

    /// Quotas that refuse nothing, for measurements.
    #[cfg(test)]
    pub(crate) fn unlimited() -> Self {
        Self { unlimited: true, ..Self::default() }
    }

    fn lock(&self) -> MutexGuard<'_, Counts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Charges an amount to a payer until the charge is dropped.
    ///
    /// # Errors
    /// [`Exceeded`] if the amount does not fit the limits of the kind.
    pub fn charge(&self, payer: u32, kind: Kind, amount: usize) -> Result<Charge, Exceeded> {
        self.try_charge(payer, kind, amount).inspect_err(|Exceeded| self.lock().log(payer, kind))
    }

    /// As [`Quotas::charge`], for a client that is not refused anything without the charge.
    ///
    /// # Errors
    /// As [`Quotas::charge`].
    pub fn try_charge(&self, payer: u32, kind: Kind, amount: usize) -> Result<Charge, Exceeded> {
        let mut counts = self.lock();
        let own = counts.by_payer.get(&(payer, kind)).copied().unwrap_or(0).saturating_add(amount);
        let clients = counts.clients.get(&kind).copied().unwrap_or(0).saturating_add(amount);
        if !kind.limits().admit(payer, own, clients) && !self.unlimited {
            return Err(Exceeded);
        }
        counts.take(payer, kind, amount);
        drop(counts);
        Ok(Charge { quotas: self.clone(), payer, kind, amount })
    }

    /// The payers that are charged for anything.
    pub fn charged(&self) -> HashSet<u32> {
        self.lock().by_payer.keys().map(|(payer, _)| *payer).collect()
    }

    /// The amount of a kind that is charged to a payer.
    #[cfg(any(test, feature = "internals"))]
    pub fn used(&self, payer: u32, kind: Kind) -> usize {
        self.lock().by_payer.get(&(payer, kind)).copied().unwrap_or(0)
    }
}

impl Counts {
    fn log(&mut self, payer: u32, kind: Kind) {
        let now = Instant::now();
        if self.logged.get(&(payer, kind)).is_some_and(|last| now.duration_since(*last) < QUIET) {
            return;
        }
        if self.logged.len() >= REMEMBERED {
            self.logged.retain(|_, last| now.duration_since(*last) < QUIET);
            if self.logged.len() >= REMEMBERED {
                return;
            }
        }
        self.logged.insert((payer, kind), now);
        tracing::warn!("{} is refused more {}: its limit is reached", PayerName(payer), kind.described().0);
    }

    fn take(&mut self, payer: u32, kind: Kind, amount: usize) {
        *self.by_payer.entry((payer, kind)).or_default() += amount;
        if payer != 0 {
            *self.clients.entry(kind).or_default() += amount;
        }
    }

    fn give_back(&mut self, payer: u32, kind: Kind, amount: usize) {
        if let Some(own) = self.by_payer.get_mut(&(payer, kind)) {
            *own = own.saturating_sub(amount);
            if *own == 0 {
                self.by_payer.remove(&(payer, kind));
            }
        }
        if let Some(clients) = self.clients.get_mut(&kind).filter(|_| payer != 0) {
            *clients = clients.saturating_sub(amount);
        }
    }
}

/// An amount charged to a payer until this is dropped.
#[derive(Debug)]
pub struct Charge {
    quotas: Quotas,
    payer: u32,
    kind: Kind,
    amount: usize,
}

impl Charge {
    /// The payer that is charged.
    pub fn payer(&self) -> u32 {
        self.payer
    }

    /// The kind of resource.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// The amount that is charged.
    pub fn amount(&self) -> usize {
        self.amount
    }

    /// Takes over the amount of another charge of the same payer and kind.
    pub fn absorb(&mut self, mut other: Self) {
        debug_assert_eq!((self.payer, self.kind), (other.payer, other.kind));
        self.amount += std::mem::take(&mut other.amount);
    }

    /// Passes the charge on to another payer, even beyond its limit.
    pub fn pass_to(&mut self, payer: u32) {
        let mut counts = self.quotas.lock();
        counts.give_back(self.payer, self.kind, self.amount);
        counts.take(payer, self.kind, self.amount);
        drop(counts);
        self.payer = payer;
    }

    /// Reduces the charge by one.
    pub fn give_one_back(&mut self) {
        if self.amount > 0 {
            self.amount -= 1;
            self.quotas.lock().give_back(self.payer, self.kind, 1);
        }
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.quotas.lock().give_back(self.payer, self.kind, self.amount);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_payer_has_a_limit_and_root_has_a_reserve() {
        let quotas = Quotas::default();
        let limits = Kind::PendingRequests.limits();
        let mut held: Vec<Charge> =
            (0..limits.per_payer).map(|_| quotas.charge(7, Kind::PendingRequests, 1).unwrap()).collect();
        assert_eq!(quotas.charge(7, Kind::PendingRequests, 1).err(), Some(Exceeded));
        assert_eq!(quotas.used(7, Kind::PendingRequests), limits.per_payer);
        // Another kind, another payer, and a released charge.
        assert!(quotas.charge(7, Kind::UserEvents, 1).is_ok());
        assert!(quotas.charge(8, Kind::PendingRequests, 1).is_ok());
        held.pop();
        let again = quotas.charge(7, Kind::PendingRequests, 1).unwrap();
        assert_eq!(again.payer(), 7);
        // All other payers together leave root its part.
        for payer in 100.. {
            match quotas.charge(payer, Kind::PendingRequests, limits.per_payer) {
                Ok(charge) => held.push(charge),
                Err(Exceeded) => break,
            }
        }
        let root: Vec<Charge> =
            (0..limits.root).map(|_| quotas.charge(0, Kind::PendingRequests, 1).unwrap()).collect();
        assert!(quotas.charge(0, Kind::PendingRequests, 1).is_err());
        // And root leaves them theirs.
        drop((held, again));
        assert!(quotas.charge(8, Kind::PendingRequests, limits.per_payer).is_ok());
        drop(root);
        // Merged charges.
        let mut one = quotas.charge(7, Kind::Enablers, 1).unwrap();
        one.absorb(quotas.charge(7, Kind::Enablers, 2).unwrap());
        one.give_one_back();
        assert_eq!((one.amount(), quotas.used(7, Kind::Enablers)), (2, 2));
        // A charge that was passed on may exceed the limit.
        let full = quotas.charge(9, Kind::Enablers, Kind::Enablers.limits().per_payer).unwrap();
        one.pass_to(9);
        assert_eq!((one.payer(), quotas.used(7, Kind::Enablers)), (9, 0));
        assert_eq!(quotas.used(9, Kind::Enablers), full.amount() + 2);
        assert!(quotas.charge(9, Kind::Enablers, 1).is_err());
        drop((one, full));
        assert_eq!(quotas.lock().clients.values().sum::<usize>(), 0);
        assert!(quotas.lock().by_payer.is_empty());
    }

    #[test]
    fn payers_with_much_leave_some_to_those_that_have_nothing() {
        let limits = Limits { per_payer: 8, clients: 112, root: 64 };
        let (mut all, mut owns) = (0, Vec::new());
        for payer in 1..=20 {
            let mut own = 0;
            while limits.admit(payer, own + 1, all + 1) {
                (own, all) = (own + 1, all + 1);
            }
            owns.push(own);
        }
        assert_eq!(owns[..17], [8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 4, 2, 1, 0]);
        assert!(limits.admit(0, 64, 112) && !limits.admit(0, 65, 0));
        assert!(!limits.admit(1, usize::MAX, usize::MAX));
    }

    #[test]
    fn one_client_has_a_seventh_and_no_limit_exceeds_that_of_all() {
        assert_eq!(Kind::PendingRequests.limits().per_payer * 7, Kind::PendingRequests.limits().clients);
        for kind in [
            Kind::PendingRequests,
            Kind::UserEvents,
            Kind::HeldEvents,
            Kind::DefinitionBytes,
            Kind::UserEventFiles,
            Kind::TableEntries,
            Kind::Enablers,
            Kind::AddressSpaces,
            Kind::OpenFiles,
            Kind::WaitingReads,
        ] {
            let Limits { per_payer, clients, root } = kind.limits();
            assert!(2 * per_payer <= clients && per_payer <= root, "{kind:?}");
        }
        // Each payer can hold a full buffer of the initial size, on large machines too.
        for cpus in [1, 2, 64, 1024] {
            assert!(held_bytes(cpus, None).per_payer >= cpus * (1408 << 10));
        }
        let all = |cpus, available| {
            let Limits { clients, root, .. } = held_bytes(cpus, available);
            (clients + root) >> 20
        };
        assert_eq!(
            [all(2, None), all(64, None), all(64, Some(1 << 30)), all(2, Some(0))],
            [66, 624, 192, 12]
        );
        assert!(Quotas::unlimited().charge(1, Kind::UserEvents, 1 << 30).is_ok());
    }
}
