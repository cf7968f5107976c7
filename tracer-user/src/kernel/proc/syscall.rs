//! The system call that a thread waits in: `/proc/TID/syscall` (proc(5)).

use std::{fs, io, time::Duration};

/// Maximum number of times, 1 ms apart, that a running thread is checked for a wait in a system call.
const CHECKS_MAX: u32 = 50;

/// The state of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CurrentSyscall {
    /// It runs, in a system call or outside.
    Running,
    /// It is blocked, and not in a system call.
    Outside,
    /// It waits in a system call with these number and first three arguments.
    In(i64, [u64; 3]),
}

impl CurrentSyscall {
    /// Reads the state of a thread.
    ///
    /// # Errors
    /// `ESRCH` or `ENOENT` if there is no such thread, `EPERM` if this process may not inspect it,
    /// [`io::ErrorKind::InvalidData`] for a text of another form.
    pub fn of(thread: u32) -> io::Result<Self> {
        let text = fs::read_to_string(format!("/proc/{thread}/syscall"))?;
        Self::parse(&text).ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    /// Whether a thread waits in one of these system calls, and not for a page that it accessed. A thread that runs is
    /// checked for 50 ms, until it waits.
    pub fn is_one_of(thread: u32, numbers: &[i64]) -> bool {
        for _ in 0..CHECKS_MAX {
            match Self::of(thread) {
                Ok(Self::Running) => std::thread::sleep(Duration::from_millis(1)),
                Ok(Self::In(number, _)) => return numbers.contains(&number),
                Ok(Self::Outside) | Err(_) => return false,
            }
        }
        true
    }

    /// Waits until a thread does not run any more, at least 1 ms and at most 50 ms.
    pub fn wait_while_running(thread: u32) {
        for _ in 0..CHECKS_MAX {
            std::thread::sleep(Duration::from_millis(1));
            if !matches!(Self::of(thread), Ok(Self::Running)) {
                return;
            }
        }
    }

    fn parse(text: &str) -> Option<Self> {
        let mut words = text.split_whitespace();
        let number = match words.next()? {
            "running" => return Some(Self::Running),
            number => number.parse().ok()?,
        };
        if number < 0 {
            return Some(Self::Outside);
        }
        let mut argument = || u64::from_str_radix(words.next()?.strip_prefix("0x")?, 16).ok();
        Some(Self::In(number, [argument()?, argument()?, argument()?]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_three_forms() {
        assert_eq!(CurrentSyscall::parse("running\n"), Some(CurrentSyscall::Running));
        assert_eq!(CurrentSyscall::parse("-1 0x7ffc 0x7f01\n"), Some(CurrentSyscall::Outside));
        let ioctl = "16 0x3 0xc0082a00 0x7ffd5a10 0x0 0x0 0x0 0x7ffd59f8 0x7f2c\n";
        assert_eq!(CurrentSyscall::parse(ioctl), Some(CurrentSyscall::In(16, [3, 0xc008_2a00, 0x7ffd_5a10])));
        for text in ["", "16", "16 0x3", "16 3 4 5", "x 0x1 0x2 0x3"] {
            assert_eq!(CurrentSyscall::parse(text), None, "{text:?}");
        }
    }

    #[test]
    fn this_thread_runs_and_another_waits() {
        let own = rustix::thread::gettid().as_raw_nonzero().get().cast_unsigned();
        match CurrentSyscall::of(own) {
            // This thread reads the file.
            Ok(found) => {
                assert!(matches!(found, CurrentSyscall::Running | CurrentSyscall::In(..)), "{found:?}");
            }
            Err(error) => eprintln!("skipped: cap_sys_admin: {error}"),
        }
        assert!(CurrentSyscall::of(u32::MAX).is_err());
    }
}
