//! Tests of address spaces and their registrations.

use std::{
    sync::mpsc::channel,
    time::{Duration, Instant},
};

use super::{super::enabler_list::place, *};
use crate::{
    engine::{
        client_memory::{self, Look, Text},
        quota::Charge,
    },
    event::EventId,
};

/// An event with registrations.
const EVENT: EventId = EventId::new(1);

#[test]
fn a_bit_has_a_byte() {
    assert_eq!([place(64, 0), place(64, 31), place(64, 63)], [(64, 1), (67, 0x80), (71, 0x80)]);
}

fn spaces() -> (Spaces, ClientMemory) {
    let memory = client_memory::in_process();
    let mut spaces = Spaces::default();
    spaces.set_memory(memory.clone(), Quotas::default());
    (spaces, memory)
}

/// This process's address space under a number, as a request of a process would provide it.
fn own(memory: &ClientMemory, process: u32) -> (u64, Seen) {
    // A thread outside of ioctl(2) is refused, so the space is opened by its identity, like a child's.
    let (send, receive) = channel();
    let look = Look { thread: 1, payer: 0, number: 0, known: 0, structure: 0, text: Text::None };
    let until = Instant::now() + Duration::from_secs(60);
    memory.look(look, until, Box::new(move |id, seen| send.send((id, seen)).unwrap()));
    assert!(receive.recv().unwrap().1.is_err());
    let identity = client_memory::identity_of(std::process::id()).unwrap();
    let number = memory.number();
    let lane = memory.lane(0);
    memory.open(number, 0, std::process::id(), &Arc::from(&identity[..]), lane);
    // A registration gets another lane, whose writes do not wait for this one.
    let nothing = Op { space: number, key: 0, bit: None, words: Vec::new() };
    assert_eq!(write(memory, BitWrite { lane, op: nothing }), Ok(()));
    let seen = Seen {
        process,
        capable: true,
        alive: true,
        identity,
        argument: 0,
        structure: Ok(Vec::new()),
        text: Ok(Vec::new()),
    };
    (number, seen)
}

impl Spaces {
    /// The number of registered addresses of an event.
    fn uses(&self, event: EventId) -> usize {
        let lists = self.by_event.get(&event).into_iter().flatten().filter_map(|list| self.lists.get(list));
        lists.map(|enabler_list| enabler_list.places(event).count() * enabler_list.spaces.len()).sum()
    }

    /// Checks that lists and spaces are consistent.
    fn check(&self) {
        for (number, enabler_list) in &self.lists {
            assert!(!enabler_list.spaces.is_empty());
            assert!(enabler_list.spaces.iter().all(|space| self.all[space].list == *number));
            assert_eq!(enabler_list.enablers.len(), enabler_list.by_event.len());
            assert!(enabler_list.events().all(|event| self.by_event[&event].contains(number)));
            let of = |number: &u64| self.all[number].charges.iter().map(Charge::amount).sum::<usize>();
            assert!(enabler_list.spaces.iter().all(|space| of(space) == enabler_list.enablers.len()));
        }
        let lists = self.by_event.values().flatten();
        assert!(lists.into_iter().all(|list| self.lists.contains_key(list)));
        assert_eq!(
            self.lists.values().map(|enabler_list| enabler_list.spaces.len()).sum::<usize>(),
            self.all.len()
        );
        assert_eq!(self.all.values().map(|space| space.tasks.len()).sum::<usize>(), self.tasks.len());
    }
}

fn birth(task: u32, other: u32, shares: u32) -> TaskEvent {
    TaskEvent { kind: task_event::FORK, task, other, shares, time: monotonic() }
}

fn value(word: &u32) -> u32 {
    // Reads through the kernel, because the compiler does not know about the write.
    let at = std::ptr::from_ref(word).expose_provenance() as u64;
    let mut now = [0; 4];
    let memory = std::fs::File::open("/proc/self/mem").unwrap();
    std::os::unix::fs::FileExt::read_exact_at(&memory, &mut now, at).unwrap();
    u32::from_ne_bytes(now)
}

fn write(memory: &ClientMemory, bit_write: BitWrite) -> Result<(), Errno> {
    let (send, receive) = channel();
    let until = Instant::now() + Duration::from_secs(60);
    memory.request(bit_write.lane, bit_write.op, until, Box::new(move |done| send.send(done).unwrap()));
    receive.recv().unwrap()
}

