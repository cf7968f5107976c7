//! Clocks and timers: sleeps, and timers of three kinds, most of which are stopped before they fire.

use std::io;

use rustix::time::{ClockId, Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec};

use super::provoked::Count::{AtLeast, Exactly};
use super::provoked::{Provoked, at_least, exactly, syscalls};
use super::raw::{interval_timer, posix_timer};
use super::site::Site;

/// Nanoseconds slept at a time.
const NAP: i64 = 300_000;

/// One round.
pub(super) fn run(_: &Site) -> io::Result<()> {
    let nap = Timespec { tv_sec: 0, tv_nsec: NAP };
    let zero = Timespec { tv_sec: 0, tv_nsec: 0 };
    let _ = rustix::thread::nanosleep(&nap);
    let _ = rustix::thread::clock_nanosleep_relative(ClockId::Monotonic, &nap);
    interval_timer()?;
    posix_timer()?;

    let timer = rustix::time::timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC)?;
    let once = Itimerspec { it_interval: zero, it_value: nap };
    rustix::time::timerfd_settime(&timer, TimerfdTimerFlags::empty(), &once)?;
    rustix::io::read(&timer, &mut [0_u8; 8])?;
    let far = Itimerspec { it_interval: zero, it_value: Timespec { tv_sec: 1000, tv_nsec: 0 } };
    rustix::time::timerfd_settime(&timer, TimerfdTimerFlags::empty(), &far)?;
    rustix::time::timerfd_gettime(&timer)?;
    drop(timer);

    let _ = rustix::time::clock_getres(ClockId::Monotonic);
    // Fails on machines without an alarm clock.
    if let Ok(alarm) = rustix::time::timerfd_create(TimerfdClockId::BoottimeAlarm, TimerfdFlags::CLOEXEC) {
        rustix::time::timerfd_settime(&alarm, TimerfdTimerFlags::empty(), &far)?;
    }
    Ok(())
}

/// The events that [`run`] provokes.
pub(super) fn events() -> Vec<Provoked> {
    let mut events = syscalls(&[
        ("clock_nanosleep", AtLeast(1)),
        ("setitimer", Exactly(2)),
        ("timer_create", Exactly(1)),
        ("timer_settime", Exactly(1)),
        ("timer_gettime", Exactly(1)),
        ("timer_delete", Exactly(1)),
        ("timerfd_create", Exactly(2)),
        ("timerfd_gettime", Exactly(1)),
        ("timerfd_settime", AtLeast(2)),
        ("clock_getres", AtLeast(0)),
    ]);
    events.extend(exactly(&[("timer:itimer_state", 2)]));
    events.extend(at_least(&[
        ("timer:hrtimer_init", 4),
        ("timer:hrtimer_setup", 4),
        ("timer:hrtimer_start", 4),
        ("timer:hrtimer_cancel", 1),
        ("sched:sched_switch", 3),
        ("alarmtimer:alarmtimer_start", 0),
        ("alarmtimer:alarmtimer_cancel", 0),
    ]));
    events
}
