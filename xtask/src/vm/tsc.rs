//! The rate of this machine's time stamp counter. QEMU's emulation passes the counter to the guest unchanged.

use std::{
    path::Path,
    time::{Duration, Instant},
};

/// Time over which the rate is measured: long against the nanoseconds between the readings of the two clocks.
const SPAN: Duration = Duration::from_millis(50);
/// Pairs of readings of which the best counts. Others may have an interruption between the two.
const TRIES: u32 = 10;

/// Ticks of the time stamp counter in a millisecond. `None` on another architecture, and if the kernel keeps time with
/// another clock, because the counters of the CPUs may then differ.
pub(super) fn ticks_per_millisecond() -> Option<u64> {
    let name = Path::new("/sys/devices/system/clocksource/clocksource0/current_clocksource");
    if std::fs::read_to_string(name).ok()?.trim() != "tsc" {
        return None;
    }
    let (start, first) = now()?;
    std::thread::sleep(SPAN);
    let (end, last) = now()?;
    Some(rate(last.checked_sub(first)?, end - start))
}

/// Ticks in a millisecond, if so many passed in this time.
fn rate(ticks: u64, time: Duration) -> u64 {
    let ticks = u128::from(ticks) * 1_000_000;
    u64::try_from((ticks + time.as_nanos() / 2) / time.as_nanos()).unwrap_or(u64::MAX)
}

/// The time, and the counter at that time.
fn now() -> Option<(Instant, u64)> {
    let tries = (0..TRIES).map(|_| {
        let before = counter()?;
        let time = Instant::now();
        let after = counter()?;
        Some((after.checked_sub(before)?, time, before.midpoint(after)))
    });
    let best = tries.collect::<Option<Vec<_>>>()?.into_iter().min_by_key(|(apart, ..)| *apart)?;
    Some((best.1, best.2))
}

#[cfg(target_arch = "x86_64")]
#[expect(
    unsafe_code,
    clippy::unnecessary_wraps,
    reason = "there is no safe function; other architectures have no counter"
)]
fn counter() -> Option<u64> {
    // SAFETY: every x86-64 CPU has the instruction, and a kernel that keeps time with it lets programs use it.
    Some(unsafe { core::arch::x86_64::_rdtsc() })
}

#[cfg(not(target_arch = "x86_64"))]
fn counter() -> Option<u64> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_is_rounded() {
        assert_eq!(rate(125_000_000, Duration::from_millis(50)), 2_500_000);
        assert_eq!(rate(124_999_980, Duration::from_millis(50)), 2_500_000);
        assert_eq!(rate(124_999_970, Duration::from_millis(50)), 2_499_999);
    }

    #[test]
    fn two_measurements_agree() {
        let (Some(one), Some(two)) = (ticks_per_millisecond(), ticks_per_millisecond()) else { return };
        // The guest's kernel accepts a difference of 1 %.
        assert!(one.abs_diff(two) * 1000 < one, "{one} and {two}");
    }
}
