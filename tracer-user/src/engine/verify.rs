//! Holding a raw tracepoint plan against the real event: both programs see hits that our own thread provokes, and the
//! plan is good when their records are the same to the byte.

use std::{
    collections::HashMap,
    net::UdpSocket,
    time::{Duration, Instant},
};

use rustix::thread::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity};

use tracer_abi::control;

use crate::{
    attach::{AttachPoint, Attached, Dispatch, HitActions, Request, Session, Threads},
    event::Format,
    plan::{
        raw::{Provoke, RawPlan},
        source::ProgramContext,
    },
    ring::Drain,
    sys::call,
};

/// First `common_type` of the records of these programs: two for each plan, the event's and the plan's.
const FIRST_KIND: u16 = control::FIRST + 16;
/// Plans that are checked at most at one start; further events hang on perf tracepoints.
pub(super) const MOST: usize = 64;

/// One plan on trial: both programs, and what their records were.
struct OnTrial {
    attachments: Option<[Attached; 2]>,
    records: [Vec<Vec<u8>>; 2],
    outcome: Result<(), String>,
}

/// Whether each plan makes the records that the kernel makes. An error says why it cannot be used. The session must
/// not trace anything yet.
pub(super) fn hold(
    plans: &[(Format, RawPlan)],
    own_thread: u32,
    session: &mut Session,
    drain: &mut Drain,
) -> Vec<Result<(), String>> {
    let mut trials: Vec<OnTrial> = (0..)
        .zip(plans)
        .map(|(index, plan)| {
            let attached = attach(plan, FIRST_KIND + 2 * index, session);
            let (attachments, outcome) = match attached {
                Ok(attachments) => (Some(attachments), Ok(())),
                Err(why) => (None, Err(why)),
            };
            OnTrial { attachments, records: [Vec::new(), Vec::new()], outcome }
        })
        .collect();
    session.switches().set_tracing(true);
    let mut provoked: HashMap<Provoke, Result<(), String>> = HashMap::new();
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
        // Other threads of ours may be caught between the two programs when tracing goes on and off.
        let trial = trials.get_mut(usize::from(kind / 2)).filter(|_| pid == own_thread);
        if let Some(records) = trial.and_then(|trial| trial.records.get_mut(usize::from(kind % 2))) {
            records.push(fields.to_vec());
        }
    });
    retire(trials.iter_mut().filter_map(|trial| trial.attachments.take()).flatten().collect());
    plans
        .iter()
        .zip(trials)
        .map(|((format, plan), trial)| {
            trial.outcome?;
            if let Some(Err(error)) = provoked.get(&plan.provoke) {
                return Err(format!("it could not be provoked: {error}"));
            }
            judge(format, trial.records)
        })
        .collect()
}

/// Hangs both programs of a plan on their hooks.
fn attach(
    (format, plan): &(Format, RawPlan),
    kind: u16,
    session: &mut Session,
) -> Result<[Attached; 2], String> {
    let mut attach = |hook: &ProgramContext, via: &AttachPoint, kind| {
        let request = Request {
            format,
            hook,
            via,
            filter: None,
            irqs_off: false,
            kind,
            threads: Threads::Own,
            other: None,
            extras: HitActions::default(),
        };
        session.attach(&request, Dispatch::Direct).map_err(|error| error.to_string())
    };
    Ok([
        attach(&ProgramContext::Tracepoint, &AttachPoint::Tracepoint(format.id), kind)?,
        attach(
            &ProgramContext::RawTracepoint(plan.fields.clone()),
            &AttachPoint::RawTracepoint(plan.tracepoint.clone()),
            kind + 1,
        )?,
    ])
}

/// Compares what the two programs recorded: each of the kernel's records has to be among the plan's. The plan may have
/// more, up to as many again: at a perf tracepoint the kernel runs no second program on a CPU, so what an interrupt hits
/// while one runs is seen by the raw tracepoint alone; and the two come in another order when an interrupt falls
/// between them.
fn judge(format: &Format, [event, planned]: [Vec<Vec<u8>>; 2]) -> Result<(), String> {
    if event.is_empty() {
        return Err("it could not be provoked: nothing happened".to_owned());
    }
    // The kernel pads a record's end; only what the format names counts.
    let size = format.fixed_size() - 8;
    let (seen, made) = (event.len(), planned.len());
    let cut = |records: Vec<Vec<u8>>| -> Vec<Vec<u8>> {
        let cut = |mut record: Vec<u8>| {
            record.truncate(size);
            record
        };
        records.into_iter().map(cut).collect()
    };
    let mut left: HashMap<Vec<u8>, usize> = HashMap::new();
    for record in mask(format, cut(planned)) {
        *left.entry(record).or_default() += 1;
    }
    let take = |record: &Vec<u8>| match left.get_mut(record) {
        Some(count) if *count > 0 => {
            *count -= 1;
            true
        }
        _ => false,
    };
    if made <= 2 * seen && mask(format, cut(event)).iter().all(take) {
        Ok(())
    } else {
        Err(format!("its records differ from the kernel's ({made} and {seen})"))
    }
}

