//! Verifies a raw tracepoint plan against the real event: both programs see hits that this thread provokes. The plan
//! passes if its records include each of the kernel's records, byte for byte.

use std::{
    collections::HashMap,
    io,
    net::UdpSocket,
    time::{Duration, Instant},
};

use rustix::thread::{CpuSet, gettid, sched_getaffinity, sched_getcpu, sched_setaffinity};

use tracer_abi::control;

use crate::{
    attach::{self, AttachError, AttachPoint, Attached, Dispatch, HitActions, Request, Session, Threads},
    event::Format,
    kernel::ThreadStatus,
    plan::{
        raw::{Provoke, RawPlan},
        source::{FieldSource, ProgramContext},
    },
    ring::Drain,
    sys::call,
};

/// First `common_type` of the records of these programs: two for each plan, the event's and the plan's.
const FIRST_KIND: u16 = control::FIRST + 16;
/// Maximum number of plans that are verified at one start. Further events use perf tracepoints.
pub(super) const MOST: usize = 64;

/// Why a plan cannot be used.
#[derive(Debug, thiserror::Error)]
pub(super) enum TrialError {
    /// One of the two programs could not be attached.
    #[error(transparent)]
    Attach(#[from] AttachError),
    #[error("it could not be provoked: {0}")]
    Provoke(String),
    #[error("it could not be provoked: nothing happened")]
    NoHit,
    /// The plan's program missed a record of the event's program, or made too many.
    #[error("its records differ from the kernel's ({planned} and {kernel})")]
    Differs { planned: usize, kernel: usize },
}

/// Whether each plan produces the kernel's records; an error states why it cannot be used. The session must not trace
/// yet.
pub(super) fn hold(
    plans: &[(Format, RawPlan)],
    own_thread: u32,
    session: &mut Session,
    drain: &mut Drain,
) -> Vec<Result<(), TrialError>> {
    if plans.is_empty() {
        return Vec::new();
    }
    let on_trial = (0..).zip(plans).map(|(index, (format, plan))| {
        attach(format, &plan.fields, &plan.tracepoint, FIRST_KIND + 2 * index, session)
    });
    let attachments: Vec<_> = on_trial.collect();
    let mut records = vec![[Vec::new(), Vec::new()]; plans.len()];
    session.switches().set_tracing(true);
    let mut provoked: HashMap<Provoke, io::Result<()>> = HashMap::new();
    for (_, plan) in plans {
        provoked.entry(plan.provoke).or_insert_with(|| provoke(plan.provoke));
    }
    session.switches().set_tracing(false);
    drain.finish(|record| {
        let Some(([low, high, _, _, pid @ ..], fields)) = record.payload.split_first_chunk::<8>() else {
            return;
        };
        let pid = u32::from_ne_bytes(*pid);
        let kind = u16::from_ne_bytes([*low, *high]).wrapping_sub(FIRST_KIND);
        // Other threads of this process may hit one of the two programs while tracing is switched on or off.
        let both = records.get_mut(usize::from(kind / 2)).filter(|_| pid == own_thread);
        if let Some(records) = both.and_then(|both| both.get_mut(usize::from(kind % 2))) {
            records.push(fields.to_vec());
        }
    });
    let mut attached = Vec::new();
    let trials = plans.iter().zip(attachments).zip(records);
    let outcomes = trials.map(|(((format, plan), attachments), records)| {
        attached.extend(attachments?);
        if let Some(Err(error)) = provoked.get(&plan.provoke) {
            return Err(TrialError::Provoke(error.to_string()));
        }
        judge(format, records)
    });
    let outcomes = outcomes.collect();
    retire(attached);
    outcomes
}

/// Attaches programs to an event and to its raw tracepoint, which take only hits of this process. The records of the
/// first have this kind, those of the second the next one.
pub(super) fn attach(
    format: &Format,
    fields: &[FieldSource],
    tracepoint: &str,
    kind: u16,
    session: &mut Session,
) -> Result<[Attached; 2], AttachError> {
    let mut attach = |context: &ProgramContext, point: &AttachPoint, kind| {
        let request = Request {
            format,
            context,
            point,
            filter: None,
            irqs_off: false,
            kind,
            threads: Threads::Own,
            other: None,
            hit_actions: HitActions::default(),
        };
        session.attach(&request, Dispatch::Direct)
    };
    let (raw, point) = (fields.to_vec(), AttachPoint::RawTracepoint(tracepoint.to_owned()));
    Ok([
        attach(&ProgramContext::Tracepoint, &AttachPoint::tracepoint(format), kind)?,
        attach(&ProgramContext::RawTracepoint(raw), &point, kind + 1)?,
    ])
}

/// Compares the records of the two programs: each of the kernel's records must be among the plan's. The plan may have
/// up to twice as many. At a perf tracepoint the kernel runs no second program on a CPU, so only the raw tracepoint
/// sees hits of an interrupt meanwhile. If an interrupt occurs between the two hooks, their orders differ.
fn judge(format: &Format, [event, planned]: [Vec<Vec<u8>>; 2]) -> Result<(), TrialError> {
    if event.is_empty() {
        return Err(TrialError::NoHit);
    }
    // Only the bytes of the fields count: the kernel pads the end of a record, and leaves old memory between fields.
    let size = format.fixed_size() - 8;
    let is_field =
        |at: usize| format.fields.iter().any(|field| (field.offset..field.end()).contains(&(at + 8)));
    let compared = |record: Vec<u8>| -> Vec<u8> {
        let bytes = record.into_iter().take(size).enumerate();
        bytes.map(|(at, byte)| if is_field(at) { byte } else { 0 }).collect()
    };
    let (kernel, made) = (event.len(), planned.len());
    let mut left: Vec<_> = planned.into_iter().map(compared).collect();
    let mut take = |record| left.iter().position(|other| *other == record).map(|at| left.swap_remove(at));
    if made <= 2 * kernel && event.into_iter().map(compared).all(|record| take(record).is_some()) {
        Ok(())
    } else {
        Err(TrialError::Differs { planned: made, kernel })
    }
}

/// Detaches programs in another thread, because the kernel waits for all CPUs. Their perf events are closed while no
/// tracer opens any: the kernel holds a lock meanwhile that opening needs.
pub(super) fn retire(attachments: Vec<Attached>) {
    if !attachments.is_empty() {
        std::thread::spawn(move || attach::detach_late(attachments));
    }
}

/// Provokes the event in this thread.
fn provoke(how: Provoke) -> io::Result<()> {
    match how {
        Provoke::Getppid => {
            let args = [0x11, 0x2222_2222_2222, 0x33, u64::MAX, 0x5555, 0x66];
            Ok(call::getppid_with(args).map(drop)?)
        }
        Provoke::Sleep => {
            let waits = || ThreadStatus::read(own_thread()).ok()?.waits();
            let before = waits();
            // A timer that expires before the thread has begun to sleep switches nothing.
            sleep_until(|| waits().is_none_or(|now| Some(now) != before));
            Ok(())
        }
        Provoke::Wake => on_one_cpu(wake),
        Provoke::Thread => join(std::thread::spawn(|| ())),
        Provoke::Timerfd => Ok(timerfd()?),
        Provoke::Pipe => Ok(rustix::pipe::pipe().map(drop)?),
        Provoke::Fault => {
            // Large enough that the allocator maps new memory.
            let mut fresh = vec![0_u8; 1 << 20];
            if let Some(byte) = fresh.get_mut(4096) {
                *byte = std::hint::black_box(1);
            }
            std::hint::black_box(&fresh);
            Ok(())
        }
        Provoke::Loopback => loopback(),
        Provoke::Spin => {
            let start = Instant::now();
            while start.elapsed() < Duration::from_millis(25) {
                std::hint::spin_loop();
            }
            Ok(())
        }
    }
}

/// Runs with this thread, and threads it starts, bound to the current CPU.
fn on_one_cpu(run: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
    let before = sched_getaffinity(None)?;
    let mut one = CpuSet::new();
    one.set(sched_getcpu());
    sched_setaffinity(None, &one)?;
    let result = run();
    sched_setaffinity(None, &before)?;
    result
}

/// Sleeps, each time for longer, until something is so; at most for a fifth of a second.
fn sleep_until(is_so: impl Fn() -> bool) {
    let mut time = Duration::from_micros(100);
    while time < Duration::from_millis(100) {
        std::thread::sleep(time);
        if is_so() {
            return;
        }
        time *= 2;
    }
}

/// The id of this thread.
fn own_thread() -> u32 {
    gettid().as_raw_nonzero().get().cast_unsigned()
}

fn wake() -> io::Result<()> {
    let (ready, is_ready) = std::sync::mpsc::channel();
    let sleeper = std::thread::spawn(move || {
        let _ = ready.send(own_thread());
        std::thread::park();
    });
    let thread = is_ready.recv().map_err(io::Error::other)?;
    // Only a thread that sleeps is woken up.
    sleep_until(|| ThreadStatus::read(thread).is_ok_and(|status| status.is_asleep()));
    sleeper.thread().unpark();
    join(sleeper)
}

fn join(thread: std::thread::JoinHandle<()>) -> io::Result<()> {
    thread.join().map_err(|_| io::Error::other("a thread failed"))
}

fn timerfd() -> rustix::io::Result<()> {
    use rustix::time::{
        Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
        timerfd_settime,
    };
    let timer = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC)?;
    let never = Timespec { tv_sec: 0, tv_nsec: 0 };
    for tv_sec in [3600, 0] {
        let at = Itimerspec { it_interval: never, it_value: Timespec { tv_sec, tv_nsec: 0 } };
        timerfd_settime(&timer, TimerfdTimerFlags::empty(), &at)?;
    }
    Ok(())
}

