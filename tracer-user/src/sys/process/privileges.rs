//! Privileges of this process: capabilities (capabilities(7)), `no_new_privs` and the dumpable attribute.
//!
//! Capabilities belong to a thread, and new threads inherit them. They are therefore dropped before threads start;
//! [`super::seccomp`] also reaches threads that already run.

use rustix::io::Errno;
use rustix::process::{DumpableBehavior, set_dumpable_behavior};
pub use rustix::thread::{CapabilitySet, CapabilitySets, capabilities};
use rustix::thread::{
    capability_is_in_bounding_set, clear_ambient_capability_set, remove_capability_from_bounding_set,
    set_capabilities, set_no_new_privs,
};

/// Drops all capabilities of the calling thread except those in `keep`, also for programs that it executes.
///
/// Empties the inheritable and ambient sets, reduces the bounding set if this thread may do so (`CAP_SETPCAP`), and
/// sets `no_new_privs`, so that execve(2) restores nothing. A capability in `keep` that the thread lacks stays
/// missing.
///
/// # Errors
/// The kernel's error. An error of the bounding set is returned only after everything else was dropped.
pub fn drop_to(keep: CapabilitySet) -> Result<(), Errno> {
    let held = capabilities(None)?.permitted & keep;
    // Kernels before 4.3 have no ambient set.
    let _ = clear_ambient_capability_set();
    let bounding = cut_bounding_set(keep);
    let sets = CapabilitySets { effective: held, permitted: held, inheritable: CapabilitySet::empty() };
    set_capabilities(None, sets)?;
    set_no_new_privs(true)?;
    // Without `CAP_SETPCAP`, `no_new_privs` alone prevents regaining capabilities.
    bounding.or_else(|errno| if errno == Errno::PERM { Ok(()) } else { Err(errno) })
}

/// Removes all capabilities outside `keep` from the bounding set.
fn cut_bounding_set(keep: CapabilitySet) -> Result<(), Errno> {
    // The kernel answers `EINVAL` past its last capability, which may be newer than the constants known here.
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

/// Prevents processes of the same user from attaching to this one, and keeps its memory out of core dumps.
pub(crate) fn hide_memory() -> Result<(), Errno> {
    set_dumpable_behavior(DumpableBehavior::NotDumpable)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs a test in its own thread, because dropping capabilities affects the calling thread only.
    fn in_a_thread<T: Send>(run: impl FnOnce() -> T + Send) -> T {
        std::thread::scope(|scope| scope.spawn(run).join().unwrap())
    }

    #[test]
    fn dropped_capabilities_are_gone_from_all_sets() {
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
            // A second drop removes more and restores nothing.
            drop_to(CapabilitySet::all()).unwrap();
            assert_eq!(capabilities(None).unwrap(), after);
            drop_to(CapabilitySet::empty()).unwrap();
            assert_eq!(capabilities(None).unwrap().permitted, CapabilitySet::empty());
        });
        // Other threads keep their capabilities.
        assert_eq!(capabilities(None).unwrap(), before);
    }

    #[test]
    fn an_executed_program_regains_no_capabilities() {
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
