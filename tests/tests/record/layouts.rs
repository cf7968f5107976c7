//! `tracer doctor` and `record` where a distribution or container mounts less, or elsewhere. Each layout is made in a
//! mount namespace of its own.

use std::fs::File;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use tracer_tests::host;

/// Keeps standard input, which the shell replaces for background processes, and unmounts all mounts of a type.
const FUNCTIONS: &str = r#"
set -e
exec 3<&0
unmount() {
    while read -r _ _ _ _ at rest; do
        case "$rest" in *" - $1 "*) umount -l "$at" || true;; esac
    done < /proc/self/mountinfo
}
"#;

/// The output of a script in a new mount namespace, with `unshare` and these options. `$0` is the program `tracer`, as
/// a descriptor, because root of a user namespace may not reach its directory.
fn inside(options: &[&str], script: &str) -> Result<String> {
    let output = Command::new("unshare")
        .args(options)
        .args(["--mount", "sh", "-c", &format!("{FUNCTIONS}{script}")])
        .arg("/proc/self/fd/3")
        .stdin(File::open(host::binary("tracer", "TRACER_BIN")?)?)
        .output()
        .context("unshare of util-linux")?;
    let stderr = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{}: {stderr}", output.status);
    Ok(String::from_utf8(output.stdout)?)
}

/// The lines of doctor in a layout.
struct DoctorReport(Vec<Value>);

impl DoctorReport {
    fn inside(options: &[&str], script: &str) -> Result<Self> {
        let text = inside(options, &format!("{script}\n\"$0\" doctor --json"))?;
        Ok(Self(text.lines().map(serde_json::from_str).collect::<Result<_, _>>()?))
    }

    /// A member of a feature's line.
    fn of(&self, name: &str, member: &str) -> Result<&str> {
        let line = self.0.iter().find(|line| line["name"] == name).with_context(|| format!("no {name}"))?;
        Ok(line[member].as_str().unwrap_or_default())
    }

    /// Checks a feature: its answer, a part of its detail, and a part of the advice; without a part there is none.
    fn check(&self, name: &str, expected: [&str; 3]) -> Result<()> {
        for (member, expected) in ["answer", "detail", "advice"].into_iter().zip(expected) {
            let found = self.of(name, member)?;
            let same = if expected.is_empty() { found.is_empty() } else { found.contains(expected) };
            ensure!(same, "{name}: {member} {found:?}, expected {expected:?}");
        }
        Ok(())
    }
}

/// A recording of a command, whose children are traced too.
const RECORD: &str = "\"$0\" record -e sched:sched_process_exit -- true";
/// A recording of one exit of processes with a name of their own, which begin until it has ended.
const RECORD_NAME: &str = r#"
mount -t tmpfs none /mnt
cp /bin/true /mnt/layout-child
"$0" record --comm layout-child -e sched:sched_process_exit -n 1 &
while kill -0 $! 2> /dev/null; do
    /mnt/layout-child
    sleep 0.1
done
wait $!
"#;

#[test]
fn without_types_the_option_of_the_kernel_is_named() {
    host::as_root(|| {
        if !host::offers("btf") {
            host::skip("btf", "this kernel shows no BTF");
            return Ok(());
        }
        let hidden = "mount -t tmpfs none /sys/kernel/btf";
        let report = DoctorReport::inside(&[], hidden)?;
        report.check("btf", ["no", "", "CONFIG_DEBUG_INFO_BTF=y"])?;
        ensure!(report.of("prog_tracing", "why")?.contains("CONFIG_DEBUG_INFO_BTF"), "{:?}", report.0);
        let recorded = inside(&[], &format!("{hidden}\n{RECORD_NAME}"))?;
        ensure!(recorded.contains("sched_process_exit: comm=layout-child"), "{recorded}");
        for command in [RECORD, "\"$0\" record --comm layout-child -p 't sched_switch' -n 1"] {
            let refused = inside(&[], &format!("{hidden}\n{command} 2>&1 || true"))?;
            ensure!(refused.contains("CONFIG_DEBUG_INFO_BTF"), "{command}: {refused}");
        }
        Ok(())
    });
}

#[test]
fn tracefs_is_found_in_debugfs_or_mounted_for_oneself() {
    host::as_root(|| {
        const NOWHERE: &str = "unmount tracefs\nunmount debugfs";
        // Newer kernels can be built without the mount in debugfs.
        let in_debugfs = format!("{NOWHERE}\nmount -t debugfs none /sys/kernel/debug");
        let automounts = inside(&[], &format!("{in_debugfs}\nls /sys/kernel/debug/tracing || true"))?;
        let place =
            if automounts.contains("trace_pipe") { "/sys/kernel/debug/tracing" } else { "not mounted" };
        for (script, detail) in [(in_debugfs.as_str(), place), (NOWHERE, "not mounted")] {
            DoctorReport::inside(&[], script)?.check("tracefs", ["yes", detail, ""])?;
            let recorded = inside(&[], &format!("{script}\n{RECORD}"))?;
            ensure!(recorded.contains("sched_process_exit:"), "{script}: {recorded}");
        }
        Ok(())
    });
}

#[test]
fn what_is_not_mounted_is_named() {
    host::as_root(|| {
        let report = DoctorReport::inside(&[], "mount -t tmpfs none /sys\nmount -t tmpfs none /dev")?;
        report.check("btf", ["no", "", "mount -t sysfs"])?;
        report.check("perf_tracepoint", ["no", "", "mount -t sysfs"])?;
        report.check("fuse", ["no", "", "--device /dev/fuse"])?;
        report.check("tracefs", ["yes", "not mounted", ""])
    });
}

#[test]
fn layouts_of_control_groups_are_named() {
    host::as_root(|| {
        const NONE: &str = "unmount cgroup\nunmount cgroup2\numount -l /sys/fs/cgroup || true";
        let report = DoctorReport::inside(&[], NONE)?;
        report.check("cgroups", ["no", "", "mount -t cgroup2"])?;
        // In a cgroup namespace of its own, a mount leaves the options of the machine's hierarchy as they are.
        let second = format!("{NONE}\nmount -t cgroup2 none /mnt");
        DoctorReport::inside(&["--cgroup"], &second)?.check("cgroups", ["yes", "version 2 at /mnt", ""])?;
        if std::fs::read_to_string("/proc/self/mountinfo")?.contains(" - cgroup ") {
            let report = DoctorReport::inside(&[], "unmount cgroup2")?;
            ensure!(report.of("cgroups", "detail")? == "version 1", "{:?}", report.0);
        }
        Ok(())
    });
}

#[test]
fn lacking_privileges_are_named() {
    host::as_root(|| {
        let report = DoctorReport::inside(&["--user", "--map-root-user"], "")?;
        report.check("initial_userns", ["no", "", "outside of the user namespace"])?;
        report.check("bpf", ["no", "", "outside of the user namespace"])?;
        ensure!(report.of("bpf", "why")?.contains("user namespace"), "{:?}", report.0);
        Ok(())
    });
}
