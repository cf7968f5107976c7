//! Histograms of a mounted mirror: known counts, pauses, names, and refused commands.

use std::io::{Read, Seek};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rustix::event::{PollFd, PollFlags, Timespec};
use tracer_tests::host;
use tracer_tests::mirror::{self, Mounted, text};
use tracer_tests::triggers::{GETPGID, GETSID};
use tracer_tests::user_events::{Data, Word};
use tracer_tests::workload::{getpgid, getsid};

/// Arguments that other processes and the other test do not use.
const OWN: i32 = 1 << 30;
const SHARED: i32 = 1 << 29;

/// Writes a line as `>>` does: `>` would remove the existing histograms.
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
fn invalid_commands_are_logged() {
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
        // A variable without references appears only by its name.
        add(&dir, &trigger, "hist:keys=pid:x=pid")?;
        add(&dir, &trigger, "traceoff:0")?;
        let both = text(&dir, &trigger)?;
        ensure!(both.starts_with("traceoff:count=0\nhist:keys=pid:"), "{both}");
        // Opening the file with `O_TRUNC` removes only histograms.
        std::fs::File::create(dir.join(&trigger))?;
        ensure!(text(&dir, &trigger)? == "traceoff:count=0\n");
        Ok(())
    });
}

/// Values of each test's own calls.
const PAUSED: i32 = 1 << 28;
const LISTED: i32 = 1 << 27;
const POLLED: i32 = 1 << 26;
const NAMED: i32 = 1 << 25;

/// The number of hits in an event's `hist` file.
fn hits(dir: &Path, event: &str) -> Result<u64> {
    let shown = text(dir, &format!("{event}/hist"))?;
    let line = shown.lines().find_map(|line| line.trim().strip_prefix("Hits: ").map(str::to_owned));
    Ok(line.with_context(|| format!("{event}: {shown:?}"))?.parse()?)
}

#[test]
fn triggers_of_other_events_enable_histograms() {
    host::as_root(|| {
        let mounted = Mounted::start("histswitch")?;
        let dir = mounted.instance("histswitch")?;
        let [trigger, other] = [GETPGID, GETSID].map(|event| format!("{event}/trigger"));
        for keys in ["pid", "common_pid"] {
            add(&dir, &trigger, &format!("hist:keys={keys}:pause if pid == {PAUSED}"))?;
        }
        add(&dir, &other, &format!("enable_hist:syscalls:sys_enter_getpgid:2 if pid == {PAUSED}"))?;
        let paused = |dir: &Path| Ok::<_, anyhow::Error>(text(dir, &trigger)?.matches("[paused]").count());
        getpgid(PAUSED);
        ensure!(paused(&dir)? == 2 && hits(&dir, GETPGID)? == 0);
        getsid(PAUSED);
        ensure!(paused(&dir)? == 0, "{}", text(&dir, &trigger)?);
        getpgid(PAUSED);
        ensure!(hits(&dir, GETPGID)? == 1);
        ensure!(
            text(&dir, &other)?
                == format!("enable_hist:syscalls:sys_enter_getpgid:count=1 if pid == {PAUSED}\n")
        );
        // For one target an event has either `enable_hist` or `disable_hist`, and both names remove it.
        let disable = "disable_hist:syscalls:sys_enter_getpgid";
        ensure!(mirror::write(&dir, &other, disable.as_bytes(), true) == Err(libc::EEXIST));
        add(&dir, &other, &format!("!{disable}"))?;
        add(&dir, &other, &format!("{disable} if pid == {PAUSED}"))?;
        ensure!(text(&dir, &format!("{GETPGID}/enable"))? == "0*\n");
        getsid(PAUSED);
        getpgid(PAUSED);
        ensure!(paused(&dir)? == 2 && hits(&dir, GETPGID)? == 1);
        // A histogram that is added later counts until the next hit.
        add(&dir, &trigger, &format!("hist:keys=pid:vals=pid if pid == {PAUSED}"))?;
        ensure!(paused(&dir)? == 2);
        getsid(PAUSED);
        ensure!(paused(&dir)? == 3, "{}", text(&dir, &trigger)?);
        add(&dir, &trigger, &format!("hist:keys=pid:cont if pid == {PAUSED}"))?;
        getpgid(PAUSED);
        ensure!(paused(&dir)? == 2 && hits(&dir, GETPGID)? == 2, "{}", text(&dir, &trigger)?);
        // The trigger may name an event without histograms, which enters soft mode for it.
        add(&dir, &trigger, "enable_hist:syscalls:sys_enter_getsid:0")?;
        ensure!(text(&dir, &format!("{GETSID}/enable"))? == "0*\n");
        ensure!(text(&dir, &trigger)?.starts_with("enable_hist:syscalls:sys_enter_getsid:count=0\nhist:"));
        for (line, errno) in [
            ("enable_hist", libc::EINVAL),
            ("enable_hist:syscalls:none", libc::EINVAL),
            ("enable_hist:ftrace:print", libc::EINVAL),
            ("disable_hist:syscalls:sys_enter_getpgid:x", libc::EINVAL),
        ] {
            ensure!(mirror::write(&dir, &trigger, line.as_bytes(), true) == Err(errno), "{line}");
        }
        Ok(())
    });
}

