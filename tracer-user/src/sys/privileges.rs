//! What this process may do: capabilities (capabilities(7)), `no_new_privs` and whether others may look into it.
//!
//! Capabilities belong to a thread. A thread gives its own to those it starts, so they are dropped before threads start;
//! [`super::seccomp`] reaches threads that run already.

use rustix::io::Errno;
use rustix::process::{DumpableBehavior, set_dumpable_behavior};
pub use rustix::thread::{CapabilitySet, CapabilitySets, capabilities};
use rustix::thread::{
    capability_is_in_bounding_set, clear_ambient_capability_set, remove_capability_from_bounding_set,
    set_capabilities, set_no_new_privs,
};

/// Leaves the calling thread no capability beside those of `keep`, and none but those to a program that it executes.
///
/// The inheritable and ambient sets are emptied, the bounding set is cut down where this thread may do so (`CAP_SETPCAP`), and
/// `no_new_privs` is set, so that execve(2) gives nothing back either way. Capabilities that it does not hold stay missing.
///
/// # Errors
/// What the kernel says, with everything dropped that could be.
pub fn drop_to(keep: CapabilitySet) -> Result<(), Errno> {
    let held = capabilities(None)?.permitted & keep;
    // Missing before 4.3, and then empty.
    let _ = clear_ambient_capability_set();
    let bounding = cut_bounding_set(keep);
    let sets = CapabilitySets { effective: held, permitted: held, inheritable: CapabilitySet::empty() };
    set_capabilities(None, sets)?;
    set_no_new_privs(true)?;
    // Who lacks CAP_SETPCAP is kept by no_new_privs alone.
    bounding.or_else(|errno| if errno == Errno::PERM { Ok(()) } else { Err(errno) })
}

/// Takes from the bounding set what is not in `keep`.
fn cut_bounding_set(keep: CapabilitySet) -> Result<(), Errno> {
    // The kernel answers EINVAL behind its last capability, which may be one that is not known here.
    let known = (0..u64::BITS).map(|bit| CapabilitySet::from_bits_retain(1 << bit));
    for one in known {
        match capability_is_in_bounding_set(one) {
            Ok(true) if !keep.contains(one) => remove_capability_from_bounding_set(one)?,
            Ok(_) => {}
            Err(_) => break,
        }
    }
    Ok(())
}

/// Keeps processes of the same user from attaching to this one, and its memory from core dumps.
///
/// # Errors
/// What the kernel says.
pub fn hide_memory() -> Result<(), Errno> {
    set_dumpable_behavior(DumpableBehavior::NotDumpable)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Capabilities belong to a thread, so that a test may drop them in one of its own.
    fn in_a_thread<T: Send>(run: impl FnOnce() -> T + Send) -> T {
        std::thread::scope(|scope| scope.spawn(run).join().unwrap())
    }

    #[test]
    fn what_is_not_kept_is_gone_from_all_sets() {
        let before = capabilities(None).unwrap();
        let keep = CapabilitySet::SYSLOG | CapabilitySet::BPF;
        in_a_thread(|| {
            drop_to(keep).unwrap();
            let after = capabilities(None).unwrap();
            assert_eq!(after.permitted, before.permitted & keep);
            assert_eq!(after.effective, after.permitted);
            assert_eq!(after.inheritable, CapabilitySet::empty());
            assert!(rustix::thread::no_new_privs().unwrap());
            if before.effective.contains(CapabilitySet::SETPCAP) {
                assert_eq!(capability_is_in_bounding_set(CapabilitySet::SYS_ADMIN), Ok(false));
                assert_eq!(capability_is_in_bounding_set(CapabilitySet::CHOWN), Ok(false));
            }
            // A second drop takes more, never less.
            drop_to(CapabilitySet::all()).unwrap();
            assert_eq!(capabilities(None).unwrap(), after);
            drop_to(CapabilitySet::empty()).unwrap();
            assert_eq!(capabilities(None).unwrap().permitted, CapabilitySet::empty());
        });
        // Other threads keep theirs.
        assert_eq!(capabilities(None).unwrap(), before);
    }

    #[test]
    fn a_program_that_is_executed_gets_nothing_back() {
        let status = in_a_thread(|| {
            drop_to(CapabilitySet::SYSLOG).unwrap();
            std::fs::read_to_string("/proc/thread-self/status").unwrap();
            let output = std::process::Command::new("cat").arg("/proc/self/status").output().unwrap();
            String::from_utf8(output.stdout).unwrap()
        });
        let set = |key: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(key)).unwrap();
            u64::from_str_radix(line.trim(), 16).unwrap()
        };
        assert_eq!(set("CapPrm:") & !CapabilitySet::SYSLOG.bits(), 0, "{status}");
        assert_eq!(set("NoNewPrivs:"), 1);
    }
}
