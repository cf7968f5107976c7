//! The trace clocks, as closely as BPF allows.
//!
//! Programs stamp records with `CLOCK_MONOTONIC`. The other clocks are computed from it when records are taken out of
//! the rings, milliseconds later. `boot` and `tai` differ by a number that only suspending or setting the clock
//! changes. `mono_raw` and the processor's counter differ by a factor close enough to one over such a time. `local`,
//! `global` and `perf`, the scheduler's clock in the kernel, are `CLOCK_MONOTONIC` here: both count nanoseconds since
//! the start, and one clock for all CPUs is more than they guarantee.

use rustix::time::{ClockId, DynamicClockId, clock_gettime, clock_gettime_dynamic};

use crate::sys::counter;

/// A trace clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Clock {
    /// The default.
    #[default]
    Local,
    /// As local, and ordered across CPUs.
    Global,
    /// Counts records.
    Counter,
    /// Ticks of 10 ms since the start (`USER_HZ`).
    Uptime,
    /// As local.
    Perf,
    /// `CLOCK_MONOTONIC`
    Mono,
    /// `CLOCK_MONOTONIC_RAW`
    MonoRaw,
    /// `CLOCK_BOOTTIME`
    Boot,
    /// `CLOCK_TAI`
    Tai,
    /// The processor's cycle counter.
    Tsc,
}

/// Nanoseconds per tick of `uptime`.
const TICK: u64 = 10_000_000;

impl Clock {
    /// All clocks of this architecture, in the kernel's order.
    pub const ALL: &[Self] = &[
        Self::Local,
        Self::Global,
        Self::Counter,
        Self::Uptime,
        Self::Perf,
        Self::Mono,
        Self::MonoRaw,
        Self::Boot,
        Self::Tai,
        #[cfg(target_arch = "x86_64")]
        Self::Tsc,
    ];

    /// Its name in `trace_clock`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Local => "local",
            Self::Global => "global",
            Self::Counter => "counter",
            Self::Uptime => "uptime",
            Self::Perf => "perf",
            Self::Mono => "mono",
            Self::MonoRaw => "mono_raw",
            Self::Boot => "boot",
            Self::Tai => "tai",
            Self::Tsc => "x86-tsc",
        }
    }

    /// The clock with this name.
    pub fn named(name: &[u8]) -> Option<Self> {
        Self::ALL.iter().copied().find(|clock| clock.name().as_bytes() == name)
    }

    /// Whether it counts nanoseconds; others are shown as plain counts.
    pub fn in_ns(self) -> bool {
        !matches!(self, Self::Counter | Self::Uptime | Self::Tsc)
    }
}

fn nanoseconds(time: rustix::time::Timespec) -> u64 {
    (time.tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(time.tv_nsec as u64)
}

/// `CLOCK_MONOTONIC` now, in nanoseconds; programs stamp records with this clock.
pub fn monotonic() -> u64 {
    nanoseconds(clock_gettime(ClockId::Monotonic))
}

/// Converts stamps into times of a clock; valid for a short time.
#[derive(Clone, Copy, Debug)]
pub struct Conversion {
    clock: Clock,
    /// The clock minus `CLOCK_MONOTONIC`, both at `at`.
    offset: i64,
    /// By how much the clock is faster than `CLOCK_MONOTONIC` from `at` on, in 2^-32 per nanosecond.
    drift: i64,
    at: u64,
}

impl Conversion {
    /// The conversion that is valid now.
    pub fn now(clock: Clock) -> Self {
        let at = monotonic();
        let now = match clock {
            Clock::Boot => nanoseconds(clock_gettime(ClockId::Boottime)),
            Clock::Tai => clock_gettime_dynamic(DynamicClockId::Tai).map_or(at, nanoseconds),
            Clock::MonoRaw => nanoseconds(clock_gettime(ClockId::MonotonicRaw)),
            Clock::Tsc => counter::now(),
            _ => at,
        };
        Self::of(clock, at, now)
    }

    /// The conversion at a moment: its stamp, and the clock's time or count.
    fn of(clock: Clock, at: u64, now: u64) -> Self {
        let offset = now.wrapping_sub(at) as i64;
        let drift = if clock == Clock::Tsc {
            // The counter starts with the machine or later, and its average rate since then is used.
            let pace = (u128::from(now) << 32) / u128::from(at.max(1));
            (pace as i64).wrapping_sub(1 << 32)
        } else {
            0
        };
        Self { clock, offset, drift, at }
    }

    /// The clock's time for a stamp; `count` is the value that the clock `counter` shows.
    pub fn time(&self, stamp: u64, count: u64) -> u64 {
        match self.clock {
            Clock::Counter => count,
            Clock::Uptime => stamp / TICK,
            _ => {
                let away = stamp.wrapping_sub(self.at) as i64;
                let gained = i128::from(away).wrapping_mul(i128::from(self.drift)) >> 32;
                stamp.wrapping_add_signed(self.offset).wrapping_add_signed(gained as i64)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        assert_eq!(Clock::named(b"mono_raw"), Some(Clock::MonoRaw));
        assert_eq!(Clock::named(b"no"), None);
        assert_eq!(Clock::named(b""), None);
        assert!(Clock::ALL.iter().all(|clock| Clock::named(clock.name().as_bytes()) == Some(*clock)));
    }

    #[test]
    fn stamps_are_converted_to_the_clocks_times() {
        let read = |id| nanoseconds(clock_gettime(id));
        let of = |clock| Conversion::now(clock).time(monotonic(), 7);
        // A conversion is wrong by at most the time between its own two reads.
        for (clock, id) in [
            (Clock::Local, ClockId::Monotonic),
            (Clock::Boot, ClockId::Boottime),
            (Clock::MonoRaw, ClockId::MonotonicRaw),
        ] {
            let (low, got, high) = (read(id), of(clock), read(id));
            let took = high - low;
            // The raw clock has a rate of its own.
            assert!(
                low <= got + took / 1000 && got <= high + took + took / 1000 + 1000,
                "{clock:?}: {low} {got} {high}"
            );
        }
        assert_eq!(of(Clock::Counter), 7);
        let (low, got, high) = (read(ClockId::Monotonic), of(Clock::Uptime), read(ClockId::Monotonic));
        assert!((low / TICK..=high / TICK).contains(&got), "{low} {got} {high}");
    }

    #[test]
    #[cfg(target_arch = "x86_64")]
    fn the_counter_continues_at_its_rate() {
        // Three counts a nanosecond.
        let conversion = Conversion::of(Clock::Tsc, 1_000_000_000, 3_000_000_000);
        assert_eq!(conversion.time(1_000_001_000, 0), 3_000_003_000);
        assert_eq!(conversion.time(999_999_000, 0), 2_999_997_000);
        let before = counter::now();
        assert!(Conversion::now(Clock::Tsc).time(monotonic(), 0) >= before);
    }
}