#[test]
fn histograms_respect_lists_of_threads() {
    host::as_root(|| {
        let mounted = Mounted::start("histlist")?;
        let dir = mounted.instance("histlist")?;
        add(&dir, &format!("{GETPGID}/trigger"), &format!("hist:keys=common_pid if pid == {LISTED}"))?;
        let own = rustix::thread::gettid().as_raw_nonzero().to_string();
        for (file, value, expected) in [
            ("set_event_pid", "1", 0),
            ("set_event_pid", own.as_str(), 1),
            ("set_event_notrace_pid", own.as_str(), 1),
            ("set_event_notrace_pid", "", 2),
            ("set_event_pid", "", 3),
        ] {
            mirror::set(&dir, file, value)?;
            getpgid(LISTED);
            std::thread::spawn(|| getpgid(LISTED)).join().expect("a thread");
            let others = u64::from(file == "set_event_pid" && value.is_empty());
            ensure!(hits(&dir, GETPGID)? == expected + others, "{file} {value:?}: {}", hits(&dir, GETPGID)?);
        }
        Ok(())
    });
}

/// Whether a thread of this process sleeps.
fn is_asleep(thread: impl std::fmt::Display) -> Result<bool> {
    let stat = std::fs::read_to_string(format!("/proc/self/task/{thread}/stat"))?;
    // The name in parentheses may contain any character.
    Ok(stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('S')))
}

#[test]
fn a_hit_counts_for_the_woken_thread_too() {
    host::as_root(|| {
        let mounted = Mounted::start("histwoken")?;
        let dir = mounted.instance("histwoken")?;
        let (woken, wake) = rustix::pipe::pipe()?;
        let (sender, receiver) = std::sync::mpsc::channel();
        let sleeper = std::thread::spawn(move || {
            sender.send(rustix::thread::gettid().as_raw_nonzero()).expect("the test waits for it");
            while rustix::io::read(&woken, &mut [0; 1]) == Ok(1) {}
        });
        let task = receiver.recv()?;
        let waking = "events/sched/sched_waking";
        add(&dir, &format!("{waking}/trigger"), &format!("hist:keys=comm,pid if pid == {task}"))?;
        // A thread that waits for a byte is woken once by it.
        let wake_five_times = || -> Result<u64> {
            for _ in 0..5 {
                let end = Instant::now() + host::patience(Duration::from_secs(10));
                while !is_asleep(task)? {
                    ensure!(Instant::now() < end, "the thread does not wait");
                    std::thread::sleep(Duration::from_millis(1));
                }
                rustix::io::write(&wake, b"x")?;
            }
            hits(&dir, waking)
        };
        mirror::set(&dir, "set_event_pid", "999999999")?;
        let counted = wake_five_times()?;
        ensure!(counted == 0, "neither is traced: {counted}");
        mirror::set(&dir, "set_event_pid", &task.to_string())?;
        let counted = wake_five_times()?;
        ensure!(counted == 5, "the woken thread is traced: {counted}");
        mirror::set(&dir, "set_event_pid", "")?;
        mirror::set(&dir, "set_event_notrace_pid", &task.to_string())?;
        let counted = wake_five_times()?;
        ensure!(counted == 10, "one of them is traced: {counted}");
        drop(wake);
        sleeper.join().expect("a thread");
        Ok(())
    });
}