#[test]
fn a_registration_is_updated_and_ends_with_its_last_task() {
    let (mut spaces, memory) = spaces();
    let task = std::process::id();
    let word = Box::new(0_u32);
    let at = std::ptr::from_ref(&*word).expose_provenance() as u64;
    let (look, seen) = own(&memory, task);
    let requester = Requester { task, payer: 0, look, seen: &seen };
    spaces.identify(requester);
    let bit_write = spaces.register_bit(requester, EVENT, (at, 9), true).unwrap();
    assert_eq!(write(&memory, bit_write), Ok(()));
    assert_eq!(value(&word), 1 << 9);
    assert!(spaces.has(task, at, 9) && !spaces.has(task, at, 8) && !spaces.has(1, at, 9));
    assert_eq!((spaces.uses(EVENT), spaces.counts(), spaces.known(task)), (1, (1, 1), Some((look, false))));
    for on in [false, true, false, true] {
        let mut change = None;
        spaces.report(EVENT, on, &mut change);
        change.unwrap().wait();
        assert_eq!(value(&word) != 0, on);
    }
    // A process shares the space, and outlives the process that registered.
    spaces.take(birth(task, 77, 1));
    assert_eq!((spaces.counts(), spaces.unopened.len()), ((2, 1), 0));
    spaces.gone(task);
    spaces.check();
    assert_eq!((spaces.uses(EVENT), spaces.counts()), (1, (1, 1)));
    assert_eq!(spaces.forget(task, at, 9).err(), Some(Errno::NOENT));
    let bit_write = spaces.forget(77, at, 9).unwrap();
    assert_eq!(write(&memory, bit_write), Ok(()));
    assert_eq!((value(&word), spaces.uses(EVENT), spaces.released.clone()), (0, 0, vec![EVENT]));
    assert_eq!(spaces.forget(77, at, 9).err(), Some(Errno::NOENT));
    spaces.gone(77);
    assert_eq!(spaces.counts(), (0, 0));
    drop(word);
}

#[test]
fn a_task_with_another_address_space_loses_its_registrations() {
    let (mut spaces, memory) = spaces();
    let (look, seen) = own(&memory, 5);
    let requester = Requester { task: 5, payer: 7, look, seen: &seen };
    spaces.register_bit(requester, EVENT, (64, 0), false).unwrap();
    spaces.identify(requester);
    assert!(spaces.has(5, 64, 0) && spaces.known(5).is_some() && spaces.known(6).is_none());
    // Another thread has registered as well. What is known of a process with the thread's id does not apply to it.
    let thread = Seen { alive: false, ..seen.clone() };
    spaces.identify(Requester { task: 6, seen: &thread, ..requester });
    assert!(spaces.has(6, 64, 0) && !spaces.has(7, 64, 0));
    let other = Seen { identity: vec![1; 16], ..seen.clone() };
    spaces.identify(Requester { seen: &other, ..requester });
    assert!(!spaces.has(5, 64, 0));
    let (look, seen) = own(&memory, 5);
    spaces.register_bit(Requester { look, seen: &seen, ..requester }, EVENT, (64, 0), false).unwrap();
    let dead = Seen { alive: false, ..seen };
    spaces.identify(Requester { seen: &dead, ..requester });
    assert_eq!((spaces.counts(), spaces.uses(EVENT)), ((0, 0), 0));
}

#[test]
fn a_child_that_executes_another_program_has_no_registrations() {
    let (mut spaces, memory) = spaces();
    let task = std::process::id();
    let (look, seen) = own(&memory, task);
    let requester = Requester { task, payer: 0, look, seen: &seen };
    spaces.register_bit(requester, EVENT, (64, 0), false).unwrap();
    let mut child = std::process::Command::new("cat");
    let mut child = child.stdin(std::process::Stdio::piped()).spawn().unwrap();
    spaces.take(birth(task, child.id(), 0));
    let born = spaces.open_born().remove(0);
    assert_eq!(spaces.counts(), (2, 2));
    let mut change = None;
    spaces.report_to_child(&born, |_| Some(true), &mut change);
    change.unwrap().wait();
    let end = Instant::now() + Duration::from_secs(60);
    while spaces.counts() != (1, 1) {
        assert!(Instant::now() < end);
        spaces.attend(|_| None);
        std::thread::sleep(Duration::from_millis(1));
    }
    drop(child.stdin.take());
    child.wait().unwrap();
}

#[test]
fn the_addresses_of_a_payer_are_limited() {
    let (mut spaces, memory) = spaces();
    let (look, seen) = own(&memory, 5);
    let requester = Requester { task: 5, payer: 7, look, seen: &seen };
    let limit = Kind::Enablers.limits().per_payer as u64;
    for at in 0..limit {
        spaces.register_bit(requester, EVENT, (at * 8, 0), false).unwrap();
    }
    assert_eq!(spaces.register_bit(requester, EVENT, (limit * 8, 0), false).err(), Some(Errno::NOMEM));
    spaces.take(birth(5, 6, 0));
    assert_eq!((spaces.counts(), spaces.uses(EVENT)), ((1, 1), limit as usize));
    spaces.gone(5);
    assert_eq!(spaces.quotas.used(7, Kind::Enablers), 0);
}

#[test]
fn a_process_does_not_get_the_lane_of_another_with_its_id() {
    let (mut spaces, memory) = spaces();
    let (look, seen) = own(&memory, 5);
    let first = Requester { task: 5, payer: 7, look, seen: &seen };
    let old = spaces.register_bit(first, EVENT, (64, 0), false).unwrap();
    // A process that shares the memory outlives the first one, whose id a process of root's gets.
    spaces.take(birth(5, 6, 1));
    spaces.gone(5);
    let (look, seen) = own(&memory, 5);
    let later = Requester { task: 5, payer: 0, look, seen: &seen };
    let new = spaces.register_bit(later, EVENT, (64, 0), false).unwrap();
    assert_ne!(new.lane, old.lane);
    assert_eq!(spaces.forget(6, 64, 0).unwrap().lane, old.lane);
    assert_eq!(spaces.forget(5, 64, 0).unwrap().lane, new.lane);
    spaces.check();
}

