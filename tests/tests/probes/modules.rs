//! Probes of functions in modules, compared with the kernel's own: types from the module's BTF, symbols with the
//! module's name as prefix, and a module that is loaded later. The virtual machines have modules; the host has none.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use rustix::net::{AddressFamily, SocketType, socket};
use tracer_tests::host::{self, modprobe};
use tracer_tests::probes::{Case, Pair};

/// A module whose functions a program can call without a device, by opening a socket of its family.
const MODULE: &str = "vsock";

fn is_loaded() -> bool {
    std::path::Path::new("/sys/module").join(MODULE).exists()
}

/// Opens sockets of the module: each calls `vsock_create()`, and datagram sockets call `vsock_assign_transport()`.
fn hit() {
    for kind in [SocketType::DGRAM, SocketType::STREAM, SocketType::RAW, SocketType::SEQPACKET] {
        drop(socket(AddressFamily::VSOCK, kind, None));
    }
}

fn unload() -> Result<()> {
    // Programs that are being closed hold a reference to the module for a moment.
    let end = Instant::now() + Duration::from_secs(60);
    while is_loaded() && !modprobe(&["-r", MODULE]) {
        ensure!(Instant::now() < end, "{MODULE} is kept");
        std::thread::sleep(Duration::from_millis(200));
    }
    Ok(())
}

/// Letter, place and arguments, and whether the module's types are needed.
const DEFINITIONS: [(&str, &str, bool); 12] = [
    ("p", "vsock:vsock_create", false),
    ("p", "vsock_create proto=$arg3:s32 $comm", false),
    ("p", "vsock:vsock_create+0 at=$stack0:symbol", false),
    ("r", "vsock:vsock_create ret=$retval:s32", false),
    ("p", "vsock_assign_transport size=vsk->buffer_size port=vsk->local_addr.svm_port", true),
    ("f", "vsock_create", true),
    ("f", "vsock_create type=sock->type protocol kern", true),
    ("f", "vsock_assign_transport size=vsk->buffer_size own=vsk->sk.__sk_common.skc_family", true),
    ("f", "vsock_assign_transport%return size=vsk->buffer_size $retval", true),
    ("f", "vsock_create%return protocol ret=$retval", true),
    ("p", "vsock_assign_transport size=(vsock_sock)vsk->buffer_size", true),
    ("f", "vsock_assign_transport size=(vsock_sock,sk)vsk->buffer_size", true),
];

#[test]
fn functions_of_modules_leave_the_kernels_texts() {
    host::as_root(|| {
        let late = Pair::start("module-late")?;
        if !late.kernel_has("kprobe_events") {
            host::skip("own_kprobe_events", "the kernel has no kprobe_events");
            return Ok(());
        }
        if !tracer_tests::mirror::text(late.kernel(), "README")?.contains("<argname>") {
            host::skip("own_probe_types", "the kernel's probes know no types");
            return Ok(());
        }
        if is_loaded() || !modprobe(&[MODULE]) {
            host::skip(&format!("module-{MODULE}"), format_args!("no module {MODULE} can be loaded"));
            return Ok(());
        }
        unload()?;
        // Reads the pending notifications of the module's loading and unloading. Otherwise the mirror would find the
        // kernel's event there first.
        tracer_tests::mirror::text(late.mirror(), "dynamic_events")?;
        // Defined and enabled before the function exists.
        let line = format!("p:{}/late {MODULE}:vsock_create c=$comm", late.group());
        let answers = late.define(Case { file: "dynamic_events", line: &line });
        ensure!(answers == (Ok(()), Ok(())), "{line}: {answers:?}");
        let (kernel, ours) = late.hits("late", None, true, || {
            assert!(modprobe(&[MODULE]), "{MODULE}");
            // The mirror notices the module at the next access.
            let _ = std::fs::read(late.mirror().join("dynamic_events"));
            hit();
        })?;
        ensure!(kernel == ours && !ours.is_empty(), "{kernel:?}\n{ours:?}");
        let (kernel, ours) = late.listings("dynamic_events")?;
        ensure!(kernel == ours, "{kernel}\n{ours}");
        late.clear()?;
        drop(late);

        let pair = Pair::start("module")?;
        let typed = std::path::Path::new("/sys/kernel/btf").join(MODULE).exists()
            && tracer_tests::mirror::text(pair.kernel(), "README")?.contains("<argname>");
        let mut lines = 0;
        for (number, (letter, rest, by_types)) in DEFINITIONS.iter().enumerate() {
            let event = format!("m{number}");
            let line = format!("{letter}:{}/{event} {rest}", pair.group());
            let answers = pair.define(Case { file: "dynamic_events", line: &line });
            if (*by_types && !typed) || (*letter == "f" && answers == (Err(libc::EINVAL), Ok(()))) {
                // The mirror also accepts definitions that the kernel does not support (on arm64 the kernel has no
                // function events).
                eprintln!("{line}: {answers:?}");
                continue;
            }
            ensure!(answers.0 == answers.1, "{line}: {answers:?}");
            if answers.0.is_err() {
                eprintln!("{line}: {answers:?}");
                continue;
            }
            let (kernel, ours) = pair.formats(&event)?;
            ensure!(kernel == ours, "{line}\n{kernel}\n{ours}");
            let concurrent = *letter != "r" && !rest.contains("%return");
            let (kernel, ours) = pair.hits(&event, None, concurrent, hit)?;
            ensure!(kernel == ours, "{line}\n{}\n---\n{}", kernel.join("\n"), ours.join("\n"));
            ensure!(!kernel.is_empty(), "{line}: no hit");
            println!("{line}\n{}", ours.join("\n"));
            lines += ours.len();
        }
        ensure!(lines >= 10, "{lines} lines");
        drop(pair);
        unload()
    });
}
