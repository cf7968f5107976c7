//! The rings on the running kernel: records that carry their own number and checksum, and readers of several kinds.

use std::io::PipeReader;
use std::num::NonZeroU64;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use rustix::fs::{Advice, fadvise};
use rustix::io::Errno;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use tracer_abi::Counters;
use tracer_abi::ring::record_words;
use tracer_tests::host;
use tracer_user::{
    attach::{AttachPoint, Attached, Context, Dispatch, HitActions, Options, Request, Session, Threads, ids},
    event::Format,
    lang::filter::Dialect,
    plan::{resolve, source::ProgramContext},
    ring::{Drain, Waiter, Woken},
    sys::bpf::{cpu_ring::CpuRing, ring::Seen},
};

/// The tests record the same calls of this process.
static TURN: Mutex<()> = Mutex::new(());

/// Bytes of records in a ring.
const RING: u32 = 64 * 1024;
/// Payload of `raw_syscalls:sys_enter` in bytes: the common fields, the number, six arguments.
const PAYLOAD: usize = 64;

/// Calls of each CPU. `TRACER_RING_CALLS` sets another number, for long runs.
fn calls() -> u64 {
    let set = std::env::var("TRACER_RING_CALLS").ok().and_then(|calls| calls.parse().ok());
    set.unwrap_or(u64::from(host::share(200_000)))
}

/// Offset and length of a CPU's call with this number: both, and a checksum of them.
fn arguments(cpu: u32, number: u64) -> [u64; 2] {
    let offset = u64::from(cpu) << 40 | number;
    [offset, offset.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32 | 1]
}

/// posix_fadvise(2), which refuses a pipe, and which no other test calls.
fn call(pipe: &PipeReader, cpu: u32, number: u64) {
    let [offset, length] = arguments(cpu, number);
    let answer = fadvise(pipe, offset, NonZeroU64::new(length), Advice::Normal);
    assert_eq!(answer, Err(Errno::SPIPE));
}

/// Calls with the numbers below `count`, on this CPU.
fn call_on(cpu: u32, count: u64) -> Result<()> {
    let (pipe, _writer) = std::io::pipe()?;
    let mut one = CpuSet::new();
    one.set(cpu as usize);
    sched_setaffinity(None, &one)?;
    (0..count).for_each(|number| call(&pipe, cpu, number));
    Ok(())
}

/// The CPUs that this process may use.
fn cpus() -> Result<Vec<u32>> {
    let allowed = sched_getaffinity(None)?;
    Ok((0..CpuSet::MAX_CPU).filter(|cpu| allowed.is_set(*cpu)).map(|cpu| cpu as u32).collect())
}

/// A session that records the calls of this process, its event, and its rings.
fn session(ring_bytes: u32, watermark: u32) -> Result<(Session, Attached, Vec<CpuRing>)> {
    let tracefs = host::Tracefs::find_or_mount()?;
    let text = tracefs.format("raw_syscalls:sys_enter")?;
    let format = Format::parse("raw_syscalls", &text)?;
    let env = resolve::Fixed { dialect: Dialect::newest(), cpu_ids: 2, symbols: Vec::new() };
    let filter = format!("id == {}", libc::SYS_fadvise64);
    let filter =
        resolve::filter(filter.as_bytes(), &format, &env).map_err(|error| anyhow::anyhow!("{error:?}"))?;
    let options = Options {
        ring_bytes,
        watermark,
        cpus: cpus()?.last().context("no CPU")? + 1,
        slots: 1,
        pid_gate: false,
        pid_lists: false,
        own_tgid: ids::own().map_err(|cause| anyhow::anyhow!("{cause}"))?.process,
        trace_own: true,
    };
    let (mut session, rings) = Session::new(&options, Context::default())?;
    let request = Request {
        format: &format,
        context: &ProgramContext::Tracepoint,
        point: &AttachPoint::Tracepoint(format.id),
        filter: Some(&filter),
        irqs_off: false,
        kind: format.id,
        threads: Threads::Own,
        other: None,
        hit_actions: HitActions::default(),
    };
    let attached = session.attach(&request, Dispatch::Direct)?;
    session.switches().set_tracing(true);
    Ok((session, attached, rings))
}

/// The records read from each CPU: the number of the last call, and the number of records.
#[derive(Default)]
struct Read(Vec<(Option<u64>, u64)>);

impl Read {
    /// Checks a record and counts it.
    fn take(&mut self, cpu: u32, payload: &[u8]) -> Result<()> {
        ensure!(payload.len() == PAYLOAD, "{} bytes", payload.len());
        let word = |index: usize| {
            payload
                .get(8 * index..)
                .and_then(|rest| rest.first_chunk())
                .map_or(0, |word| u64::from_ne_bytes(*word))
        };
        let (number, at) = (word(3) & ((1 << 40) - 1), cpu as usize);
        ensure!([word(3), word(4)] == arguments(cpu, number), "cpu {cpu}: a torn record: {payload:?}");
        if self.0.len() <= at {
            self.0.resize(at + 1, (None, 0));
        }
        let (last, seen) = &mut self.0[at];
        ensure!(last.is_none_or(|last| last < number), "cpu {cpu}: {number} after {last:?}");
        (*last, *seen) = (Some(number), *seen + 1);
        Ok(())
    }