#[test]
fn a_name_is_shared_by_instances() {
    host::as_root(|| {
        let mounted = Mounted::start("histnames")?;
        let [one, two] = ["one", "two"].map(|name| mounted.instance(name));
        let (one, two) = (one?, two?);
        let command = format!("hist:name=all:keys=pid if pid == {NAMED}");
        add(&one, &format!("{GETPGID}/trigger"), &command)?;
        add(&two, &format!("{GETSID}/trigger"), &command)?;
        getpgid(NAMED);
        getsid(NAMED);
        ensure!(hits(&one, GETPGID)? == 2 && hits(&two, GETSID)? == 2);
        // No other histogram may use the name, in any instance.
        let other = format!("hist:name=all:keys=common_pid if pid == {NAMED}");
        ensure!(
            mirror::write(&two, &format!("{GETPGID}/trigger"), other.as_bytes(), true) == Err(libc::EINVAL)
        );
        let log = text(&two, "error_log")?;
        ensure!(log.contains("Named hist trigger doesn't match existing named trigger"), "{log}");
        // A pause applies to one trigger, and the table exists as long as any trigger uses it.
        add(&two, &format!("{GETSID}/trigger"), &command.replace(" if", ":pause if"))?;
        getsid(NAMED);
        getpgid(NAMED);
        ensure!(hits(&two, GETSID)? == 3);
        add(&two, &format!("{GETSID}/trigger"), &command.replace(" if", ":cont if"))?;
        std::fs::remove_dir(&one)?;
        getpgid(NAMED);
        getsid(NAMED);
        ensure!(hits(&two, GETSID)? == 4);
        Ok(())
    });
}

#[test]
fn poll_reports_hits() {
    host::as_root(|| {
        let mounted = Mounted::start("histpoll")?;
        let dir = mounted.instance("histpoll")?;
        add(&dir, &format!("{GETPGID}/trigger"), &format!("hist:keys=pid if pid == {POLLED}"))?;
        let mut file = std::fs::File::open(dir.join(GETPGID).join("hist"))?;
        let poll = |file: &std::fs::File, wanted: PollFlags, seconds: i64| -> Result<PollFlags> {
            let mut polled = [PollFd::new(file, wanted)];
            let limit = Timespec { tv_sec: seconds, tv_nsec: 0 };
            rustix::event::poll(&mut polled, Some(&limit))?;
            Ok(polled[0].revents())
        };
        let (input, news) = (PollFlags::IN, PollFlags::PRI);
        ensure!(poll(&file, input | news, 0)?.is_empty());
        for wanted in [news, input, news] {
            // The poll sleeps before the hit, or returns at once after it.
            let hitter = std::thread::spawn(|| {
                std::thread::sleep(Duration::from_millis(50));
                getpgid(POLLED);
            });
            let begun = Instant::now();
            let got = poll(&file, wanted, 60)?;
            hitter.join().expect("a thread");
            ensure!(got.contains(wanted) && begun.elapsed() < Duration::from_secs(30), "{wanted:?}: {got:?}");
            // The file stays readable until it is read; the poll reports a new hit once.
            ensure!(poll(&file, news, 0)?.is_empty() && poll(&file, input, 0)? == input);
            let mut shown = String::new();
            file.read_to_string(&mut shown)?;
            file.rewind()?;
            ensure!(shown.contains("Hits: "), "{shown}");
            ensure!(poll(&file, input | news, 0)?.is_empty());
        }
        // A file that is opened later is readable, without a new hit.
        let late = std::fs::File::open(dir.join(GETPGID).join("hist"))?;
        ensure!(poll(&late, input | news, 0)? == input);
        add(&dir, &format!("{GETPGID}/trigger"), &format!("hist:keys=pid:clear if pid == {POLLED}"))?;
        ensure!(poll(&file, input, 0)? == input);
        Ok(())
    });
}

