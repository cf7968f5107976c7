//! Available memory: the machine's (`MemAvailable` of `/proc/meminfo`, `si_mem_available()`), limited by this
//! process's control groups.

use super::cgroups::Cgroups;

/// Bytes that this process could still allocate; None if the kernel does not report it.
pub fn available() -> Option<u64> {
    let machine = mem_available(&std::fs::read_to_string("/proc/meminfo").ok()?)?;
    Some(Cgroups::usual().memory_left().map_or(machine, |left| left.min(machine)))
}

/// `MemAvailable:     123 kB`
fn mem_available(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix("kB")?.trim_end().parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn available_memory_is_read() {
        let text = "MemTotal:       16316412 kB\nMemFree:          1 kB\nMemAvailable:   15000000 kB\n";
        assert_eq!(mem_available(text), Some(15_360_000_000));
        for bad in
            ["", "MemAvailable: 5\n", "MemAvailable: x kB\n", "MemAvailable: 18446744073709551615 kB\n"]
        {
            assert_eq!(mem_available(bad), None, "{bad:?}");
        }
        assert!(available().is_some_and(|bytes| bytes > 1 << 20));
    }
}
