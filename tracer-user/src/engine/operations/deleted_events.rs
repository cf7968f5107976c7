//! Deleted events whose records are still in buffers.
//!
//! The deletion of an event erases nothing. Its id stays taken and its records are printed as before, as long as
//! records with the id can be anywhere: in a page of a buffer or a snapshot of any instance, in a page that a reader
//! holds, or in a ring of an instance that recorded the event. The payer of the event stays charged for it. Ids are
//! released when the next dynamic event is defined, or when a user event would be refused without that.

use std::collections::BTreeSet;

use crate::{
    buffer::clock::monotonic,
    engine::{
        attachments::sessions::Attachments, instances::Instances, operations::changes::Definitions,
        registry::table::DeletedEvent,
    },
    event::InstanceId,
};

/// Nanoseconds after a deletion during which a program that was running may still make a record.
const LAST_RECORDS: u64 = 2_000_000_000;

/// Nanoseconds between two releases for clients.
const RELEASE_INTERVAL: u64 = 100_000_000;

impl Definitions<'_> {
    /// Releases the ids of deleted events without records. Rings that may have records of such an event are collected
    /// first.
    pub(super) fn release_ids(&mut self) {
        self.release_at(monotonic());
    }

    /// As [`Self::release_ids`], for a client whose definition would be refused. Returns false if that was done just
    /// before: a client may try as often as it likes.
    pub(crate) fn release_ids_soon(&mut self) -> bool {
        let now = monotonic();
        if now < self.engine.user.next_release {
            return false;
        }
        self.engine.user.next_release = now + RELEASE_INTERVAL;
        self.release_at(now);
        true
    }

    fn release_at(&mut self, now: u64) {
        let mut behind = BTreeSet::new();
        for (id, deleted) in self.engine.registry.table().deleted() {
            if may_end(&self.engine.instances, id, deleted, now) {
                let rings = deleted.recorded_in.iter().copied();
                behind.extend(
                    rings.filter(|instance| !is_collected(&self.engine.attachments, *instance, deleted)),
                );
            }
        }
        for instance in behind {
            self.engine.collect(instance);
        }
        let ended: Vec<u16> = self
            .engine
            .registry
            .table()
            .deleted()
            .filter(|(id, deleted)| {
                let is_collected =
                    |instance: &InstanceId| is_collected(&self.engine.attachments, *instance, deleted);
                may_end(&self.engine.instances, *id, deleted, now)
                    && deleted.recorded_in.iter().all(is_collected)
            })
            .map(|(id, _)| id)
            .collect();
        for id in ended {
            self.engine.registry.table_mut().release(id);
        }
    }
}

/// Whether no page has records of a deleted event, and its programs have ended.
fn may_end(instances: &Instances, id: u16, deleted: &DeletedEvent, now: u64) -> bool {
    now > last_record(deleted) && instances.pages_of(id) == 0
}

/// Whether all records of a deleted event were taken out of an instance's rings.
fn is_collected(attachments: &Attachments, instance: InstanceId, deleted: &DeletedEvent) -> bool {
    let session = attachments.session(instance);
    session.is_none_or(|session| session.queue.complete_until() > last_record(deleted))
}