/// Clears the bytes that belong to no field: the kernel leaves old memory there.
fn mask(format: &Format, mut records: Vec<Vec<u8>>) -> Vec<Vec<u8>> {
    for record in &mut records {
        for (at, byte) in record.iter_mut().enumerate() {
            if !format.fields.iter().any(|field| (field.offset..field.end()).contains(&(at + 8))) {
                *byte = 0;
            }
        }
    }
    records
}

/// Takes programs off their hooks where nobody waits for it: the kernel waits for all CPUs.
pub(super) fn retire(attachments: Vec<Attached>) {
    if !attachments.is_empty() {
        std::thread::spawn(move || drop(attachments));
    }
}

/// Does what makes the event happen in this thread.
fn provoke(how: Provoke) -> Result<(), String> {
    let text = |error: &dyn std::fmt::Display| error.to_string();
    match how {
        Provoke::Getppid => {
            let args = [0x11, 0x2222_2222_2222, 0x33, u64::MAX, 0x5555, 0x66];
            call::getppid_with(args).map(drop).map_err(|error| text(&error))
        }
        Provoke::Sleep => {
            std::thread::sleep(Duration::from_micros(100));
            Ok(())
        }
        Provoke::Wake => on_one_cpu(wake),
        Provoke::Thread => std::thread::spawn(|| ()).join().map_err(|_| "a thread failed".to_owned()),
        Provoke::Timerfd => timerfd().map_err(|error| text(&error)),
        Provoke::Pipe => rustix::pipe::pipe().map(drop).map_err(|error| text(&error)),
        Provoke::Fault => {
            // Large enough that the allocator maps it afresh.
            let mut fresh = vec![0_u8; 1 << 20];
            if let Some(byte) = fresh.get_mut(4096) {
                *byte = std::hint::black_box(1);
            }
            std::hint::black_box(&fresh);
            Ok(())
        }
        Provoke::Loopback => loopback().map_err(|error| text(&error)),
        Provoke::Spin => {
            let start = Instant::now();
            while start.elapsed() < Duration::from_millis(25) {
                std::hint::spin_loop();
            }
            Ok(())
        }
    }
}

/// Runs with this thread, and threads it starts, bound to the CPU it is on.
fn on_one_cpu(run: impl FnOnce() -> Result<(), String>) -> Result<(), String> {
    let before = sched_getaffinity(None).map_err(|error| error.to_string())?;
    let mut one = CpuSet::new();
    one.set(sched_getcpu());
    sched_setaffinity(None, &one).map_err(|error| error.to_string())?;
    let result = run();
    sched_setaffinity(None, &before).map_err(|error| error.to_string())?;
    result
}

/// Wakes a thread that waits.
fn wake() -> Result<(), String> {
    let (ready, is_ready) = std::sync::mpsc::channel();
    let sleeper = std::thread::spawn(move || {
        let _ = ready.send(());
        std::thread::park();
    });
    is_ready.recv().map_err(|error| error.to_string())?;
    // Bound to one CPU: by the time this thread runs again, the other sleeps.
    std::thread::sleep(Duration::from_micros(200));
    sleeper.thread().unpark();
    sleeper.join().map_err(|_| "a thread failed".to_owned())
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

fn loopback() -> std::io::Result<()> {
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
        \tfield:unsigned char common_flags;\toffset:2;\tsize:1;\tsigned:0;\n\
        \tfield:unsigned char common_preempt_count;\toffset:3;\tsize:1;\tsigned:0;\n\
        \tfield:int common_pid;\toffset:4;\tsize:4;\tsigned:1;\n\n\
        \tfield:u8 a;\toffset:8;\tsize:1;\tsigned:0;\n\
        \tfield:u16 b;\toffset:10;\tsize:2;\tsigned:0;\n\n\
        print fmt: \"%u\", REC->a\n";

    fn verdict(kernel: &[[u8; 4]], plan: &[[u8; 4]]) -> Result<(), String> {
        let format = Format::parse("s", FORMAT).unwrap();
        judge(&format, [kernel, plan].map(|list| list.iter().map(|record| record.to_vec()).collect()))
    }

    #[test]
    fn a_plan_holds_when_it_makes_every_record_of_the_kernels() {
        let (a, b, c) = ([1, 0, 2, 3], [4, 0, 5, 6], [7, 0, 8, 9]);
        assert_eq!(verdict(&[a, b], &[a, b]), Ok(()));
        // Old memory between the fields, another order, one that the kernel missed.
        assert_eq!(verdict(&[[1, 0xee, 2, 3], b], &[b, c, a]), Ok(()));
        assert_eq!(verdict(&[], &[a]), Err("it could not be provoked: nothing happened".to_owned()));
        for (kernel, plan) in [
            (&[a, b][..], &[a][..]),
            (&[a, b], &[a, c]),
            (&[a, a], &[a, b]),
            // More than interrupts can account for.
            (&[a], &[a, b, c]),
        ] {
            let text = format!("its records differ from the kernel's ({} and {})", plan.len(), kernel.len());
            assert_eq!(verdict(kernel, plan), Err(text));
        }
    }
}
