//! Quotas per uid of the resources that all clients share.
//!
//! Each kind of resource has a limit per uid, a total limit, and a part of the total that is reserved for uid 0, so
//! that root can continue after other uids have reached their limits. A [`Charge`] counts until it is dropped. Only the
//! total applies to uid 0. At most one refusal per minute is logged for each uid and kind. The caller chooses the error
//! number, which depends on the operation.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use super::registry::EVENT_IDS;

/// Time between two log lines for one uid and kind.
const QUIET: Duration = Duration::from_secs(60);
/// Pairs of uid and kind whose last log line is remembered; while it is full, refusals of further pairs are not logged.
const REMEMBERED: usize = 1024;

/// A kind of resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// ioctl(2) requests whose callers wait for an answer.
    PendingRequests,
    /// User events that clients registered.
    UserEvents,
    /// Bytes of the definitions of user, dynamic and synthetic events.
    DefinitionBytes,
    /// Open files `user_events_data`.
    UserEventFiles,
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
    /// Threads that look for signals of the threads with waiting reads.
    SignalLooks,
}

/// The limits of a kind, in units or bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// For a uid that is not 0.
    pub per_uid: usize,
    /// For all uids together.
    pub total: usize,
    /// The part of `total` that only uid 0 may use.
    pub reserved: usize,
}

impl Kind {
    /// The limits of a kind.
    pub fn limits(self) -> Limits {
        let limits = |per_uid, total, reserved| Limits { per_uid, total, reserved };
        match self {
            Self::PendingRequests => limits(128, 1024, 128),
            Self::UserEvents => limits(1024, EVENT_IDS, EVENT_IDS / 8),
            Self::DefinitionBytes => limits(256 << 10, 16 << 20, 2 << 20),
            Self::UserEventFiles => limits(256, 8192, 1024),
            Self::Enablers => limits(4096, 262_144, 32_768),
            Self::AddressSpaces => limits(256, 16_384, 2048),
            Self::OpenFiles => limits(1024, 65_536, 8192),
            Self::WaitingReads => limits(64, 1024, 128),
            Self::PendingFiles => limits(4, 32, 8),
            Self::QueuedBytes => limits(4 << 20, 64 << 20, 16 << 20),
            Self::SignalLooks => limits(2, 16, 4),
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::PendingRequests => "pending requests",
            Self::UserEvents => "user events",
            Self::DefinitionBytes => "bytes of events' definitions",
            Self::UserEventFiles => "open user_events_data files",
            Self::Enablers => "enable addresses of user events",
            Self::AddressSpaces => "address spaces with user events",
            Self::OpenFiles => "open files",
            Self::WaitingReads => "waiting reads",
            Self::PendingFiles => "files being opened",
            Self::QueuedBytes => "bytes of writes that wait",
            Self::SignalLooks => "looks for signals of waiting reads",
        }
    }
}

/// A charge would exceed the limit of a uid or the total.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exceeded;

#[derive(Debug, Default)]
struct Counts {
    by_uid: HashMap<(u32, Kind), usize>,
    totals: HashMap<Kind, usize>,
    logged: HashMap<(u32, Kind), Instant>,
}

/// The counts of all uids. Clones share the counts.
#[derive(Clone, Debug, Default)]
pub struct Quotas {
    counts: Arc<Mutex<Counts>>,
    unlimited: bool,
}

impl Quotas {
    /// Quotas that refuse nothing, for measurements.
    #[cfg(test)]
    pub(crate) fn unlimited() -> Self {
        Self { unlimited: true, ..Self::default() }
    }

    fn lock(&self) -> MutexGuard<'_, Counts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Charges an amount to a uid until the charge is dropped.
    ///
    /// # Errors
    /// [`Exceeded`] if the amount does not fit the limits of the kind.
    pub fn charge(&self, uid: u32, kind: Kind, amount: usize) -> Result<Charge, Exceeded> {
        let limits = kind.limits();
        let mut counts = self.lock();
        let own = counts.by_uid.get(&(uid, kind)).copied().unwrap_or(0).saturating_add(amount);
        let all = counts.totals.get(&kind).copied().unwrap_or(0).saturating_add(amount);
        let fits = if uid == 0 {
            all <= limits.total
        } else {
            own <= limits.per_uid && all <= limits.total - limits.reserved
        };
        if !fits && !self.unlimited {
            counts.log(uid, kind);
            return Err(Exceeded);
        }
        counts.by_uid.insert((uid, kind), own);
        counts.totals.insert(kind, all);
        drop(counts);
        Ok(Charge { quotas: self.clone(), uid, kind, amount })
    }

