//! Probes that join and leave an event while it is enabled.
//!
//! The kernel attaches a kprobe that joins at once, and detaches one that leaves. Of uprobes it does neither until the
//! event is enabled anew, and frees one that is still attached (`append_trace_uprobe()`, `unregister_trace_uprobe()`,
//! kernel/trace/trace_uprobe.c of 6.12). So the scene runs on the kernel's side with kprobes only.

use std::hint::black_box;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use tracer_tests::host;
use tracer_tests::mirror::{self, Mounted, bodies, set, text};
use tracer_tests::probes::{Pair, place};
use tracer_tests::workload;

/// A probed function that only these tests call.
#[inline(never)]
extern "C" fn tracer_test_first(number: i64) -> i64 {
    black_box(number + 3)
}

/// Another one.
#[inline(never)]
extern "C" fn tracer_test_second(number: i64) -> i64 {
    black_box(number + 4)
}

/// The location of a function as the listing shows it, which is how a deletion names it.
fn padded(address: u64) -> Result<String> {
    let place = place(address)?;
    let (path, offset) = place.rsplit_once(":0x").context("an offset")?;
    Ok(format!("{path}:{:#018x}", u64::from_str_radix(offset, 16)?))
}

/// What a scene needs of one side.
struct Side<'a> {
    /// Directory of the definitions.
    root: &'a Path,
    /// Directory of the instance.
    dir: &'a Path,
    /// The file of the definitions.
    file: &'a str,
    group: &'a str,
    /// The locations of two probes.
    places: [&'a str; 2],
    /// Hits both once.
    hit: &'a dyn Fn(),
}

impl Side<'_> {
    fn write(&self, dir: &Path, file: &str, line: &str) -> String {
        let answer = mirror::write(dir, file, format!("{line}\n").as_bytes(), true);
        format!("{}: {answer:?}", line.replace(self.places[0], "FIRST").replace(self.places[1], "SECOND"))
    }

    fn define(&self, line: &str) -> String {
        let line = line.replace("GROUP", self.group);
        self.write(
            self.root,
            self.file,
            &line.replace("FIRST", self.places[0]).replace("SECOND", self.places[1]),
        )
        .replace(self.group, "GROUP")
    }

    fn event(&self, file: &str, value: &str) -> String {
        let file = format!("events/{}/join/{file}", self.group);
        let answer = self.write(self.dir, &file, &value.replace("GROUP", self.group));
        answer.replace(self.group, "GROUP")
    }

    /// The definitions, whether the event is enabled, and how many hits each place has after one of both.
    fn state(&self) -> Result<String> {
        set(self.dir, "trace", "")?;
        let enable = format!("events/{}/join/enable", self.group);
        let before = text(self.dir, &enable)?;
        (self.hit)();
        let lines = bodies(&text(self.dir, "trace")?);
        let of =
            |number: &str| lines.iter().filter(|line| line.contains(&format!(" number={number}"))).count();
        let all = text(self.root, self.file)?;
        let own: Vec<String> = all
            .lines()
            .filter(|line| line.contains(&format!(":{}/", self.group)))
            .map(|line| if line.contains(self.places[0]) { "FIRST" } else { "SECOND" }.to_owned())
            .collect();
        let after = text(self.dir, &enable)?;
        Ok(format!("{own:?} {} -> {}, hits {} and {}", before.trim(), after.trim(), of("1"), of("2")))
    }
}

/// Probes join and leave an enabled event, one with a filter, and one that its own trigger disables.
fn scene(side: &Side<'_>) -> Result<Vec<String>> {
    let (first, second) = ("p:GROUP/join FIRST number=\\1:u8", "p:GROUP/join SECOND number=\\2:u8");
    let mut seen = vec![side.define(first), side.event("enable", "1"), side.state()?];
    // One joins, the other leaves.
    seen.extend([side.define(second), side.state()?, side.define("-:GROUP/join FIRST"), side.state()?]);
    // The last one stays.
    seen.extend([side.define("-:GROUP/join"), side.state()?]);
    // Of two, the older one goes.
    seen.extend([side.define(first), side.state()?, side.define("-:GROUP/join"), side.state()?]);
    // The event has a filter.
    seen.extend([side.event("filter", "number == 2"), side.state()?, side.define(second), side.state()?]);
    seen.extend([side.event("filter", "0"), side.state()?]);
    // The event's own trigger disables it, before and after the first probe leaves.
    seen.extend([side.event("trigger", "disable_event:GROUP:join"), side.state()?, side.state()?]);
    seen.extend([side.define("-:GROUP/join FIRST"), side.state()?]);
    seen.extend([side.event("enable", "1"), side.state()?, side.state()?]);
    seen.extend([side.define(first), side.state()?, side.event("enable", "1"), side.state()?]);
    seen.extend([side.event("trigger", "!disable_event:GROUP:join"), side.state()?]);
    seen.extend([side.event("enable", "1"), side.state()?, side.event("enable", "0")]);
    seen.push(side.define("-:GROUP/join"));
    Ok(seen)
}