fn loopback() -> io::Result<()> {
    let socket = UdpSocket::bind("127.0.0.1:0")?;
    socket.set_read_timeout(Some(Duration::from_millis(100)))?;
    socket.send_to(b"tracer", socket.local_addr()?)?;
    socket.recv(&mut [0; 16]).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FORMAT: &str = "name: e\nID: 7\nformat:\n\
        \tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;\n\
        \tfield:int common_pid;\toffset:4;\tsize:4;\tsigned:1;\n\n\
        \tfield:u8 a;\toffset:8;\tsize:1;\tsigned:0;\n\
        \tfield:u16 b;\toffset:10;\tsize:2;\tsigned:0;\n\n\
        print fmt: \"%u\", REC->a\n";

    fn refusal(kernel: &[[u8; 4]], plan: &[[u8; 4]]) -> Option<String> {
        let format = Format::parse("s", FORMAT).unwrap();
        let records = [kernel, plan].map(|list| list.iter().map(|record| record.to_vec()).collect());
        judge(&format, records).err().map(|error| error.to_string())
    }

    #[test]
    fn a_plan_is_accepted_if_it_makes_every_record_of_the_kernel() {
        let (a, b, c) = ([1, 0, 2, 3], [4, 0, 5, 6], [7, 0, 8, 9]);
        assert_eq!(refusal(&[a, b], &[a, b]), None);
        // Old memory between the fields, another order, a hit that the kernel missed.
        assert_eq!(refusal(&[[1, 0xee, 2, 3], b], &[b, c, a]), None);
        assert_eq!(refusal(&[], &[a]).as_deref(), Some("it could not be provoked: nothing happened"));
        for (kernel, plan) in [
            (&[a, b][..], &[a][..]),
            (&[a, b], &[a, c]),
            (&[a, a], &[a, b]),
            // More than interrupts can account for.
            (&[a], &[a, b, c]),
        ] {
            let text = format!("its records differ from the kernel's ({} and {})", plan.len(), kernel.len());
            assert_eq!(refusal(kernel, plan), Some(text));
        }
    }
}