    /// The amount of a kind that is charged to a uid.
    pub fn used(&self, uid: u32, kind: Kind) -> usize {
        self.lock().by_uid.get(&(uid, kind)).copied().unwrap_or(0)
    }
}

impl Counts {
    fn log(&mut self, uid: u32, kind: Kind) {
        let now = Instant::now();
        if self.logged.get(&(uid, kind)).is_some_and(|last| now.duration_since(*last) < QUIET) {
            return;
        }
        if self.logged.len() >= REMEMBERED {
            self.logged.retain(|_, last| now.duration_since(*last) < QUIET);
            if self.logged.len() >= REMEMBERED {
                return;
            }
        }
        self.logged.insert((uid, kind), now);
        tracing::warn!("uid {uid} is refused more {}: its limit is reached", kind.name());
    }

    fn give_back(&mut self, uid: u32, kind: Kind, amount: usize) {
        if let Some(own) = self.by_uid.get_mut(&(uid, kind)) {
            *own = own.saturating_sub(amount);
            if *own == 0 {
                self.by_uid.remove(&(uid, kind));
            }
        }
        if let Some(all) = self.totals.get_mut(&kind) {
            *all = all.saturating_sub(amount);
        }
    }
}

/// An amount charged to a uid until this is dropped.
#[derive(Debug)]
pub struct Charge {
    quotas: Quotas,
    uid: u32,
    kind: Kind,
    amount: usize,
}

impl Charge {
    /// The uid that is charged.
    pub fn uid(&self) -> u32 {
        self.uid
    }

    /// The amount that is charged.
    pub fn amount(&self) -> usize {
        self.amount
    }

    /// Takes over the amount of another charge of the same uid and kind.
    pub fn absorb(&mut self, mut other: Self) {
        debug_assert_eq!((self.uid, self.kind), (other.uid, other.kind));
        self.amount += std::mem::take(&mut other.amount);
    }

    /// Reduces the charge by one.
    pub fn give_one_back(&mut self) {
        if self.amount > 0 {
            self.amount -= 1;
            self.quotas.lock().give_back(self.uid, self.kind, 1);
        }
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.quotas.lock().give_back(self.uid, self.kind, self.amount);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uid_has_a_limit_and_root_has_a_reserve() {
        let quotas = Quotas::default();
        let limits = Kind::PendingRequests.limits();
        let mut held: Vec<Charge> =
            (0..limits.per_uid).map(|_| quotas.charge(7, Kind::PendingRequests, 1).unwrap()).collect();
        assert_eq!(quotas.charge(7, Kind::PendingRequests, 1).err(), Some(Exceeded));
        assert_eq!(quotas.used(7, Kind::PendingRequests), limits.per_uid);
        // Another kind, another uid, and a released charge.
        assert!(quotas.charge(7, Kind::UserEvents, 1).is_ok());
        assert!(quotas.charge(8, Kind::PendingRequests, 1).is_ok());
        held.pop();
        let again = quotas.charge(7, Kind::PendingRequests, 1).unwrap();
        assert_eq!(again.uid(), 7);
        // All other uids together leave root its reserve.
        for uid in 100.. {
            match quotas.charge(uid, Kind::PendingRequests, limits.per_uid) {
                Ok(charge) => held.push(charge),
                Err(Exceeded) => break,
            }
        }
        let root: Vec<Charge> =
            (0..limits.reserved).map(|_| quotas.charge(0, Kind::PendingRequests, 1).unwrap()).collect();
        drop((root, held, again));
        // Merged charges.
        let mut one = quotas.charge(7, Kind::Enablers, 1).unwrap();
        one.absorb(quotas.charge(7, Kind::Enablers, 2).unwrap());
        one.give_one_back();
        assert_eq!((one.amount(), quotas.used(7, Kind::Enablers)), (2, 2));
        drop(one);
        assert_eq!(quotas.lock().totals.values().sum::<usize>(), 0);
        assert!(quotas.lock().by_uid.is_empty());
    }

    #[test]
    fn one_client_has_an_eighth_and_no_limit_exceeds_its_total() {
        assert_eq!(Kind::PendingRequests.limits().per_uid * 8, Kind::PendingRequests.limits().total);
        for kind in [
            Kind::PendingRequests,
            Kind::UserEvents,
            Kind::DefinitionBytes,
            Kind::UserEventFiles,
            Kind::Enablers,
            Kind::AddressSpaces,
            Kind::OpenFiles,
            Kind::WaitingReads,
        ] {
            let Limits { per_uid, total, reserved } = kind.limits();
            assert!(per_uid <= total - reserved && reserved > 0, "{kind:?}");
        }
        assert!(Quotas::unlimited().charge(1, Kind::UserEvents, 1 << 30).is_ok());
    }
}
