//! Variables, `save()`, `onmax()`, `onchange()` and `snapshot()`: the content of `hist` files after known calls. The
//! tests use a mounted mirror and, where the kernel has histograms, an instance of the kernel during the same calls.

use std::ffi::CString;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Barrier;

use anyhow::{Context, Result, ensure};
use rustix::thread::{gettid, set_name};
use tracer_tests::host::{self, Tracefs};
use tracer_tests::mirror::{self, Mounted, may_lack, text};
use tracer_tests::workload::{getpgid, getpriority, getsid};

/// Arguments that no other process's calls have.
const OWN: i32 = (1 << 30) + (1 << 28);

const GETPGID: &str = "syscalls/sys_enter_getpgid";
const GETSID: &str = "syscalls/sys_enter_getsid";
const GETPRIORITY: &str = "syscalls/sys_enter_getpriority";
const RENAME: &str = "task/task_rename";

/// A call of a test, which hits an event.
#[derive(Clone, Copy)]
enum Call {
    Pgid(i32),
    Sid(i32),
    Priority(i32),
    Rename(&'static str),
}

use Call::{Pgid, Priority, Rename, Sid};

impl Call {
    fn make(self) {
        match self {
            Pgid(n) => getpgid(OWN + n),
            Sid(n) => getsid(OWN + n),
            Priority(n) => getpriority(OWN + n),
            Rename(name) => set_name(&CString::new(name).unwrap()).unwrap(),
        }
    }
}

/// Histograms, calls, and the expected rows of each histogram of the last event. `OWN+n` stands for that number with
/// the kernel's padding, and `TID` for the thread id.
struct Scene {
    hists: &'static [(&'static str, &'static str)],
    calls: &'static [Call],
    shown: &'static str,
}

const SCENES: &[Scene] = &[
    // The maximum, and the fields saved with it.
    Scene {
        hists: &[(GETPGID, "keys=common_pid:m=pid:onmax($m).save(pid,__syscall_nr)")],
        calls: &[Pgid(3), Pgid(1), Pgid(5), Pgid(5), Pgid(2)],
        shown: "{ common_pid: TID } hitcount:          5\n\tmax: OWN+5  pid: OWN+5  __syscall_nr: PGID\n",
    },
    // Every change, with the last change's field.
    Scene {
        hists: &[(GETPGID, "keys=common_pid:m=pid.hex:onchange($m).save(pid):onmax($m).save(pid)")],
        calls: &[],
        shown: "EEXIST",
    },
    Scene {
        hists: &[(GETPRIORITY, "keys=common_pid:m=who/4:onchange($m).save(who)")],
        calls: &[Priority(0), Priority(1), Priority(9), Priority(8), Priority(3), Priority(2)],
        shown: "{ common_pid: TID } hitcount:          6\n\tchanged: QUARTER  who: OWN+3\n",
    },
    // An expression consumes a variable; reading it directly does not.
    Scene {
        hists: &[(GETPGID, "keys=pid:a=pid-1000"), (GETSID, "keys=pid:d=pid-$a:onmax($d).save(pid)")],
        calls: &[Sid(1), Pgid(1), Sid(1), Sid(1), Pgid(2), Pgid(2), Sid(2), Sid(3), Pgid(1), Sid(1)],
        shown: "{ pid: OWN+2 } hitcount:          1\n\tmax:       1000  pid: OWN+2\n\
            { pid: OWN+1 } hitcount:          2\n\tmax:       1000  pid: OWN+1\n",
    },
    Scene {
        hists: &[(GETPGID, "keys=common_pid:a=pid-OWN"), (GETSID, "keys=common_pid:vals=hitcount,$a")],
        calls: &[Sid(1), Pgid(7), Sid(1), Sid(1), Pgid(20), Sid(1)],
        shown: "{ common_pid: TID } hitcount:          3  a:         34\n",
    },
    // An alias of a variable; one expression with variables of three events.
    Scene {
        hists: &[
            (GETPGID, "keys=common_pid:a=pid-OWN"),
            (GETSID, "keys=common_pid:b=$a,c=pid-OWN"),
            (GETPRIORITY, "keys=common_pid:s=$b*$c:onmax($s).save(who)"),
        ],
        calls: &[Priority(1), Pgid(6), Priority(2), Sid(7), Priority(3), Priority(4)],
        shown: "{ common_pid: TID } hitcount:          1\n\tmax:         42  who: OWN+3\n",
    },
    Scene {
        hists: &[
            (GETPGID, "keys=common_pid:a=pid-OWN"),
            (GETSID, "keys=common_pid:x=-($a)+100:y=100/$a:onchange($x).save(pid)"),
        ],
        calls: &[],
        shown: "EINVAL",
    },
    // Divisions; the same variable in two expressions is one reference.
    Scene {
        hists: &[
            (GETPGID, "keys=common_pid:a=pid-OWN"),
            (GETSID, "keys=common_pid:x=1000/$a,y=$a*3:onmax($x).save(pid):onmax($y).save(pid)"),
        ],
        calls: &[],
        shown: "EEXIST",
    },
    Scene {
        hists: &[
            (GETPGID, "keys=common_pid:a=pid-OWN"),
            (GETSID, "keys=common_pid:x=1000/$a:onmax($x).save(pid)"),
        ],
        calls: &[Pgid(8), Sid(1), Pgid(4), Sid(2), Pgid(5), Sid(3)],
        shown: "{ common_pid: TID } hitcount:          3\n\tmax:        250  pid: OWN+2\n",
    },
    // A shorter key matches the beginning of a longer one.
    Scene {
        hists: &[(GETPGID, "keys=pid:a=pid-OWN"), (GETPRIORITY, "keys=who,common_pid:vals=$a")],
        calls: &[Pgid(3), Priority(3), Priority(4), Priority(3)],
        shown: "{ who: OWN+3, common_pid: TID } hitcount:          2  a:          6\n",
    },
    // Texts; one of them was never saved.
    Scene {
        hists: &[(RENAME, "keys=pid:p=pid,o=oldcomm:onchange($p).save(oldcomm,newcomm,oom_score_adj)")],
        calls: &[Rename("tracer-first"), Rename("tracer-second"), Rename("tracer-third")],
        shown: "{ pid: TID } hitcount:          3\n\tchanged: TID  oldcomm: tracer-begin                      \
            newcomm: tracer-first                      oom_score_adj: OOM\n",
    },
    Scene {
        hists: &[(RENAME, "keys=pid:p=pid-pid:onchange($p).save(newcomm,pid)")],
        calls: &[Rename("tracer-first")],
        shown: "{ pid: TID } hitcount:          1\n\tchanged:          0  newcomm: (null)                            \
            pid:          0\n",
    },
    // Two histograms of one event: the second reads the first one's variable.
    Scene {
        hists: &[(GETPGID, "keys=common_pid:a=pid-OWN"), (GETPGID, "keys=common_pid:vals=$a")],
        calls: &[Pgid(1), Pgid(2), Pgid(4)],
        shown: "{ common_pid: TID } hitcount:          3\n{ common_pid: TID } hitcount:          3  a:          7\n",
    },
    // An entry keeps the name of the task that created it.
    Scene {
        hists: &[(RENAME, "keys=common_pid.execname:p=pid:onmax($p).save(pid)")],
        calls: &[Rename("tracer-first"), Rename("tracer-second")],
        shown: "{ common_pid: tracer-begin    [TID] } hitcount:          2\n\tmax: TID  pid: TID\n",
    },
    // Synthetic events from expressions that consume a variable. A histogram also counts the synthetic events.
    Scene {
        hists: &[
            (GETPGID, "keys=common_pid:a=pid-OWN"),
            (GETSID, "keys=common_pid:d=$a*2:onmatch(syscalls.sys_enter_getpgid).histv_num($d,pid)"),
            (NUM, "keys=w:vals=v:sort=w"),
        ],
        calls: &[Sid(4), Pgid(3), Sid(1), Sid(2), Pgid(4), Sid(2), Pgid(7), Pgid(8), Sid(2)],
        shown: "{ w: OWN+1 } hitcount:          1  v:          6\n\
            { w: OWN+2 } hitcount:          2  v:         24\n",
    },
    // A field of the other event, and its variable; only some hits are counted.
    Scene {
        hists: &[
            (GETPGID, "keys=common_pid:a=pid-OWN"),
            (
                GETSID,
                "keys=common_pid:onmatch(syscalls.sys_enter_getpgid).trace(histv_num,$a,syscalls.sys_enter_getpgid.pid)",
            ),
            (NUM, "keys=v,w:sort=v if v > 1 && common_pid == TID"),
        ],
        calls: &[Pgid(1), Sid(5), Pgid(2), Sid(6), Sid(6), Pgid(3), Sid(1)],
        shown: "{ v:          2, w: OWN+2 } hitcount:          2\n{ v:          3, w: OWN+3 } hitcount:          1\n",
    },
    // Texts are passed by address, also under another name.
    Scene {
        hists: &[
            (RENAME, "keys=pid:o=newcomm"),
            (GETPGID, "keys=common_pid:n=$o,c=pid-OWN:onmatch(task.task_rename).histv_text($o,$c)"),
            (TEXT, "keys=c:vals=w:sort=w"),
        ],
        calls: &[Pgid(1), Rename("tracer-first"), Pgid(2), Pgid(3), Rename("tracer-second"), Pgid(9)],
        shown: "{ c: tracer-first                                       } hitcount:          2  w:          5\n\
            { c: tracer-second                                      } hitcount:          1  w:          9\n",
    },
    // New maxima, and changes.
    Scene {
        hists: &[
            (GETPGID, "keys=common_pid:m=pid-OWN:onmax($m).trace(histv_num,$m,pid)"),
            (NUM, "keys=w:vals=v:sort=w"),
        ],
        calls: &[Pgid(3), Pgid(1), Pgid(5), Pgid(5), Pgid(2)],
        shown: "{ w: OWN+3 } hitcount:          1  v:          3\n\
            { w: OWN+5 } hitcount:          1  v:          5\n",
    },
    Scene {
        hists: &[
            (GETPGID, "keys=common_pid:m=pid-OWN:onchange($m).histv_num($m,$m):onmax($m).histv_two($m,pid)"),
            (NUM, "keys=w:vals=v:sort=w"),
            (TWO, "keys=x:sort=x"),
            (NUM, "keys=v.log2:sort=v"),
        ],
        calls: &[Pgid(3), Pgid(1), Pgid(5), Pgid(5), Pgid(1)],
        shown: "{ w:          1 } hitcount:          2  v:          2\n\
            { w:          3 } hitcount:          1  v:          3\n\
            { w:          5 } hitcount:          1  v:          5\n\
            { v: ~ 2^0  } hitcount:          2\n{ v: ~ 2^2  } hitcount:          1\n{ v: ~ 2^3  } hitcount:          1\n",
    },
    // Another event reads the variables of a synthetic event, and its histogram generates a second synthetic event.
    Scene {
        hists: &[
            (GETPGID, "keys=common_pid:a=pid-OWN"),
            (GETSID, "keys=common_pid:d=$a+1:onmatch(syscalls.sys_enter_getpgid).histv_num($d,pid)"),
            (NUM, "keys=w:b=v"),
            (GETPRIORITY, "keys=who:onmatch(synthetic.histv_num).histv_two($b,who)"),
            (TWO, "keys=x,y:sort=x"),
        ],
        calls: &[Pgid(3), Sid(1), Priority(2), Priority(1), Pgid(6), Sid(2), Priority(2)],
        shown: "{ x:          4, y: OWN+1 } hitcount:          1\n{ x:          7, y: OWN+2 } hitcount:          1\n",
    },
    Scene {
        hists: &[
            (GETPGID, "keys=common_pid:m=pid-OWN:onchange($m).histv_num($m,pid)"),
            (NUM, "keys=w:b=v*10:onchange($b).trace(histv_two,$b,$b)"),
            (TWO, "keys=y:vals=x:sort=y"),
        ],
        calls: &[Pgid(3), Pgid(1), Pgid(1), Pgid(3)],
        shown: "{ y:         10 } hitcount:          1  x:         10\n{ y:         30 } hitcount:          1  x:         30\n",
    },
];

/// The synthetic events that scenes generate.
const SYNTHETIC: [&str; 3] =
    ["histv_num u64 v; u64 w", "histv_two u64 x; u64 y", "histv_text char c[16]; u64 w"];
const NUM: &str = "synthetic/histv_num";
const TWO: &str = "synthetic/histv_two";
const TEXT: &str = "synthetic/histv_text";

/// Defines the synthetic events, or deletes them.
fn define(root: &Path, wanted: bool) -> Result<()> {
    for definition in SYNTHETIC {
        let name = definition.split(' ').next().unwrap_or_default();
        let line = if wanted { definition.to_owned() } else { format!("!{name}") };
        mirror::write(root, "synthetic_events", line.as_bytes(), true)
            .map_err(std::io::Error::from_raw_os_error)
            .context(line)?;
    }
    Ok(())
}

/// A filter that excludes other processes' hits.
fn own(event: &str) -> String {
    let tid = gettid().as_raw_nonzero();
    match event {
        NUM | TWO | TEXT => String::new(),
        RENAME => format!(" if pid == {tid}"),
        GETPRIORITY => format!(" if who >= {OWN} && common_pid == {tid}"),
        _ => format!(" if pid >= {OWN} && common_pid == {tid}"),
    }
}

/// Rows with the placeholders replaced by numbers.
fn filled(text: &str) -> String {
    let mut text = text.to_owned();
    for n in (0..10).rev() {
        text = text.replace(&format!("OWN+{n}"), &format!("{:10}", OWN + n));
    }
    let oom = fs::read_to_string("/proc/self/oom_score_adj").unwrap_or_default();
    let oom: i16 = oom.trim().parse().unwrap_or(0);
    text.replace("TID", &format!("{:10}", gettid().as_raw_nonzero()))
        .replace("OWN", &OWN.to_string())
        .replace("QUARTER", &format!("{:10}", OWN / 4))
        .replace("OOM", &format!("{:10}", i64::from(oom).cast_unsigned()))
        .replace("PGID", &format!("{:10}", libc_getpgid()))
}

fn libc_getpgid() -> u32 {
    if cfg!(target_arch = "x86_64") { 121 } else { 155 }
}

/// A directory with `events/`, the mirror's or the kernel's.
struct Side {
    dir: PathBuf,
    set: Vec<(String, String)>,
}

impl Side {
    fn add(&mut self, event: &str, command: &str) -> mirror::Answer {
        let file = format!("events/{event}/trigger");
        mirror::write(&self.dir, &file, format!("hist:{command}").as_bytes(), true)?;
        self.set.push((file, command.to_owned()));
        Ok(())
    }

