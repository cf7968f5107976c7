//! Two histograms of one event, the second of which reads a variable that the first sets. They may be at different hooks
//! of the event, and both must see the same hit.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use tracer_tests::host;
use tracer_tests::mirror::{Mounted, set, text};
use tracer_tests::workload::getpgid;

use crate::chains::{FIRST, append};

/// Makes one histogram of an event that sets a variable and then one that reads it, and checks that both see the same
/// hit: the difference of their values is always 0. `hit` makes a hit with a number as the value of `field`. `sets` are
/// further variables of the first histogram, and `acts` is the action of the second one.
fn reads_what_is_set(
    top: &Path,
    [event, field]: [&str; 2],
    [sets, acts]: [&str; 2],
    hit: impl Fn(i32) -> Result<()>,
) -> Result<()> {
    let only = format!("common_pid == {}", rustix::thread::gettid().as_raw_nonzero());
    let (trigger, x) = (format!("{event}/trigger"), format!("set_{field}"));
    append(top, &trigger, &format!("hist:keys=common_pid:{x}={field}{sets} if {only}"))?;
    append(top, &trigger, &format!("hist:keys=common_pid:d={field}-${x}:onmax($d).{acts} if {only}"))?;
    (0..20).try_for_each(hit)?;
    let counted = text(top, &format!("{event}/hist"))?;
    let entry = counted.split(":d=").nth(1).context(counted.clone())?;
    ensure!(entry.contains("hitcount:         20"), "{counted}");
    let max = entry.lines().find_map(|line| line.split_once("max:")).context(counted.clone())?;
    ensure!(max.1.split_whitespace().next() == Some("0"), "{counted}");
    Ok(())
}

/// A hit of `oom:oom_score_adj_update`, at which the kernel may preempt programs.
fn adjust(number: i32) -> Result<()> {
    std::fs::write("/proc/thread-self/oom_score_adj", number.to_string()).context("oom_score_adj")
}

const CALL: [&str; 2] = ["events/syscalls/sys_enter_getpgid", "pid"];
const ADJUSTED: [&str; 2] = ["events/oom/oom_score_adj_update", "oom_score_adj"];

#[test]
fn a_variable_is_read_after_it_is_set_by_a_histogram_with_stacks() {
    host::as_root(|| {
        let mounted = Mounted::start("stackvariable")?;
        let top = mounted.dir();
        let stacks = [",s=common_stacktrace", "save(common_pid)"];
        // The event makes the shared link, which is older than that of the stacks.
        for [event, _] in [CALL, ADJUSTED] {
            set(top, &format!("{event}/enable"), "1")?;
        }
        reads_what_is_set(top, CALL, stacks, |number| {
            getpgid(FIRST + number);
            Ok(())
        })?;
        reads_what_is_set(top, ADJUSTED, stacks, adjust)?;
        adjust(0)?;
        mounted.stop().map(drop)
    });
}

#[test]
fn a_variable_is_read_after_it_is_set_where_the_reader_makes_events() {
    host::as_root(|| {
        let mounted = Mounted::start("madevariable")?;
        let top = mounted.dir();
        for made in ["chain_first u64 time", "chain_second pid_t pid"] {
            append(top, "synthetic_events", made)?;
        }
        // Their perf tracepoints are in use before the histograms that set the variables. System calls share one.
        for event in [ADJUSTED[0], "events/syscalls/sys_enter_getppid"] {
            let older = "hist:keys=common_pid:v=common_timestamp:onmax($v).trace(chain_first,$v)";
            append(top, &format!("{event}/trigger"), &format!("{older} if common_pid == 0"))?;
        }
        let acts = ["", "trace(chain_second,pid)"];
        reads_what_is_set(top, CALL, acts, |number| {
            getpgid(FIRST + number);
            Ok(())
        })?;
        reads_what_is_set(top, ADJUSTED, acts, adjust)?;
        adjust(0)?;
        mounted.stop().map(drop)
    });
}
