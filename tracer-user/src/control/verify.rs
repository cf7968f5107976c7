//! Holding a raw tracepoint plan against the real event: both programs see hits that our own thread provokes, and the
//! plan is good when their records are the same to the byte.

use std::{
    net::UdpSocket,
    time::{Duration, Instant},
};

use rustix::thread::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity};

use super::facts::Facts;
use crate::{
    attach::{Attachment, Context, Options, Request, Session, Via, ids},
    event::Format,
    plan::{
        raw::{Provoke, RawPlan},
        source::Hook,
    },
    ring::Drain,
    sys::call,
};

/// `common_type` of the records of either program.
const BY_EVENT: u16 = 1;
const BY_PLAN: u16 = 2;

/// Whether the plan makes the records that the kernel makes. The error says why it cannot be used.
pub(super) fn holds(format: &Format, plan: &RawPlan, facts: &Facts) -> Result<(), String> {
    let own = ids::own().map_err(|cause| cause.to_string())?;
    let options = Options {
        ring_bytes: 256 * 1024,
        watermark: u32::MAX,
        cpus: facts.cpus(),
        slots: 2,
        pid_gate: false,
        own_tgid: own.process,
        own_only: true,
    };
    let (mut session, rings) =
        Session::new(&options, Context::default()).map_err(|error| error.to_string())?;
    let mut attach = |hook: &Hook, via: &Via, kind| {
        let request = Request { format, hook, via, filter: None, irqs_off: false, kind, ungated: false };
        session.attach(&request).map_err(|error| error.to_string())
    };
    let by_event = attach(&Hook::Tracepoint, &Via::Tracepoint(format.id), BY_EVENT)?;
    let by_plan = attach(
        &Hook::RawTracepoint(plan.fields.clone()),
        &Via::RawTracepoint(plan.tracepoint.clone()),
        BY_PLAN,
    )?;
    session.set_tracing(true);
    let provoked = provoke(plan.provoke);
    session.set_tracing(false);
    let mut drain = Drain::new(rings);
    let (mut event, mut planned) = (Vec::new(), Vec::new());
    drain.finish(|record| {
        let head = &record.payload[..8];
        let kind = u16::from_ne_bytes([head[0], head[1]]);
        let pid = u32::from_ne_bytes([head[4], head[5], head[6], head[7]]);
        // Other threads of ours may be caught between the two programs when tracing goes on and off.
        if pid == own.thread {
            let side = if kind == BY_EVENT { &mut event } else { &mut planned };
            side.push(record.payload[8..].to_vec());
        }
    });
    retire(session, [by_event, by_plan]);
    provoked.map_err(|error| format!("it could not be provoked: {error}"))?;
    if event.is_empty() {
        return Err("it could not be provoked: nothing happened".to_owned());
    }
    // The kernel pads a record's end; only what the format names counts.
    let size = format.fixed_size() - 8;
    let cut = |records: &[Vec<u8>]| -> Vec<Vec<u8>> {
        records.iter().map(|record| record[..size.min(record.len())].to_vec()).collect()
    };
    if mask(format, cut(&event)) == mask(format, cut(&planned)) {
        Ok(())
    } else {
        Err(format!("its records differ from the kernel's ({} and {})", planned.len(), event.len()))
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
fn retire(session: Session, attachments: [Attachment; 2]) {
    std::thread::spawn(move || drop((attachments, session)));
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
            fresh[4096] = std::hint::black_box(1);
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