    /// Removes the last histogram first, so that no removed histogram is referred to.
    fn clear(&mut self) -> Result<()> {
        while let Some((file, command)) = self.set.pop() {
            mirror::write(&self.dir, &file, format!("!hist:{command}").as_bytes(), true)
                .map_err(std::io::Error::from_raw_os_error)
                .with_context(|| format!("removing {command}"))?;
        }
        Ok(())
    }

    /// The rows of an event's histograms.
    fn rows(&self, event: &str) -> Result<String> {
        let text = text(&self.dir, &format!("events/{event}/hist"))?;
        let tables = text.split("# event histogram\n").skip(1);
        let rows = tables.filter_map(|table| table.split_once("#\n\n")?.1.split_once("\nTotals:"));
        Ok(rows.map(|(rows, _)| rows.to_owned()).collect())
    }

    /// The numbers of hits and of drops of an event's only table.
    fn totals(&self, event: &str) -> Result<[i64; 2]> {
        let text = text(&self.dir, &format!("events/{event}/hist"))?;
        let number = |name: &str| {
            let (_, rest) = text.split_once("\nTotals:")?.1.split_once(name)?;
            rest.lines().next()?.trim().parse().ok()
        };
        let totals = number("Hits:").zip(number("Dropped:")).with_context(|| format!("no totals: {text}"))?;
        Ok(totals.into())
    }
}

fn errno(name: &str) -> Option<i32> {
    match name {
        "EEXIST" => Some(17),
        "EINVAL" => Some(22),
        _ => None,
    }
}

/// Plays a scene on one side, or on both during the same calls.
fn play(scene: &Scene, sides: &mut [Side]) -> Result<()> {
    let expected_error = errno(scene.shown);
    for side in sides.iter_mut() {
        let mut answer = Ok(());
        for (event, command) in scene.hists {
            let command = filled(&command.replace("== TID", &format!("== {}", gettid().as_raw_nonzero())))
                + &own(event);
            answer = answer.and_then(|()| side.add(event, &command));
        }
        let log = text(&side.dir, "error_log")?;
        let log: Vec<&str> = log.lines().rev().take(3).collect();
        ensure!(answer.err() == expected_error, "{}: {answer:?} {log:#?}", side.dir.display());
    }
    scene.calls.iter().for_each(|call| call.make());
    let last = scene.hists.last().map_or("", |(event, _)| event);
    let expected = filled(scene.shown);
    for side in sides.iter_mut() {
        if expected_error.is_none() {
            let rows = side.rows(last)?;
            ensure!(rows == expected, "{}\n--- is\n{rows}--- is to be\n{expected}", side.dir.display());
        }
        side.clear()?;
    }
    Ok(())
}

fn run(test: impl FnOnce() -> Result<()>) {
    let _turn = crate::turn();
    host::as_root(test);
}

/// An instance of the kernel's own tracefs, where it has histograms.
struct Kernels(PathBuf, Tracefs);

impl Kernels {
    fn find(name: &str) -> Result<Option<Self>> {
        let tracefs = Tracefs::find_or_mount()?;
        if !tracefs.root().join("events/sched/sched_switch/hist").exists() {
            eprintln!("not compared: this kernel has no histograms (CONFIG_HIST_TRIGGERS)");
            return Ok(None);
        }
        let dir = tracefs.root().join("instances").join(name);
        let _ = fs::remove_dir(&dir);
        fs::create_dir(&dir)?;
        Ok(Some(Self(dir, tracefs)))
    }
}

impl Drop for Kernels {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}

#[test]
fn scenes() {
    run(|| {
        let mounted = Mounted::start("histvars")?;
        let kernels = Kernels::find("tracerhistvars")?;
        let mut sides = vec![Side { dir: mounted.instance("histvars")?, set: Vec::new() }];
        sides.extend(kernels.as_ref().map(|kernels| Side { dir: kernels.0.clone(), set: Vec::new() }));
        let roots = [mounted.dir()].into_iter().chain(kernels.as_ref().map(|kernels| kernels.1.root()));
        roots.clone().try_for_each(|root| define(root, true))?;
        let mut failed = Vec::new();
        for scene in SCENES {
            set_name(c"tracer-begin")?;
            if let Err(error) = play(scene, &mut sides) {
                failed.push(format!("{:?}\n{error:#}", scene.hists));
                for side in &mut sides {
                    let _ = side.clear();
                }
            }
        }
        let cleared = roots.clone().try_for_each(|root| define(root, false));
        ensure!(failed.is_empty(), "{} scenes\n{}", failed.len(), failed.join("\n\n"));
        cleared?;
        println!("{} scenes, {} sides", SCENES.len(), sides.len());
        Ok(())
    });
}

fn remove(dir: &Path, event: &str, command: &str) -> mirror::Answer {
    mirror::write(dir, &format!("events/{event}/trigger"), format!("!hist:{command}").as_bytes(), true)
}

/// A histogram that others refer to cannot be removed.
#[test]
fn a_histogram_with_references_cannot_be_removed() {
    run(|| {
        let mounted = Mounted::start("histrefs")?;
        let mut sides = vec![Side { dir: mounted.instance("histrefs")?, set: Vec::new() }];
        let kernels = Kernels::find("tracerhistrefs")?;
        sides.extend(kernels.as_ref().map(|kernels| Side { dir: kernels.0.clone(), set: Vec::new() }));
        for side in &mut sides {
            let (first, second) = ("keys=common_pid:a=pid", "keys=common_pid:vals=$a");
            let (first, second) = (format!("{first}{}", own(GETPGID)), format!("{second}{}", own(GETSID)));
            ensure!(side.add(GETSID, &second) == Err(22));
            side.add(GETPGID, &first).map_err(std::io::Error::from_raw_os_error)?;
            side.add(GETSID, &second).map_err(std::io::Error::from_raw_os_error)?;
            ensure!(remove(&side.dir, GETPGID, &first) == Err(16), "{:?}", side.dir);
            // Opening the file with `O_TRUNC` does not remove it either.
            fs::File::create(side.dir.join(format!("events/{GETPGID}/trigger")))?;
            ensure!(text(&side.dir, &format!("events/{GETPGID}/trigger"))?.starts_with("hist:"));
            getpgid(OWN);
            getsid(OWN);
            let clear = first.replacen(" if", ":clear if", 1);
            let trigger = format!("events/{GETPGID}/trigger");
            // The variable already exists, so a command that defines variables cannot name the histogram again.
            let answer = mirror::write(&side.dir, &trigger, format!("hist:{clear}").as_bytes(), true);
            ensure!(answer == Err(22), "{}: {answer:?}", side.dir.display());
            let rows = side.rows(GETSID)?;
            let expected = filled("{ common_pid: TID } hitcount:          1  a: OWN+0\n");
            ensure!(rows == expected, "{:?}\n{rows}{expected}", side.dir);
            side.clear()?;
            ensure!(text(&side.dir, &trigger)?.starts_with('#'));
        }
        Ok(())
    });
}

/// An instance has at most one snapshot action, and its histogram reports the snapshot.
#[test]
fn snapshots_are_reported() {
    run(|| {
        let mounted = Mounted::start("histsnap")?;
        let mut sides = vec![Side { dir: mounted.instance("histsnap")?, set: Vec::new() }];
        let kernels = Kernels::find("tracerhistsnap")?;
        let takes = |kernels: &&Kernels| kernels.0.join("snapshot").exists();
        let theirs = kernels.as_ref().filter(takes).map(|kernels| kernels.0.clone());
        sides.extend(theirs.map(|dir| Side { dir, set: Vec::new() }));
        for side in &mut sides {
            let dir = side.dir.clone();
            let command = format!(
                "keys=common_pid.execname:m=pid:onmax($m).snapshot():onmax($m).save(pid){}",
                own(GETPGID)
            );
            side.add(GETPGID, &command).map_err(std::io::Error::from_raw_os_error)?;
            let again = format!("keys=common_pid:m=pid:onchange($m).snapshot(){}", own(GETSID));
            ensure!(side.add(GETSID, &again) == Err(16), "{dir:?}");
            let enable = format!("events/{GETPGID}/enable");
            let shown = |side: &Side| -> Result<String> {
                let text = text(&side.dir, &format!("events/{GETPGID}/hist"))?;
                Ok(text.split_once("#\n\n").context("no table")?.1.to_owned())
            };
            ensure!(!shown(side)?.contains("Snapshot"), "{dir:?}");
            mirror::set(&dir, &format!("events/{GETPGID}/filter"), &format!("pid >= {OWN}"))?;
            mirror::set(&dir, &enable, "1")?;
            set_name(c"tracer-begin")?;
            for n in [3, 1, 5, 2] {
                getpgid(OWN + n);
            }
            mirror::set(&dir, &enable, "0")?;
            let (is, expected) = (
                shown(side)?,
                filled(
                    "{ common_pid: tracer-begin    [TID] } hitcount:          4\n\tmax: OWN+5  pid: OWN+5\n\
                     \nSnapshot taken (see tracing/snapshot).  Details:\n\
                     \ttriggering value { onmax($m) }: OWN+5\ttriggered by event with key: \
                     { common_pid: tracer-begin    [TID] }\n\
                     \nTotals:\n    Hits: 4\n    Entries: 1\n    Dropped: 0\n",
                ),
            );
            ensure!(is == expected, "{dir:?}\n{is}\n{expected}");
            // Whether the snapshot or the trace contains the maximum itself depends on which side handles a hit
            // first. The buffers that a snapshot swaps back keep their content.
            let last = |file: &str| -> Result<Vec<u64>> {
                let digits = |body: &String| body.trim_end_matches(')').chars().last()?.to_digit(16);
                Ok(mirror::bodies(&text(&dir, file)?).iter().filter_map(digits).map(u64::from).collect())
            };
            let (snapshot, trace) = (last("snapshot")?, last("trace")?);
            let right = match snapshot.last() {
                Some(5) => snapshot.ends_with(&[1, 5]) && trace.ends_with(&[2]),
                _ => snapshot.ends_with(&[1]) && trace.ends_with(&[5, 2]),
            };
            ensure!(right, "{} {snapshot:?} {trace:?}", dir.display());
            side.clear()?;
            let rest = text(&dir, &format!("events/{GETPGID}/hist"))?;
            ensure!(rest.is_empty(), "{rest}");
        }
        Ok(())
    });
}

/// Removing an instance removes its histograms, and releases the events that they held.
#[test]
fn a_removed_instance_releases_its_references() {
    run(|| {
        let mounted = Mounted::start("histgone")?;
        let dir = mounted.instance("histgone")?;
        mirror::write(mounted.dir(), "synthetic_events", b"histv_gone u64 v", true)
            .map_err(std::io::Error::from_raw_os_error)?;
        let mut side = Side { dir: dir.clone(), set: Vec::new() };
        let command = format!("keys=common_pid:onmax($m).histv_gone($m):m=pid{}", own(GETPGID));
        side.add(GETPGID, &command).map_err(std::io::Error::from_raw_os_error)?;
        let remove = || mirror::write(mounted.dir(), "synthetic_events", b"!histv_gone", true);
        ensure!(remove() == Err(16), "{:?}", remove());
        fs::remove_dir(&dir)?;
        ensure!(remove() == Ok(()));
        Ok(())
    });
}

/// Number of calls of each thread.
const CALLS: i32 = 200_000;

/// Threads on all CPUs raise one maximum: no maximum is lost, and the saved fields belong to it.
#[test]
fn no_maximum_is_lost() {
    run(|| {
        let mounted = Mounted::start("histmax")?;
        let dir = mounted.instance("histmax")?;
        let mut side = Side { dir, set: Vec::new() };
        let threads = 4;
        let each = CALLS / host::part().cast_signed();
        let from = OWN + 1000;
        side.add(
            GETPGID,
            &format!(
                "keys=common_type:vals=common_type:m=pid:onmax($m).save(pid,common_pid) if pid >= {from}"
            ),
        )
        .map_err(std::io::Error::from_raw_os_error)?;
        let barrier = Barrier::new(threads);
        let one = &|thread: i32| {
            barrier.wait();
            for n in 0..each {
                getpgid(from + n * threads as i32 + thread);
            }
        };
        std::thread::scope(|scope| {
            for thread in 0..threads as i32 {
                scope.spawn(move || one(thread));
            }
        });
        let (max, hits) = (from + each * threads as i32 - 1, threads as i32 * each);
        let rows = side.rows(GETPGID)?;
        let missed = may_lack(&side.dir)?;
        let shown =
            rows.split_once("\tmax: ").and_then(|(_, rest)| rest.split_once(' ')?.0.parse::<i64>().ok());
        let shown = shown.with_context(|| rows.clone())?;
        let least = i64::from(max) - missed.cast_signed() * threads as i64;
        ensure!((least..=i64::from(max)).contains(&shown), "{rows}{max}, {missed} missed");
        // A hit is dropped, and counted as such, while another CPU takes long to make the entry of its key, as if a
        // hypervisor stops that CPU then.
        let [counted, dropped] = side.totals(GETPGID)?;
        ensure!(rows.contains(&format!("hitcount: {counted:10} ")), "{rows}{counted}");
        let lacking = i64::from(hits) - counted - dropped;
        ensure!(
            (0..=missed.cast_signed()).contains(&lacking),
            "{counted} hits and {dropped} drops of {hits}, and {missed} missed"
        );
        // The saved fields belong to the maximum.
        getpgid(max + 1);
        getpgid(max);
        let rows = side.rows(GETPGID)?;
        let (max, own) = (max + 1, gettid().as_raw_nonzero());
        let saved = format!("\tmax: {max:10}  pid: {max:10}  common_pid: {own:10}\n");
        ensure!(rows.ends_with(&saved), "{rows}{saved}");
        side.clear()
    });
}
