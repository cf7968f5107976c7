//! Histograms of a mounted mirror: counts that are known in advance, pauses, names, and what is refused.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use tracer_tests::host;
use tracer_tests::mirror::{self, Mounted, text};
use tracer_tests::workload::{getpgid, getsid};

/// Events that happen when a test wants them to: directories of their files.
const GETPGID: &str = "events/syscalls/sys_enter_getpgid";
const GETSID: &str = "events/syscalls/sys_enter_getsid";

/// Arguments that nobody else's calls have, and not the other test's.
const OWN: i32 = 1 << 30;
const SHARED: i32 = 1 << 29;

/// Writes a line as `>>` does: `>` would take the histograms that are there away.
fn add(dir: &Path, file: &str, line: &str) -> Result<()> {
    let done = mirror::write(dir, file, line.as_bytes(), true).map_err(std::io::Error::from_raw_os_error);
    done.with_context(|| format!("{line:?} to {file}"))
}

#[test]
fn hits_are_counted_paused_and_forgotten() {
    host::as_root(|| {
        let mounted = Mounted::start("hist")?;
        let dir = mounted.instance("hist")?;
        let (trigger, hist) = (format!("{GETPGID}/trigger"), format!("{GETPGID}/hist"));
        ensure!(text(&dir, &hist)?.is_empty());
        let command = format!("hist:keys=pid:sort=pid.descending:size=200 if pid >= {OWN}");
        add(&dir, &trigger, &command)?;
        let line =
            format!("hist:keys=pid:vals=hitcount:sort=pid.descending:size=256 if pid >= {OWN} [active]\n");
        ensure!(text(&dir, &trigger)? == line, "{}", text(&dir, &trigger)?);
        ensure!(text(&dir, &format!("{GETPGID}/enable"))? == "0*\n");
        (0..30).for_each(|n| getpgid(OWN + n % 3));
        let table = |counts: &[(i32, u64)], state: &str| {
            let rows =
                counts.iter().map(|(n, count)| format!("{{ pid: {:10} }} hitcount: {count:10}\n", OWN + n));
            let hits: u64 = counts.iter().map(|(_, count)| count).sum();
            format!(
                "# event histogram\n#\n# trigger info: {}#\n\n{}\nTotals:\n    Hits: {hits}\n    Entries: {}\n    Dropped: 0\n",
                line.replace("active", state),
                rows.collect::<String>(),
                counts.len()
            )
        };
        let counted = table(&[(2, 10), (1, 10), (0, 10)], "active");
        ensure!(text(&dir, &hist)? == counted, "{}", text(&dir, &hist)?);
        add(&dir, &trigger, &command.replace(" if", ":pause if"))?;
        getpgid(OWN);
        ensure!(text(&dir, &hist)? == table(&[(2, 10), (1, 10), (0, 10)], "paused"));
        add(&dir, &trigger, &command.replace(" if", ":cont if"))?;
        getpgid(OWN);
        ensure!(text(&dir, &hist)? == table(&[(2, 10), (1, 10), (0, 11)], "active"));
        add(&dir, &trigger, &command.replace(" if", ":clear if"))?;
        getpgid(OWN + 7);
        ensure!(text(&dir, &hist)? == table(&[(7, 1)], "active"), "{}", text(&dir, &hist)?);
        add(&dir, &trigger, &format!("!{command}"))?;
        ensure!(text(&dir, &hist)?.is_empty() && text(&dir, &trigger)?.starts_with('#'));
        ensure!(text(&dir, &format!("{GETPGID}/enable"))? == "0\n");
        Ok(())
    });
}

#[test]
fn a_name_shares_a_table() {
    host::as_root(|| {
        let mounted = Mounted::start("histname")?;
        let dir = mounted.instance("histname")?;
        let command = format!("hist:name=own:keys=pid if pid == {SHARED}");
        for event in [GETPGID, GETSID] {
            add(&dir, &format!("{event}/trigger"), &command)?;
        }
        for _ in 0..5 {
            getpgid(SHARED);
            getsid(SHARED);
        }
        let row = format!("{{ pid: {SHARED:10} }} hitcount:         10\n");
        for event in [GETPGID, GETSID] {
            let shown = text(&dir, &format!("{event}/hist"))?;
            ensure!(shown.contains(&row), "{shown}");
        }
        add(&dir, &format!("{GETPGID}/trigger"), &format!("!{command}"))?;
        getpgid(SHARED);
        getsid(SHARED);
        let shown = text(&dir, &format!("{GETSID}/hist"))?;
        ensure!(shown.contains(&row.replace("10\n", "11\n")), "{shown}");
        Ok(())
    });
}

#[test]
fn what_is_wrong_is_logged() {
    host::as_root(|| {
        let mounted = Mounted::start("histlog")?;
        let dir = mounted.instance("histlog")?;
        let trigger = format!("{GETPGID}/trigger");
        ensure!(add(&dir, &trigger, "hist:keys=nope").is_err());
        let log = text(&dir, "error_log")?;
        ensure!(
            log.ends_with(
                "] hist:syscalls:sys_enter_getpgid: error: Couldn't find field\n  Command: hist:keys=nope\n                     ^\n"
            ),
            "{log}"
        );
        // A variable that nobody refers to is only named.
        add(&dir, &trigger, "hist:keys=pid:x=pid")?;
        add(&dir, &trigger, "traceoff:0")?;
        let both = text(&dir, &trigger)?;
        ensure!(both.starts_with("traceoff:count=0\nhist:keys=pid:"), "{both}");
        // Opening the file from the start takes histograms away and nothing else.
        std::fs::File::create(dir.join(&trigger))?;
        ensure!(text(&dir, &trigger)? == "traceoff:count=0\n");
        Ok(())
    });
}
