//! Checks the unit file: systemd accepts and rates it, and it keeps the mount visible to the host.

use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, bail, ensure};

use crate::host;

/// Path relative to the root.
const UNIT: &str = "packaging/systemd/tracer.service";
/// The highest permitted exposure level in tenths (`systemd-analyze security`; 100 is the worst).
const MOST_EXPOSED: u32 = 40;
/// Settings that create a separate mount namespace for a service. The host does not see the mounts of that namespace.
const OWN_MOUNTS: [&str; 22] = [
    "BindPaths",
    "BindReadOnlyPaths",
    "ExecPaths",
    "InaccessiblePaths",
    "MountImages",
    "NoExecPaths",
    "PrivateDevices",
    "PrivateIPC",
    "PrivateTmp",
    "PrivateUsers",
    "ProcSubset",
    "ProtectControlGroups",
    "ProtectHome",
    "ProtectKernelLogs",
    "ProtectKernelModules",
    "ProtectKernelTunables",
    "ProtectProc",
    "ProtectSystem",
    "ReadOnlyPaths",
    "ReadWritePaths",
    "RootDirectory",
    "TemporaryFileSystem",
];

/// Runs all checks of the unit file.
pub(super) fn check(root: &Path) -> Result<()> {
    let path = root.join(UNIT);
    let text = std::fs::read_to_string(&path).with_context(|| UNIT.to_owned())?;
    if let Some(setting) = makes_mounts(&text) {
        bail!("{UNIT}: {setting} would hide the mirror from the host");
    }
    verify(&path, &text)?;
    let output = host::output(
        Command::new("systemd-analyze").args(["security", "--offline=true", "--no-pager"]).arg(&path),
    )?;
    let exposed = exposure(&output).with_context(|| format!("no rating in {output}"))?;
    eprintln!("{UNIT} is rated {}.{}", exposed / 10, exposed % 10);
    let most = MOST_EXPOSED;
    ensure!(exposed <= most, "{UNIT} is rated {exposed}, more than {most} tenths:\n{output}");
    Ok(())
}

/// The first setting that creates a mount namespace, if any.
fn makes_mounts(text: &str) -> Option<&str> {
    let settings = text.lines().filter_map(|line| line.split_once('='));
    settings.map(|(name, _)| name).find(|name| OWN_MOUNTS.contains(name))
}

/// Verifies the file with systemd. `tracer` may not be installed on this machine, so the check substitutes `true`.
fn verify(path: &Path, text: &str) -> Result<()> {
    let dir = std::env::temp_dir().join(format!("tracer-unit-{}", std::process::id()));
    std::fs::create_dir_all(&dir)?;
    let copy = dir.join(path.file_name().context("a file")?);
    let stand_in = host::which("true").context("no program `true`")?;
    std::fs::write(&copy, text.replace("=tracer ", &format!("={} ", stand_in.display())))?;
    let output = Command::new("systemd-analyze").args(["verify", "--man=no"]).arg(&copy).output();
    std::fs::remove_dir_all(&dir)?;
    let output = output.context("systemd-analyze verify")?;
    let said = String::from_utf8_lossy(&output.stderr);
    // systemd also reports errors of other units of this machine.
    let ours: Vec<&str> = said.lines().filter(|line| line.contains("tracer.service")).collect();
    ensure!(ours.is_empty(), "{UNIT}: {}", ours.join("\n"));
    Ok(())
}

/// The rating in tenths: `Overall exposure level for tracer.service: 3.9 OK`.
fn exposure(output: &str) -> Option<u32> {
    let (_, rest) = output.split_once("Overall exposure level for ")?;
    let (whole, tenths) = rest.split_once(": ")?.1.split_whitespace().next()?.split_once('.')?;
    Some(whole.parse::<u32>().ok()? * 10 + tenths.parse::<u32>().ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rating_is_read() {
        assert_eq!(exposure("x\n\n→ Overall exposure level for tracer.service: 3.9 OK 🙂\n"), Some(39));
        assert_eq!(exposure("→ Overall exposure level for a.service: 10.0 DANGEROUS"), Some(100));
        assert_eq!(exposure("nothing"), None);
    }

    #[test]
    fn settings_that_hide_the_mount_are_found() {
        assert_eq!(makes_mounts("[Service]\nType=notify\nProtectSystem=strict\n"), Some("ProtectSystem"));
        assert_eq!(makes_mounts("[Service]\nPrivateMounts=no\n# ProtectHome=yes\n"), None);
        let unit = std::fs::read_to_string(host::root().join(UNIT)).unwrap();
        assert_eq!(makes_mounts(&unit), None);
    }
}
