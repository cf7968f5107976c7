//! The possible and online CPUs from sysfs, parsed strictly: sizes of buffers that the kernel writes depend on them.
//!
//! There is no fallback for an unreadable list. `sched_getaffinity(2)`, which the standard library uses, reports only
//! the CPUs of this process, but the kernel copies a value for each possible CPU.

use std::sync::OnceLock;

use super::{Errno, errno_of};

const POSSIBLE: &str = "/sys/devices/system/cpu/possible";
const ONLINE: &str = "/sys/devices/system/cpu/online";

/// More CPUs than any kernel is built for (`NR_CPUS`).
const MOST: u32 = 1 << 16;

/// A list of CPUs, non-empty and in ascending order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cpus {
    all: Vec<u32>,
}

impl Cpus {
    /// Parses the text of sysfs (`0-3,8`, `cpumap_print_to_pagebuf()`); None for any other form.
    pub fn parse(text: &str) -> Option<Self> {
        // `parse()` alone would accept a sign.
        let number = |text: &str| {
            let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
            text.parse::<u32>().ok().filter(|number| digits && *number < MOST)
        };
        let mut all: Vec<u32> = Vec::new();
        for part in text.strip_suffix('\n').unwrap_or(text).split(',') {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let (first, last) = (number(first)?, number(last)?);
            if first > last || all.last().is_some_and(|before| *before >= first) {
                return None;
            }
            all.extend(first..=last);
        }
        Some(Self { all })
    }

    fn read(path: &str) -> Result<Self, Errno> {
        let text = std::fs::read_to_string(path).map_err(|error| errno_of(&error))?;
        Self::parse(&text).ok_or(Errno::IO)
    }

    /// The CPUs that can ever be online. They do not change while the kernel runs.
    ///
    /// # Errors
    /// The error of reading the list; `EIO` for a text that is not a list of CPUs.
    pub fn possible() -> Result<&'static Self, Errno> {
        static KNOWN: OnceLock<Cpus> = OnceLock::new();
        if let Some(known) = KNOWN.get() {
            return Ok(known);
        }
        let read = Self::read(POSSIBLE)?;
        Ok(KNOWN.get_or_init(|| read))
    }

    /// The CPUs that are online now.
    ///
    /// # Errors
    /// As [`Cpus::possible`].
    pub fn online() -> Result<Self, Errno> {
        Self::read(ONLINE)
    }

    /// Number of CPUs (`num_possible_cpus()`).
    pub fn count(&self) -> usize {
        self.all.len()
    }

    /// One more than the highest CPU number (`nr_cpu_ids`).
    pub fn ids(&self) -> u32 {
        self.all.last().map_or(0, |last| last + 1)
    }

    /// The lowest CPU number.
    pub fn first(&self) -> u32 {
        self.all.first().copied().unwrap_or(0)
    }

    /// Whether the list contains a CPU.
    pub fn has(&self, cpu: u32) -> bool {
        self.all.binary_search(&cpu).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_read_strictly() {
        for (text, expected) in [
            ("0\n", Some(vec![0])),
            ("0-3", Some(vec![0, 1, 2, 3])),
            ("1-2,8\n", Some(vec![1, 2, 8])),
            ("", None),
            ("\n", None),
            ("0-", None),
            ("-1", None),
            ("+1", None),
            ("0,,1", None),
            ("0-3,2", None),
            ("3-1", None),
            ("0 1", None),
            ("0x1", None),
            ("0-65536", None),
            ("0-4294967295", None),
            ("0\n\n", None),
        ] {
            assert_eq!(Cpus::parse(text).map(|cpus| cpus.all), expected, "{text:?}");
        }
    }

    #[test]
    fn ids_end_after_the_highest_cpu() {
        for (text, ids) in [("0-1\n", Some(2)), ("0,2-7\n", Some(8)), ("", None)] {
            assert_eq!(Cpus::parse(text).map(|cpus| cpus.ids()), ids);
        }
    }

    #[test]
    fn this_machine_has_cpus() {
        let (possible, online) = (Cpus::possible().unwrap(), Cpus::online().unwrap());
        assert!(possible.count() >= online.count() && online.count() > 0);
        assert!(possible.has(online.first()) && possible.ids() as usize >= possible.count());
        assert!(Cpus::read("/sys/devices/system/cpu/no_such_list").is_err());
    }
}