    fn seen(&self) -> u64 {
        self.0.iter().map(|(_, seen)| seen).sum()
    }
}

/// Calls on all CPUs at once while `read` reads, then once more. Every call is read or counted as dropped.
fn run(
    what: &str,
    mut read: impl FnMut(&mut Drain, &mut dyn FnMut(u32, &[u8])) -> ControlFlow<()>,
) -> Result<Counters> {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let (session, attached, rings) = session(RING, RING / 2)?;
    let slot = attached.slot().context("no slot")?;
    let mut drain = Some(Drain::new(rings));
    let (mut all, mut wrong) = (Read::default(), Vec::new());
    let mut take = |cpu: u32, payload: &[u8]| wrong.extend(all.take(cpu, payload).err());
    let (cpus, done) = (cpus()?, AtomicBool::new(false));
    std::thread::scope(|scope| -> Result<()> {
        let callers: Vec<_> = cpus.iter().map(|cpu| scope.spawn(move || call_on(*cpu, calls()))).collect();
        let waiter = scope.spawn(|| -> Result<()> {
            let outcome = callers.into_iter().try_for_each(|caller| caller.join().expect("a caller"));
            done.store(true, Ordering::Release);
            outcome
        });
        while !done.load(Ordering::Acquire) {
            match &mut drain {
                Some(drain_now) => {
                    if read(drain_now, &mut take).is_break() {
                        drain = None;
                    }
                }
                None => std::thread::sleep(Duration::from_millis(1)),
            }
        }
        waiter.join().expect("the thread that waits for the callers")
    })?;
    if let Some(drain) = &mut drain {
        drain.finish(|record| take(record.cpu, record.payload));
        ensure!(drain.malformed() == 0, "{what}: {} malformed", drain.malformed());
    }
    let (calls, counts) = (calls() * cpus.len() as u64, session.counters().total(slot));
    println!("{what}: {calls} calls, {} read, {counts:?}", all.seen());
    ensure!(wrong.is_empty(), "{what}: {} wrong, first {:?}", wrong.len(), wrong.first());
    ensure!(
        counts.recorded + counts.dropped == calls && counts.passed == calls,
        "{what}: {calls} {counts:?}"
    );
    let is_whole = if drain.is_some() { all.seen() == counts.recorded } else { all.seen() < counts.recorded };
    ensure!(is_whole, "{what}: {} read, {counts:?}", all.seen());
    Ok(counts)
}

#[test]
fn a_fast_reader_reads_every_record_once() {
    host::as_root(|| {
        let counts = run("fast", |drain, take| {
            drain.finish(|record| take(record.cpu, record.payload));
            ControlFlow::Continue(())
        })?;
        ensure!(counts.recorded > calls() / 10, "{counts:?}");
        Ok(())
    });
}

#[test]
fn a_slow_reader_misses_only_what_is_counted() {
    host::as_root(|| {
        let counts = run("slow", |drain, take| {
            std::thread::sleep(Duration::from_millis(20));
            drain.finish(|record| take(record.cpu, record.payload));
            ControlFlow::Continue(())
        })?;
        ensure!(counts.dropped > 0, "the rings were never full: {counts:?}");
        Ok(())
    });
}

