//! Events of modules in the mirror: they appear when a module is loaded and disappear when it is unloaded. `:mod:` in
//! `set_event` selects them, also in advance. The virtual machines have modules.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use tracer_tests::host::{self, modprobe};
use tracer_tests::mirror::{self, Mounted, set, text};
use tracer_tests::oracle::Oracle;

/// Modules with trace events, which some kernels have; small ones first.
const CANDIDATES: [&str; 5] = ["vmw_vsock_virtio_transport_common", "sunrpc", "xfs", "btrfs", "kvm"];

/// Modules without trace events, which some kernels have.
const WITHOUT: [&str; 4] = ["dummy", "nls_utf8", "crc7", "veth"];

/// A module with events that is not loaded and can be loaded, and its events.
fn find(kernel: &Oracle) -> Result<Option<(&'static str, Vec<String>)>> {
    let loaded = std::fs::read_to_string("/proc/modules").unwrap_or_default();
    for name in CANDIDATES {
        if loaded.lines().any(|line| line.starts_with(&format!("{name} "))) {
            continue;
        }
        let before = kernel.tracefs().events()?;
        if !modprobe(&[name]) {
            continue;
        }
        let mut new = kernel.tracefs().events()?;
        new.retain(|event| !before.contains(event));
        ensure!(modprobe(&["-r", name]), "{name} cannot be unloaded again");
        if !new.is_empty() {
            return Ok(Some((name, new)));
        }
    }
    Ok(None)
}

/// A module without events that can be loaded and unloaded.
fn find_without() -> Option<&'static str> {
    let loaded = std::fs::read_to_string("/proc/modules").unwrap_or_default();
    let usable = |name: &&str| {
        !loaded.lines().any(|line| line.starts_with(&format!("{name} ")))
            && modprobe(&[name])
            && modprobe(&["-r", name])
    };
    WITHOUT.into_iter().find(usable)
}

fn events(dir: &Path) -> Result<Vec<String>> {
    Ok(text(dir, "available_events")?.lines().map(str::to_owned).collect())
}

#[test]
fn events_come_and_go_with_their_module() {
    if !host::root_or_skip() {
        return;
    }
    let test = || {
        let kernel = Oracle::create("modules")?;
        let Some((module, new)) = find(&kernel)? else {
            let modules = CANDIDATES.map(|name| format!("module-{name}")).join("+");
            host::skip(&modules, "no module with events can be loaded here");
            return Ok(());
        };
        println!("{module}: {new:?}");
        let mounted = Mounted::start("modules")?;
        let dir = mounted.instance("modules")?;
        let kernels = || kernel.tracefs().events();
        ensure!(events(mounted.dir())? == kernels()?, "not the kernel's at first");
        // Selected in advance.
        let word = format!(":mod:{module}");
        set(&dir, "set_event", &word)?;
        ensure!(text(&dir, "set_event")? == format!("*:*:mod:{module}\n"));
        ensure!(mirror::write(&dir, "set_event", b"!:mod:no_such_module", true) == Err(libc::EINVAL));
        // Loading a module without events does not affect the words that wait for it.
        let without = find_without();
        if let Some(without) = without {
            let word = format!(":mod:{without}");
            mirror::write(&dir, "set_event", word.as_bytes(), true)
                .map_err(std::io::Error::from_raw_os_error)?;
            ensure!(modprobe(&[without]) && modprobe(&["-r", without]), "{without} cannot be loaded");
        } else {
            eprintln!("not tried: no module without events can be loaded here");
        }
        ensure!(modprobe(&[module]), "{module} cannot be loaded");
        ensure!(events(mounted.dir())? == kernels()?, "not the kernel's with the module");
        let (system, name) = new[0].split_once(':').context("system:name")?;
        let format = format!("events/{system}/{name}/format");
        ensure!(text(&dir, &format)? == std::fs::read_to_string(kernel.tracefs().root().join(&format))?);
        // Only the events of the module are enabled, and all of them.
        let end = Instant::now() + Duration::from_secs(20);
        let mut on = Vec::new();
        let mut expected = new.clone();
        expected.extend(without.map(|without| format!("*:*:mod:{without}")));
        expected.sort();
        while Instant::now() < end && on != expected {
            on = text(&dir, "set_event")?.lines().map(str::to_owned).collect();
            on.sort();
            std::thread::sleep(Duration::from_millis(50));
        }
        ensure!(on == expected, "on: {on:?}");
        if let Some(without) = without {
            let word = format!("!:mod:{without}");
            mirror::write(&dir, "set_event", word.as_bytes(), true)
                .map_err(std::io::Error::from_raw_os_error)?;
            ensure!(text(&dir, "set_event")?.lines().count() == new.len(), "{word}");
        }
        set(&dir, "set_event", "")?;
        mirror::write(&dir, "set_event", word.as_bytes(), true).map_err(std::io::Error::from_raw_os_error)?;
        ensure!(text(&dir, "set_event")?.lines().count() == new.len(), "one by one");
        mirror::write(&dir, "set_event", format!("!{word}").as_bytes(), true)
            .map_err(std::io::Error::from_raw_os_error)?;
        ensure!(text(&dir, "set_event")?.is_empty());
        ensure!(
            mirror::write(&dir, "set_event", format!("nonsense:mod:{module}").as_bytes(), true)
                == Err(libc::EINVAL)
        );
        // A perf tracepoint holds a reference to its module until its descriptor is closed.
        let end = Instant::now() + Duration::from_secs(60);
        while !modprobe(&["-r", module]) {
            ensure!(Instant::now() < end, "{module} is kept");
            std::thread::sleep(Duration::from_millis(200));
        }
        ensure!(events(mounted.dir())? == kernels()?, "not the kernel's without the module");
        ensure!(!dir.join(&format).exists(), "{format} is left");
        Ok::<_, anyhow::Error>(())
    };
    test().unwrap_or_else(|error| panic!("{error:#}"));
}
