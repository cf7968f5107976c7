//! Available memory: the machine's (`MemAvailable` of `/proc/meminfo`, `si_mem_available()`), limited by this
//! process's control groups.

use std::path::Path;

/// Bytes that this process could still allocate; None if the kernel does not report it.
pub fn available() -> Option<u64> {
    let machine = mem_available(&std::fs::read_to_string("/proc/meminfo").ok()?)?;
    let own = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let group = own.lines().find_map(|line| line.strip_prefix("0::/")).unwrap_or_default();
    let left = Path::new("/sys/fs/cgroup").join(group);
    let limits =
        left.ancestors().take_while(|dir| dir.starts_with("/sys/fs/cgroup")).filter_map(available_in);
    Some(limits.fold(machine, u64::min))
}

/// `MemAvailable:     123 kB`
fn mem_available(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix("kB")?.trim_end().parse::<u64>().ok()?.checked_mul(1024)
}

/// The memory that a control group's limit leaves; None without a limit.
fn available_in(group: &Path) -> Option<u64> {
    let number = |file: &str| std::fs::read_to_string(group.join(file)).ok()?.trim().parse::<u64>().ok();
    Some(number("memory.max")?.saturating_sub(number("memory.current")?))
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

    #[test]
    fn the_limit_of_a_control_group_counts() {
        let dir = std::env::temp_dir().join(format!("tracer-memory-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let set = |max: &str| std::fs::write(dir.join("memory.max"), max).unwrap();
        assert_eq!(available_in(&dir), None);
        std::fs::write(dir.join("memory.current"), "100\n").unwrap();
        for (max, left) in [("max\n", None), ("400\n", Some(300)), ("10\n", Some(0))] {
            set(max);
            assert_eq!(available_in(&dir), left, "{max}");
        }
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
