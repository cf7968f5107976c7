//! The order in which the consumers of a tracepoint run, as in the kernel: instances in the order in which they began
//! to use the event, and in each instance the event's record before its triggers.
//!
//! The kernel calls an event's callbacks in the order of their registration (`tracepoint_probe_register()`). An
//! instance registers its callback when the event is enabled or gets its first trigger, and removes it when neither
//! is left. In the callback, the record gets its place in the ring before histograms and event probes see it, in the
//! order in which these were made (`list_add_tail_rcu()` in `hist_trigger_enable()` and `enable_eprobe()`).

/// The session of a consumer, and the consumer's sort.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rank {
    /// The session's number.
    pub(crate) session: u64,
    pub(crate) sort: Sort,
}

/// The sort of a consumer, in the order of calls for one session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Sort {
    /// The event itself.
    Event,
    /// A histogram, an event probe or a relay.
    Trigger,
}

/// The position of a new consumer among the existing ones.
pub(super) fn position(ranks: &[Rank], new: Rank) -> usize {
    let is_own = |rank: &Rank| rank.session == new.session;
    match ranks.iter().rposition(|rank| is_own(rank) && rank.sort <= new.sort) {
        Some(last) => last + 1,
        None => ranks.iter().position(is_own).unwrap_or(ranks.len()),
    }
}

/// Moves the consumers of a session, which are all parked, to the end: for the kernel, the instance begins to use the
/// event anew. Returns whether the order changed.
pub(super) fn begin_anew<T>(consumers: &mut [T], session: u64, rank: impl Fn(&T) -> Rank) -> bool {
    let is_own = |consumer: &T| rank(consumer).session == session;
    let is_ordered = consumers.is_sorted_by_key(is_own);
    consumers.sort_by_key(is_own);
    !is_ordered
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rank(session: u64, sort: Sort) -> Rank {
        Rank { session, sort }
    }

    /// The order of consumers that join one after the other, by their numbers.
    fn order(come: &[Rank]) -> Vec<usize> {
        let mut all: Vec<(usize, Rank)> = Vec::new();
        for (number, new) in come.iter().enumerate() {
            let ranks: Vec<Rank> = all.iter().map(|(_, rank)| *rank).collect();
            all.insert(position(&ranks, *new), (number, *new));
        }
        all.into_iter().map(|(number, _)| number).collect()
    }

    #[test]
    fn instances_are_called_in_the_order_in_which_they_came() {
        use Sort::Event;
        assert_eq!(order(&[rank(2, Event), rank(1, Event), rank(3, Event)]), [0, 1, 2]);
    }

    #[test]
    fn an_instance_has_its_event_before_its_triggers() {
        use Sort::{Event, Trigger};
        let come = [rank(1, Trigger), rank(2, Event), rank(1, Event), rank(1, Trigger), rank(2, Trigger)];
        assert_eq!(order(&come), [2, 0, 3, 1, 4]);
    }

    #[test]
    fn an_instance_that_begins_anew_is_called_last() {
        use Sort::{Event, Trigger};
        let mut all = [rank(1, Event), rank(1, Trigger), rank(2, Event)];
        assert!(begin_anew(&mut all, 1, |rank| *rank));
        assert_eq!(all, [rank(2, Event), rank(1, Event), rank(1, Trigger)]);
        assert!(!begin_anew(&mut all, 1, |rank| *rank));
        assert!(!begin_anew(&mut all, 3, |rank| *rank));
    }
}