#[test]
fn event_probes_on_records_of_user_space_have_histograms() {
    host::as_root(|| {
        let mounted = Mounted::start("histprobe")?;
        let (top, dir) = (mounted.dir(), mounted.instance("histprobe")?);
        add(top, "synthetic_events", "made u64 size; pid_t who")?;
        add(top, "dynamic_events", "e:mine/on_made synthetic.made size=$size who=$who")?;
        let (made, probe) = ("events/synthetic/made", "events/mine/on_made");
        add(&dir, &format!("{probe}/trigger"), "hist:keys=who,common_pid:vals=size:sort=who")?;
        ensure!(text(&dir, &format!("{probe}/enable"))? == "0*\n");
        ensure!(text(&dir, &format!("{made}/enable"))? == "0*\n", "a probe sits on it");
        ensure!(text(&dir, &format!("{made}/trigger"))?.starts_with("# Available"));
        for (size, who) in [(10, 1), (20, 2), (30, 1)] {
            add(&dir, &format!("{made}/inject"), &format!("size={size} who={who}"))?;
        }
        let own = std::process::id();
        let shown = text(&dir, &format!("{probe}/hist"))?;
        let row = |who: u32, hits: u32, size: u32| {
            let thread = rustix::thread::gettid().as_raw_nonzero();
            format!("{{ who: {who:10}, common_pid: {thread:10} }} hitcount: {hits:10}  size: {size:10}\n")
        };
        ensure!(shown.contains(&(row(1, 2, 40) + &row(2, 1, 20))), "of {own}: {shown}");
        mirror::set(&dir, &format!("{probe}/trigger"), "!hist:keys=who,common_pid:vals=size:sort=who")?;
        ensure!(text(&dir, &format!("{made}/enable"))? == "0\n");
        // Attaching an event probe to a user event sets the event's enable bit in the program.
        let data = Data::open(top)?;
        let word = Word::default();
        let index =
            data.register("listened u32 size", &word, 3, 0).map_err(std::io::Error::from_raw_os_error)?;
        add(top, "dynamic_events", "e:mine/on_user user_events.listened size=$size")?;
        let probe = "events/mine/on_user";
        ensure!(word.get() == 0);
        add(&dir, &format!("{probe}/trigger"), "hist:keys=size")?;
        ensure!(word.get() == 8, "{}", word.get());
        ensure!(data.write(index, &7_u32.to_ne_bytes()).is_ok());
        let shown = text(&dir, &format!("{probe}/hist"))?;
        ensure!(shown.contains("{ size:          7 } hitcount:          1\n"), "{shown}");
        add(&dir, &format!("{probe}/trigger"), "!hist:keys=size")?;
        ensure!(word.get() == 0 && data.write(index, &7_u32.to_ne_bytes()) == Err(libc::EBADF));
        Ok(())
    });
}