/// A process (5, of payer 7) with registrations for some addresses.
fn asked_much(spaces: &mut Spaces, memory: &ClientMemory, addresses: u32) -> Seen {
    let (look, seen) = own(memory, 5);
    let requester = Requester { task: 5, payer: 7, look, seen: &seen };
    for at in 0..addresses {
        spaces.register_bit(requester, EventId::new(at % 500), (u64::from(at) * 8, 0), false).unwrap();
    }
    seen
}

#[test]
fn a_birth_copies_no_registrations() {
    const ADDRESSES: usize = 2000;
    let (mut spaces, memory) = spaces();
    asked_much(&mut spaces, &memory, ADDRESSES as u32);
    // What a birth would have to copy, if the child had its own: the list, and its entries by event.
    let shared = |spaces: &Spaces| {
        let (number, list) = spaces.lists.iter().next().unwrap();
        let by_event: usize = spaces.by_event.values().map(BTreeSet::len).sum();
        (spaces.lists.len(), *number, list.enablers.len(), by_event)
    };
    let before = shared(&spaces);
    assert_eq!((before.0, before.2, before.3), (1, ADDRESSES, 500));
    for child in 1000..3000 {
        let birth = birth(5, child, 0);
        spaces.take(birth);
        assert_eq!((spaces.counts(), shared(&spaces)), ((2, 2), before));
        assert!(spaces.all.values().all(|space| space.list == before.1));
        spaces.take(TaskEvent { kind: task_event::GONE, task: child, ..birth });
        assert_eq!((spaces.counts(), shared(&spaces)), ((1, 1), before));
    }
    // Processes that have ended are not opened.
    assert!(spaces.open_born().is_empty());
    assert_eq!(spaces.quotas.used(7, Kind::Enablers), ADDRESSES);
    spaces.check();
    assert_eq!(spaces.uses(EventId::new(7)), 4);
}

#[test]
fn a_child_has_its_own_copy() {
    let (mut spaces, memory) = spaces();
    let seen = asked_much(&mut spaces, &memory, 2000);
    let [event, further] = [7, 1000].map(EventId::new);
    spaces.take(birth(5, 6, 0));
    assert_eq!((spaces.uses(event), spaces.lists.len()), (8, 1));
    assert!(spaces.has(6, 8 * 7, 0));
    spaces.open_born();
    spaces.check();
    // The child unregisters one; its parent's stays.
    spaces.forget(6, 8 * 7, 0).unwrap();
    spaces.check();
    assert!(spaces.has(5, 8 * 7, 0) && !spaces.has(6, 8 * 7, 0));
    assert_eq!((spaces.uses(event), spaces.quotas.used(7, Kind::Enablers)), (7, 3999));
    // The parent registers one more, which the child does not get.
    let requester = Requester { task: 5, payer: 7, look: 0, seen: &seen };
    spaces.register_bit(requester, further, (64 << 10, 3), false).unwrap();
    spaces.check();
    assert!(spaces.has(5, 64 << 10, 3) && !spaces.has(6, 64 << 10, 3));
    spaces.gone(5);
    spaces.check();
    assert_eq!((spaces.uses(event), spaces.uses(further), spaces.released.clone()), (3, 0, vec![further]));
    spaces.gone(6);
    spaces.check();
    assert_eq!((spaces.quotas.used(7, Kind::Enablers), spaces.by_event.len()), (0, 0));
    assert_eq!(spaces.quotas.used(7, Kind::AddressSpaces), 0);
}

#[test]
fn every_process_that_takes_part_counts() {
    let (mut spaces, memory) = spaces();
    let (look, seen) = own(&memory, 5);
    spaces.register_bit(Requester { task: 5, payer: 7, look, seen: &seen }, EVENT, (64, 0), false).unwrap();
    let limit = Kind::AddressSpaces.limits().per_payer;
    // Processes that share its memory as well as those that do not.
    for child in 0..2 * limit as u32 {
        spaces.take(birth(5, 1000 + child, child % 2));
    }
    assert_eq!((spaces.counts(), spaces.uses(EVENT)), ((limit, limit / 2 + 1), limit / 2 + 1));
    spaces.check();
    // A late event does not apply to another process with the id.
    spaces.take(TaskEvent { kind: task_event::GONE, task: 1000, other: 0, shares: 0, time: 1 });
    spaces.take(TaskEvent { time: 1, ..birth(5, 1001, 0) });
    spaces.take(TaskEvent { time: 1, ..birth(1001, 9999, 0) });
    assert_eq!(spaces.counts(), (limit, limit / 2 + 1));
    spaces.check();
}