#[test]
fn a_reader_that_goes_away_leaves_full_rings() {
    host::as_root(|| {
        let mut read = 0;
        let counts = run("gone", |drain, take| {
            drain.finish(|record| {
                take(record.cpu, record.payload);
                read += 1;
            });
            if read < 1000 { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        })?;
        let most = u64::from(RING) / (8 * record_words(PAYLOAD as u64));
        ensure!(counts.dropped > 0 && counts.recorded >= most, "{counts:?}");
        Ok(())
    });
}

#[test]
fn records_that_must_wait_leave_space_in_the_ring() {
    host::as_root(|| {
        let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let (session, attached, rings) = session(RING, RING / 2)?;
        let slot = attached.slot().context("no slot")?;
        let (cpu, record) = (host::last_cpu()? as u32, 8 * record_words(PAYLOAD as u64));
        let most = u64::from(RING) / record * 3 / 4;
        let mut drain = Drain::new(rings);
        let mut early = 0;
        for _ in 0..4 {
            std::thread::scope(|scope| scope.spawn(|| call_on(cpu, most)).join().expect("a caller"))?;
            // As if another CPU could still deliver records that are older than all.
            drain.merge(0, |_| early += 1);
        }
        let (mut read, counts) = (0, session.counters().total(slot));
        drain.finish(|_| read += 1);
        ensure!(early == 0 && read == 4 * most && counts.dropped == 0, "{early} {read} {counts:?}");
        Ok(())
    });
}

/// Bytes of a ring that can overwrite. A reader begins at a known position: one of 64, behind a part that stays free.
const LARGE: u32 = 256 * 1024;

#[test]
fn a_ring_that_overwrites_keeps_the_youngest_records() {
    host::as_root(|| {
        let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let (session, attached, mut rings) = session(LARGE, LARGE / 2)?;
        let slot = attached.slot().context("no slot")?;
        let (cpus, done) = (cpus()?, AtomicBool::new(false));
        let (mut all, mut gaps, mut kept) = (Read::default(), 0, u64::MAX);
        rings.iter_mut().for_each(CpuRing::overwrite);
        std::thread::scope(|scope| -> Result<()> {
            let callers: Vec<_> =
                cpus.iter().map(|cpu| scope.spawn(move || call_on(*cpu, calls()))).collect();
            let waiter = scope.spawn(|| -> Result<()> {
                let outcome = callers.into_iter().try_for_each(|caller| caller.join().expect("a caller"));
                done.store(true, Ordering::Release);
                outcome
            });
            let (mut is_last, mut recorded) = (false, 0);
            let round = 2 * cpus.len() as u64 * u64::from(LARGE) / (8 * record_words(PAYLOAD as u64));
            while !is_last {
                // Each ring is overwritten once, more or less, however fast the machine is.
                while !is_last && session.counters().total(slot).recorded < recorded + round {
                    is_last = done.load(Ordering::Acquire);
                    std::thread::sleep(Duration::from_micros(500));
                }
                recorded = session.counters().total(slot).recorded;
                for (cpu, ring) in (0..).zip(&mut rings) {
                    let before = all.seen();
                    let Some(overwritten) = ring.was_overwritten() else { continue };
                    let mut wrong = None;
                    ring.drain(|_, payload| {
                        wrong = wrong.take().or(all.take(cpu, payload).err());
                        Seen::Taken
                    });
                    wrong.map_or(Ok(()), Err)?;
                    if overwritten {
                        (gaps, kept) = (gaps + 1, kept.min(all.seen() - before));
                    }
                    ring.overwrite();
                }
            }
            waiter.join().expect("the thread that waits for the callers")
        })?;
        let (calls_of_all, counts) = (calls() * cpus.len() as u64, session.counters().total(slot));
        println!(
            "overwriting: {calls_of_all} calls, {} read, {gaps} gaps, {kept} kept, {counts:?}",
            all.seen()
        );
        ensure!(counts.recorded + counts.dropped == calls_of_all, "{counts:?}");
        let least = rings.first().context("no ring")?.kept() as u64 / (8 * record_words(PAYLOAD as u64));
        ensure!(gaps > 0 && kept >= least, "{gaps} gaps; {kept} of {least} records were kept");
        // While the reader ends the overwriting, a ring has only a small free part, and the last hits may find none.
        let missing = |cpu: u32| -> Option<u64> { (calls() - 1).checked_sub(all.0.get(cpu as usize)?.0?) };
        for cpu in &cpus {
            let (missing, dropped) = (missing(*cpu), session.counters().of(slot, *cpu).dropped);
            ensure!(
                missing.is_some_and(|last| last <= dropped),
                "CPU {cpu}: {missing:?} of {dropped} dropped"
            );
        }
        ensure!(rings.iter().all(|ring| ring.malformed() == 0), "a malformed record");
        Ok(())
    });
}

#[test]
fn a_full_ring_wakes_its_reader_once() {
    host::as_root(|| {
        let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let (session, attached, mut rings) = session(RING, RING / 4)?;
        let slot = attached.slot().context("no slot")?;
        let waiter = Waiter::new(&rings)?;
        let (cpu, record) = (host::last_cpu()? as u32, 8 * record_words(PAYLOAD as u64));
        let quarter = u64::from(RING / 4).div_ceil(record);
        let now = |waiter: &Waiter| waiter.wait(Duration::ZERO);
        let calls = |count: u64| -> Result<()> {
            std::thread::scope(|scope| scope.spawn(|| call_on(cpu, count)).join().expect("a caller"))
        };
        for round in 0..3 {
            calls(quarter - 1)?;
            ensure!(now(&waiter)? == Woken::Timeout, "round {round}: woken too early");
            calls(1)?;
            ensure!(now(&waiter)? == Woken::Ready, "round {round}: not woken");
            // Past the watermark, and with a full ring, nobody wakes it again.
            calls(4 * quarter)?;
            ensure!(now(&waiter)? == Woken::Timeout, "round {round}: woken twice");
            let dropped = session.counters().total(slot).dropped;
            ensure!(dropped >= quarter * (round + 1), "round {round}: {dropped} dropped");
            let mut drain = Drain::new(rings);
            let (mut read, since) = (0, Instant::now());
            drain.finish(|_| read += 1);
            ensure!(read == u64::from(RING) / record, "round {round}: {read} read in {:?}", since.elapsed());
            rings = drain.into_rings();
        }
        Ok(())
    });
}