#[test]
fn histograms_that_multiply_are_refused() {
    host::as_root(|| {
        let mounted = Mounted::start("histchain")?;
        let dir = mounted.instance("histchain")?;
        for event in ["start", "chain0", "chain1", "chain2", "chain3", "chain4"] {
            add(mounted.dir(), "synthetic_events", &format!("{event} u64 x"))?;
        }
        let trace = |next: &str, times: usize| {
            let actions = format!(":onchange($of_{next}).trace({next},$of_{next})").repeat(times);
            format!("hist:keys=x:of_{next}=x{actions}")
        };
        let trigger = |event: &str| format!("events/synthetic/{event}/trigger");
        // From the first to the last, so that each program is small when its histogram is made. Those that grow too
        // large later stay as they are.
        for level in 0..4 {
            add(&dir, &trigger(&format!("chain{level}")), &trace(&format!("chain{}", level + 1), 6))?;
        }
        add(&dir, &trigger("chain4"), "hist:keys=x")?;
        // Its program would contain 6^4 histograms of chain4.
        let refused = mirror::write(&dir, &trigger("start"), trace("chain0", 1).as_bytes(), true);
        ensure!(refused == Err(libc::ENOMEM), "{refused:?}");
        ensure!(text(&dir, &trigger("start"))?.starts_with('#'), "the refused one stayed");
        add(&dir, "events/synthetic/chain3/inject", "x=7")?;
        ensure!(hits(&dir, "events/synthetic/chain4")? == 6);
        Ok(())
    });
}

#[test]
fn no_hit_is_lost_while_triggers_change() {
    host::as_root(|| {
        let mounted = Mounted::start("histfire")?;
        let [dir, still] = ["histfire", "histstill"].map(|name| mounted.instance(name));
        let (dir, still) = (dir?, still?);
        let event = "events/sched/sched_waking";
        let (ping, pinged) = std::sync::mpsc::sync_channel::<()>(0);
        let (pong, ponged) = std::sync::mpsc::sync_channel::<i32>(0);
        let other = std::thread::spawn(move || {
            let task = rustix::thread::gettid().as_raw_nonzero().get();
            while pinged.recv().is_ok() {
                if pong.send(task).is_err() {
                    break;
                }
            }
        });
        ping.send(())?;
        let task = ponged.recv()?;
        for dir in [&still, &dir] {
            add(dir, &format!("{event}/trigger"), &format!("hist:keys=pid if pid == {task}"))?;
            ensure!(text(dir, &format!("{event}/enable"))? == "0*\n");
        }
        let (changes, enough) = (host::share(20), AtomicBool::new(false));
        std::thread::scope(|scope| -> Result<()> {
            let enough = &enough;
            scope.spawn(move || {
                while !enough.load(Ordering::Acquire) && ping.send(()).is_ok() && ponged.recv().is_ok() {}
            });
            let change = || -> Result<()> {
                for line in ["hist:keys=common_pid if pid == 1", "traceon:0", "stacktrace if pid == 0"] {
                    add(&dir, &format!("{event}/trigger"), line)?;
                }
                mirror::set(&dir, &format!("{event}/enable"), "1")?;
                mirror::set(&dir, &format!("{event}/enable"), "0")?;
                for line in ["!hist:keys=common_pid if pid == 1", "!traceon", "!stacktrace"] {
                    add(&dir, &format!("{event}/trigger"), line)?;
                }
                Ok(())
            };
            let done = (0..changes).try_for_each(|_| change());
            enough.store(true, Ordering::Release);
            done
        })?;
        // Where this kernel's raw tracepoint has all fields of the record, no other link is needed, because the event
        // is disabled in both instances.
        let links = std::fs::read_dir(format!("/proc/{}/fdinfo", mounted.pid()))?.flatten();
        let texts = links.filter_map(|link| std::fs::read_to_string(link.path()).ok());
        let raw = texts.filter(|text| text.contains("tp_name:\tsched_waking\n")).count();
        other.join().expect("a thread");
        let counted = [hits(&still, event)?, hits(&dir, event)?];
        println!("{changes} times eight changes under {} hits, {raw} raw tracepoint links", counted[0]);
        ensure!(counted[0] == counted[1] && counted[0] > 0, "{counted:?}");
        Ok(())
    });
}