#[test]
fn kprobes_join_and_leave_as_in_the_kernel() {
    let run = || -> Result<()> {
        let Some(pair) = Pair::if_available("kjoin", "kprobe_events")? else { return Ok(()) };
        let prefix = if cfg!(target_arch = "aarch64") { "__arm64_sys_" } else { "__x64_sys_" };
        let places = ["getpgid", "getsid"].map(|name| format!("{prefix}{name}"));
        let hit = || {
            workload::getpgid(0);
            workload::getsid(0);
        };
        let run = |root: &Path, dir: &Path| {
            let places = [places[0].as_str(), places[1].as_str()];
            scene(&Side { root, dir, file: "kprobe_events", group: pair.group(), places, hit: &hit })
        };
        let kernel = run(pair.kernel(), pair.kernel_instance())?;
        let ours = run(pair.mirror(), pair.mirror())?;
        ensure!(kernel == ours, "{kernel:#?}\n{ours:#?}");
        Ok(())
    };
    run().unwrap_or_else(|error| panic!("{error:#}"));
}

#[test]
fn uprobes_join_and_leave_at_once_and_keep_their_counts() {
    host::as_root(|| {
        let mounted = Mounted::start("joined")?;
        let dir = mounted.dir();
        set(dir, "set_event_pid", &rustix::thread::gettid().as_raw_nonzero().to_string())?;
        let places = [tracer_test_first as *const () as u64, tracer_test_second as *const () as u64];
        let [first, second] = places.map(padded);
        let places = [&*first?, &*second?];
        let hit = || {
            black_box(tracer_test_first(1));
            black_box(tracer_test_second(2));
        };
        let side = Side { root: dir, dir, file: "uprobe_events", group: "tracer_joined", places, hit: &hit };
        let seen = scene(&side)?;
        println!("{seen:#?}");
        let states: Vec<&str> = seen.iter().filter_map(|line| Some(line.split_once("hits ")?.1)).collect();
        let wanted = [
            "1 and 0", "1 and 1", "0 and 1", "0 and 1", "1 and 1", "1 and 0", "0 and 0", "0 and 1", "1 and 1",
        ];
        ensure!(states.starts_with(&wanted), "{seen:#?}");
        let refused = seen.iter().filter(|line| line.contains("Err(")).count();
        let busy = format!("Err({})", libc::EBUSY);
        ensure!(refused == 2 && seen.iter().filter(|line| line.contains(&busy)).count() == 2, "{seen:#?}");
        // Profiles: a probe that stays keeps its counts while others come and go.
        let define = |line: &str| side.define(line);
        let counts = || -> Result<Vec<String>> {
            let profile = text(dir, "uprobe_profile")?;
            let last = |line: &str| line.split_ascii_whitespace().last().map(str::to_owned);
            Ok(profile.lines().filter_map(last).collect())
        };
        for line in ["p:GROUP/join FIRST", "p:GROUP/join SECOND"] {
            ensure!(define(line).ends_with("Ok(())"), "{line}");
        }
        set(dir, "events/tracer_joined/join/enable", "1")?;
        hit();
        hit();
        ensure!(counts()? == ["2", "2"], "{:?}", counts()?);
        ensure!(define("-:GROUP/join FIRST").ends_with("Ok(())"), "the first");
        hit();
        ensure!(counts()? == ["3"], "{:?}", counts()?);
        ensure!(define("p:GROUP/join FIRST").ends_with("Ok(())"), "the first again");
        hit();
        set(dir, "events/tracer_joined/join/enable", "0")?;
        hit();
        ensure!(counts()? == ["4", "1"], "{:?}", counts()?);
        Ok(())
    });
}
