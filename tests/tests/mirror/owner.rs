//! Permissions of other users in a mirror, compared with the kernel's tracefs. The tests run commands as another
//! user.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use tracer_tests::host;
use tracer_tests::mirror::{Mounted, set, text};
use tracer_tests::oracle::Oracle;

/// User id of the user nobody.
const USER: &str = "65534";

/// Runs the script `root` in a directory as root and then the script `user` as another user; returns the output.
fn script(dir: &Path, root: &str, user: &str) -> Result<String> {
    // Root has already resolved the directory's path, because the test covers only the files in it.
    let whole =
        format!("{root}\nexec setpriv --reuid={USER} --regid={USER} --clear-groups sh -c \"$1\" 2>&1");
    let output = Command::new("sh")
        .args(["-c", &whole, "sh", user])
        .current_dir(dir)
        .output()
        .context("setpriv of util-linux")?;
    ensure!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8(output.stdout)?)
}

#[test]
fn other_users_have_the_same_permissions_as_in_tracefs() {
    if !host::root_or_skip() {
        return;
    }
    let test = || {
        let mounted = Mounted::start("owner")?;
        let ours = mounted.instance("owner")?;
        let kernel = Oracle::create("owner")?;
        let everything = "echo 0 > tracing_on; echo hello > trace_marker; echo mono > trace_clock; cat tracing_on; \
                          echo > trace; cat trace | head -c 9; echo 1 > buffer_size_kb; echo $?; chmod 666 trace; \
                          echo 1 > events/enable; mkdir x; ls > /dev/null; echo $?";
        for (root, expected) in [
            // The default: root only.
            ("", "Permission denied"),
            ("chmod 755 .; chmod 666 trace_marker tracing_on", "0\n"),
            ("chown 65534 trace_clock; chmod 600 trace_clock; chmod 644 trace", "# tracer:"),
            ("chgrp 65534 buffer_size_kb; chmod 660 buffer_size_kb; chmod 600 trace_marker", "denied"),
            ("chmod 700 .", "denied"),
        ] {
            let [our, their] = [&ours as &Path, kernel.dir()].map(|dir| script(dir, root, everything));
            let (our, their) = (our?, their?);
            ensure!(our == their, "after {root:?}:\n{our}\nthe kernel:\n{their}");
            ensure!(our.contains(expected), "after {root:?}: {our}");
        }
        for (file, value) in [("tracing_on", "0\n"), ("buffer_size_kb", "")] {
            let [our, their] = [&ours as &Path, kernel.dir()].map(|dir| text(dir, file));
            let (our, their) = (our?, their?);
            ensure!(our == their && our.contains(value), "{file}: {our}, the kernel {their}");
        }
        // The top and the directory of instances; `--gid` and `--mode` can admit a group.
        let refused =
            script(mounted.dir(), "", "mkdir instances/x; rmdir instances/owner; echo 1 > events/enable")?;
        ensure!(refused.matches("denied").count() == 3, "{refused}");
        ensure!(text(mounted.dir(), "events/enable")? == "0\n" && ours.exists(), "nothing was done");
        let place = std::env::temp_dir().join(format!("tracer-group-{}", std::process::id()));
        let group = Mounted::with(place, &["--gid", USER, "--mode", "750"])?;
        set(group.dir(), "tracing_on", "0")?;
        let mixed = script(
            group.dir(),
            "",
            "cat tracing_on; echo 1 > tracing_on; mkdir instances/x; ls | grep -c trace_pipe",
        )?;
        ensure!(mixed.starts_with("0\n") && mixed.matches("denied").count() == 2, "{mixed}");
        ensure!(mixed.ends_with("1\n") && text(group.dir(), "tracing_on")? == "0\n", "{mixed}");
        Ok::<_, anyhow::Error>(())
    };
    test().unwrap_or_else(|error| panic!("{error:#}"));
}
