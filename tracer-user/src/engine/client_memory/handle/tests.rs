//! Tests of the daemon's side, with processes that the tests imitate.

use super::super::{
    message::{Bit, Done, Text, packet},
    tests::sockets,
};
use super::*;

/// The daemon's side, and the sockets of some imitated processes.
fn played(count: usize) -> (ClientMemory, Vec<OwnedFd>) {
    let (ours, theirs) = (0..count).map(|_| sockets()).unzip();
    (ClientMemory::start(ours).unwrap(), theirs)
}

/// The next order other than a ping, if one arrives in time.
fn order(process: &OwnedFd, time: Duration) -> Option<Order> {
    let mut packet = vec![0; PACKET_MAX];
    let timeout = Timespec::try_from(time).unwrap();
    loop {
        if poll(&mut [PollFd::new(process, PollFlags::IN)], Some(&timeout)) == Ok(0) {
            return None;
        }
        let (length, _) = recv(process, &mut packet[..], RecvFlags::empty()).unwrap();
        let order = Order::read(&packet[..length]);
        if order != Some(Order::Ping) {
            return order;
        }
    }
}

const SOON: Duration = Duration::from_secs(60);

fn report(process: &OwnedFd, report: &Report) {
    send(process, &packet(report), SendFlags::NOSIGNAL).unwrap();
}

fn op(space: u64) -> Op {
    Op { space, key: 1, bit: Some(Bit { at: 64, mask: 1, on: true }), words: Vec::new() }
}

fn identity() -> Arc<[u8]> {
    Arc::from(&b"identity"[..])
}

#[test]
fn a_forgotten_address_space_delays_no_other() {
    let (memory, processes) = played(1);
    let lane = memory.lane(7);
    let (first, second) = (memory.number(), memory.number());
    for id in [first, second] {
        memory.open(id, 7, 5, &identity(), lane);
        assert_eq!(order(&processes[0], SOON), Some(Order::Open { id, payer: 7, thread: 5 }));
    }
    memory.forget(first);
    assert_eq!(order(&processes[0], SOON), Some(Order::Forget { id: first }));
    memory.write(lane, [op(second)].into_iter(), None);
    assert_eq!(order(&processes[0], Duration::from_millis(50)), None, "it is not open yet");
    // With and without opening it first.
    for id in [first, second] {
        report(&processes[0], &Report::Opened { id, identity: Ok(identity().to_vec()) });
    }
    let Some(Order::Write { ops, .. }) = order(&processes[0], SOON) else { panic!("it is not written") };
    assert_eq!(ops, [op(second)]);
    assert_eq!(memory.failures(), (0, Vec::new()));
}

#[test]
fn address_spaces_unknown_to_the_next_process_are_not_failures() {
    let (memory, mut processes) = played(2);
    let (lane, id) = (memory.lane(7), memory.number());
    let (calls, called) = channel();
    memory.on_attention(move || {
        let _ = calls.send(());
    });
    let await_attention = || {
        called.recv_timeout(SOON).unwrap();
        called.try_iter().for_each(drop);
    };
    memory.open(id, 7, 5, &identity(), lane);
    order(&processes[0], SOON).unwrap();
    report(&processes[0], &Report::Opened { id, identity: Ok(identity().to_vec()) });
    // The first process ends, and an event is enabled before that is known.
    assert_eq!(memory.failures().0, 0);
    drop(processes.remove(0));
    await_attention();
    let change = memory.change();
    memory.write(lane, [op(id)].into_iter(), Some(&change));
    if let Some(Order::Write { batch, .. }) = order(&processes[0], Duration::from_millis(100)) {
        report(&processes[0], &Report::Written { batch, done: vec![Done(Err(Errno::SRCH))] });
        std::thread::sleep(Duration::from_millis(100));
    }
    change.wait();
    assert_eq!(memory.failures(), (1, Vec::new()), "nobody knows whether it is gone");
    // It is opened again, and may then turn out to have ended.
    memory.open(id, 7, 5, &identity(), lane);
    memory.write(lane, [op(id)].into_iter(), None);
    assert_eq!(order(&processes[0], SOON), Some(Order::Open { id, payer: 7, thread: 5 }));
    report(&processes[0], &Report::Opened { id, identity: Ok(identity().to_vec()) });
    let Some(Order::Write { batch, .. }) = order(&processes[0], SOON) else { panic!("it is not written") };
    report(&processes[0], &Report::Written { batch, done: vec![Done(Err(Errno::SRCH))] });
    await_attention();
    assert_eq!(memory.failures(), (1, vec![id]));
    // Requested calls are merged.
    for _ in 0..100 {
        memory.attend_again();
    }
    await_attention();
    memory.attend_again();
    await_attention();
}

const LOOK: Look = Look { thread: 5, payer: 7, number: 1, known: 0, structure: 8, text: Text::None };

#[test]
fn a_look_waits_for_a_starting_process_and_is_repeated_once() {
    let (memory, mut processes) = played(3);
    let (to, answers) = channel();
    let look = |deadline| {
        let to = to.clone();
        memory.look(LOOK, deadline, Box::new(move |_, seen| to.send(seen).unwrap()));
    };
    // The deadline has passed, but the process may not have started yet.
    look(Instant::now());
    assert!(matches!(order(&processes[0], SOON), Some(Order::Look { .. })));
    assert!(answers.recv_timeout(Duration::from_millis(50)).is_err());
    report(&processes[0], &Report::Pong);
    assert_eq!(answers.recv_timeout(SOON).unwrap(), Err(Errno::FAULT));
    assert!(matches!(order(&processes[0], SOON), Some(Order::Forget { .. })));
    // An order that was lost with two processes is not sent to the third.
    look(Instant::now() + SOON);
    let asked = order(&processes[0], SOON);
    assert!(matches!(asked, Some(Order::Look { .. })));
    drop(processes.remove(0));
    assert_eq!(order(&processes[0], SOON), asked);
    assert!(answers.try_recv().is_err());
    drop(processes.remove(0));
    assert_eq!(answers.recv_timeout(SOON).unwrap(), Err(Errno::FAULT));
    assert_eq!(order(&processes[0], Duration::from_millis(50)), None);
    // No process is left.
    look(Instant::now() + SOON);
    drop(processes);
    assert_eq!(answers.recv_timeout(SOON).unwrap(), Err(Errno::FAULT));
    look(Instant::now() + SOON);
    assert_eq!(answers.recv_timeout(SOON).unwrap(), Err(Errno::NOMEM));
}

#[test]
fn the_time_to_answer_counts_only_while_listening() {
    let start = Instant::now();
    let mut state = State::default();
    assert_eq!(state.silent_at(), None);
    state.pinged = Some(start);
    assert_eq!(state.silent_at(), Some(start + PONG));
    // This side was busy for longer than that.
    state.listening = Some(start + 2 * PONG);
    assert_eq!((state.silent_at(), state.deadline()), (Some(start + 3 * PONG), Some(start + 3 * PONG)));
    state.pinged = Some(start + 3 * PONG);
    assert_eq!(state.silent_at(), Some(start + 4 * PONG));
}