/// The time after which no program makes a record of a deleted event.
fn last_record(deleted: &DeletedEvent) -> u64 {
    deleted.since.saturating_add(LAST_RECORDS)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::{
        engine::{
            Engine,
            facts::Facts,
            operations::lifecycle,
            quota::Kind,
            registry::{catalogue, table::EventChanges},
        },
        event::EventId,
    };

    const UID: u32 = 7;

    /// An engine for this kernel, if one can be created.
    fn engine() -> Option<Engine> {
        let engine = Facts::running().ok().and_then(|facts| Engine::new(Arc::new(facts)).ok());
        if engine.is_none() {
            eprintln!("skipped: tracefs: no engine without it");
        }
        engine
    }

    /// Defines an event that is charged to [`UID`].
    fn define(engine: &mut Engine, name: &str) -> (EventId, u16) {
        Definitions::of(engine).release_ids();
        let charge = engine.quotas.charge(UID, Kind::UserEvents, 1).unwrap();
        let id = engine.registry.events().free_id().unwrap();
        let made = catalogue::made("mine", name, id);
        let event = engine.registry.table_mut().events_mut().add(made).unwrap();
        engine.registry.table_mut().keep_charge(event, charge);
        (event, id)
    }

    fn record(engine: &mut Engine, instance: InstanceId, event: EventId, id: u16) {
        let state = engine.instances.state(instance).unwrap();
        state.recorded.insert(event);
        let [low, high] = id.to_ne_bytes();
        assert!(state.buffer.cpu_mut(0).unwrap().push(1, &[low, high, 0, 0, 1, 0, 0, 0]));
    }

    fn delete(engine: &mut Engine, event: EventId) {
        let mut changes = EventChanges::default();
        engine.registry.table_mut().remove(event, &mut changes);
        Definitions::of(engine).apply_changes(changes);
    }

    fn records(engine: &Engine, instance: InstanceId) -> u64 {
        let state = engine.instances.get(instance).unwrap();
        state.buffer.select(None).map(|(_, buffer)| buffer.stats().entries).sum()
    }

    fn is_printed(engine: &Engine, id: u16) -> bool {
        engine.registry.events().defined_printer(id).is_some()
    }

    /// Releases ids as late enough after all deletions.
    fn release_later(engine: &mut Engine) {
        Definitions::of(engine).release_at(monotonic() + 2 * LAST_RECORDS);
    }

    #[test]
    fn the_id_of_a_deleted_event_is_free_after_its_last_record() {
        let Some(mut engine) = engine() else { return };
        let below = lifecycle::make(&engine.facts, &mut engine.instances, "below").unwrap();
        let (event, id) = define(&mut engine, "a");
        for instance in [InstanceId::TOP, below] {
            record(&mut engine, instance, event, id);
            // A record of another event.
            record(&mut engine, instance, EventId::new(0), 300);
        }
        delete(&mut engine, event);
        assert_eq!((records(&engine, InstanceId::TOP), records(&engine, below)), (2, 2));
        assert!(is_printed(&engine, id));
        assert_eq!(engine.quotas.used(UID, Kind::UserEvents), 1);
        let (second, other) = define(&mut engine, "a");
        assert_ne!(other, id);
        // The snapshot of one instance is the last with a record.
        engine.instances.state(below).unwrap().take_snapshot(None, 1).unwrap();
        for instance in [InstanceId::TOP, below] {
            engine.instances.state(instance).unwrap().clear(None);
        }
        release_later(&mut engine);
        assert!(is_printed(&engine, id));
        engine.instances.state(below).unwrap().take_snapshot(None, 2).unwrap();
        // A program that was running may still make a record.
        let last = engine.registry.table().deleted().map(|(_, deleted)| last_record(deleted)).max().unwrap();
        Definitions::of(&mut engine).release_at(last);
        assert!(is_printed(&engine, id));
        Definitions::of(&mut engine).release_at(last + 1);
        assert!(!is_printed(&engine, id) && is_printed(&engine, other));
        assert_eq!(engine.quotas.used(UID, Kind::UserEvents), 1);
        // Other ids are used first.
        assert!(define(&mut engine, "b").1 > other);
        // An instance ends with its records.
        record(&mut engine, below, second, other);
        delete(&mut engine, second);
        release_later(&mut engine);
        assert!(is_printed(&engine, other));
        lifecycle::remove(&mut engine, "below").unwrap();
        release_later(&mut engine);
        assert!(!is_printed(&engine, other));
    }

    #[test]
    fn an_event_without_records_leaves_nothing() {
        let Some(mut engine) = engine() else { return };
        for _ in 0..100 {
            let (event, id) = define(&mut engine, "a");
            delete(&mut engine, event);
            assert_eq!(engine.registry.events().free_id(), Some(id));
        }
        assert_eq!(engine.registry.table().deleted().count(), 0);
        assert_eq!(engine.quotas.used(UID, Kind::UserEvents), 0);
    }
}
