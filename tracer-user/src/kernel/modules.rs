//! Loaded modules and their trace events.
//!
//! No file of tracefs states which module an event belongs to. But every tracepoint has a function of its own,
//! `__traceiter_NAME`, and `/proc/kallsyms` lists its module (with or without addresses).

use std::{
    collections::HashSet,
    fs::read_to_string,
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use rustix::net::{
    AddressFamily, RecvFlags, SocketFlags, SocketType, bind,
    netlink::{KOBJECT_UEVENT, SocketAddrNetlink},
    recv, socket_with,
};

/// Prefix of the function that calls a tracepoint's probes, followed by the tracepoint's name.
const CALLS: &str = "__traceiter_";

/// Whether the kernel can load modules at all.
pub fn supported() -> bool {
    std::fs::exists("/proc/modules").unwrap_or(false)
}

/// Whether a module is loaded and live: a module that is still loading may not have its events yet. In names `-` and
/// `_` are equivalent.
pub fn is_loaded(module: &str) -> bool {
    is_live(&read_to_string("/proc/modules").unwrap_or_default(), &plain(module))
}

/// The fields of a line are name, size, use count, users, state and address.
fn is_live(modules: &str, module: &str) -> bool {
    modules.lines().any(|line| {
        let mut words = line.split(' ');
        words.next() == Some(module) && words.nth(3) == Some("Live")
    })
}

/// The name in the kernel's spelling: `_` replaces `-`.
pub fn plain(module: &str) -> String {
    module.replace('-', "_")
}

/// The names of a module's tracepoints, which are also the names of their events.
///
/// # Errors
/// If `/proc/kallsyms` cannot be read.
pub fn tracepoints(module: &str) -> io::Result<HashSet<String>> {
    Ok(parse(&read_to_string("/proc/kallsyms")?, &plain(module)))
}

/// The multicast group of uevents that the kernel itself sends (`UEVENT_KERNEL` of libudev).
const KERNEL_GROUP: u32 = 1;

/// Notifications about modules: the kernel sends a uevent when a module is loaded and when it is removed
/// (lib/kobject_uevent.c).
#[derive(Debug)]
pub struct Changes {
    socket: OwnedFd,
}

impl Changes {
    /// Starts to listen; None without module support, or if this process may not listen.
    pub fn watch() -> Option<Self> {
        if !supported() {
            return None;
        }
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket =
            socket_with(AddressFamily::NETLINK, SocketType::DGRAM, flags, Some(KOBJECT_UEVENT)).ok()?;
        bind(&socket, &SocketAddrNetlink::new(0, KERNEL_GROUP)).ok()?;
        Some(Self { socket })
    }

    /// Whether modules were loaded or removed since the last call.
    pub fn pending(&self) -> bool {
        let (mut text, mut changed) = ([0; 8192], false);
        loop {
            match recv(&self.socket, &mut text, RecvFlags::empty()) {
                // `add@/module/NAME`, a NUL, and further properties.
                Ok((length, _)) => {
                    let text = text.get(..length).unwrap_or_default();
                    let head = text.split(|byte| *byte == 0).next().unwrap_or_default();
                    changed |= head
                        .split(|byte| *byte == b'@')
                        .nth(1)
                        .is_some_and(|path| path.starts_with(b"/module/"));
                }
                // Some messages were lost.
                Err(rustix::io::Errno::NOBUFS) => changed = true,
                Err(rustix::io::Errno::INTR) => {}
                Err(_) => return changed,
            }
        }
    }
}

impl AsFd for Changes {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

fn parse(kallsyms: &str, module: &str) -> HashSet<String> {
    let owner = format!("[{module}]");
    let names = kallsyms.lines().filter_map(|line| {
        let (symbol, behind) = line.split_once('\t')?;
        (behind.trim_end() == owner).then_some(symbol.rsplit(' ').next()?.strip_prefix(CALLS)?)
    });
    names.map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tracepoints_are_found_by_their_functions() {
        let text = "0 T __traceiter_sched_switch\n0 t __traceiter_foo_bar\t[my_mod]\n0 t other\t[my_mod]\n\
            0 t __traceiter_x\t[my_mod2]\n";
        assert_eq!(parse(text, "my_mod"), HashSet::from(["foo_bar".to_owned()]));
        assert_eq!(plain("my-mod"), "my_mod");
        let modules = "a 61440 0 - Live 0xffffffffc043d000\nb 65536 1 a, Loading 0x0\n";
        assert!(is_live(modules, "a") && !is_live(modules, "b") && !is_live(modules, "c"));
        assert!(parse(text, "none").is_empty());
    }
}
