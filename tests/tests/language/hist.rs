//! The language of histograms against the running kernel. The same commands are written to the `trigger` files of one
//! of its instances and to the mirror's. The test compares errno, `error_log` and the `trigger` files afterwards,
//! byte for byte. It is skipped where the kernel has no histograms.
//!
//! The test does not hit the events. Where the kernel's language is the mirror's, `hist::differential` compares random
//! commands, and this module the fixed ones. Where it is older, this module compares both.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use rustix::io::Errno;
use tracer_tests::generate::histograms::corners::COMMANDS;
use tracer_tests::generate::histograms::{EVENTS, Generator, SYNTHETIC};
use tracer_tests::host::{self, Tracefs};
use tracer_tests::oracle::table::cpu_once;
use tracer_tests::oracle::{log_entries, visible};
use tracer_user::event::{Format, InstanceId, synthetic};
use tracer_user::kernel::Btf;
use tracer_user::lang::filter::FilterError;
use tracer_user::lang::hist::{Dialect, Entry, ErrorKind, Feature, Log, Set, World};
use tracer_user::lang::synth;
use tracer_user::plan::resolve;

/// Number of random command sequences.
const CASES: u32 = 19_500;

/// The result of a command: errno, log, and the content of all `trigger` files.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Outcome {
    errno: Option<Errno>,
    log: Vec<String>,
    triggers: String,
}

/// The running kernel and one of its instances.
struct Kernel {
    tracefs: Tracefs,
    instance: PathBuf,
    formats: Vec<Arc<Format>>,
    clocks: Vec<Vec<u8>>,
    synthetic: synth::Set,
    dialect: Dialect,
    /// Whether the log of an instance has the errors of invalid filters in triggers. (6.1 logs them nowhere.)
    logs_filters: bool,
    filters: resolve::Machine,
}

impl World for Kernel {
    fn dialect(&self) -> Dialect {
        self.dialect
    }

    fn event(&self, system: &str, name: &str) -> Option<Arc<Format>> {
        self.formats.iter().find(|event| event.system == system && event.name == name).cloned()
    }

    fn synthetic(&self, name: &str) -> Option<Arc<synthetic::Event>> {
        self.synthetic.find(name).cloned()
    }

    fn has_clock(&self, name: &[u8]) -> bool {
        self.clocks.iter().any(|clock| clock == name)
    }

    fn filter(&self, event: &Format, text: &[u8]) -> Result<(), FilterError> {
        resolve::filter(text, event, &self.filters).map(|_| ())
    }
}

impl Kernel {
    fn open() -> Option<Self> {
        if !host::root_or_skip() {
            return None;
        }
        let tracefs = Tracefs::find_or_mount().unwrap();
        let root = tracefs.root().to_owned();
        if !root.join("events/sched/sched_switch/hist").exists() {
            host::skip("own_hist", "this kernel has no histograms");
            return None;
        }
        let instance = root.join("instances/tracerhist");
        let _ = fs::remove_dir(&instance);
        fs::create_dir(&instance).unwrap();
        let format = |event: &str| {
            let text = tracefs.format(event).unwrap();
            Arc::new(Format::parse(event.split(':').next().unwrap_or_default(), &text).unwrap())
        };
        let formats =
            EVENTS.iter().map(|(event, _)| *event).chain(["raw_syscalls:sys_enter"]).map(format).collect();
        let clocks = fs::read_to_string(instance.join("trace_clock")).unwrap();
        let clocks =
            clocks.split_whitespace().map(|clock| clock.trim_matches(['[', ']']).as_bytes().to_vec());
        let clocks = clocks.collect();
        let mut synthetic = synth::Set::default();
        for line in SYNTHETIC {
            let _ = write(&root.join("synthetic_events"), line.as_bytes());
            synthetic.apply(line.as_bytes(), synth::File::Synthetic).unwrap();
        }
        let filters = resolve::Machine::running(Btf::running().unwrap().as_ref());
        let dialect = Dialect::newest();
        let mut kernel =
            Self { tracefs, instance, formats, clocks, synthetic, dialect, logs_filters: true, filters };
        kernel.dialect = kernel.probe_features();
        kernel.logs_filters = !kernel.write(2, "hist:keys=pid if nope == 1").1.is_empty();
        Some(kernel)
    }

    /// Queries the kernel for its language features.
    fn probe_features(&self) -> Dialect {
        let asked = [
            (Feature::NoHitcount, "hist:keys=pid:vals=pid:nohitcount"),
            (Feature::Bars, "hist:keys=pid:vals=pid.graph"),
            (Feature::Stacktraces, "hist:keys=pid:s=common_stacktrace"),
            (Feature::Comm, "hist:keys=common_comm"),
            (Feature::QualifiedNames, ""),
        ];
        let mut dialect = Dialect::newest();
        for (feature, command) in asked {
            let has = match feature {
                Feature::QualifiedNames => {
                    self.write(0, "hist:keys=id:q=id:size=128");
                    self.write(1, "hist:keys=id:r=cgroup.cgroup_mkdir.$q+1:size=128");
                    self.triggers().contains("r=cgroup.cgroup_mkdir.$q+1")
                }
                _ => self.write(2, command).0.is_none(),
            };
            self.forget();
            if !has {
                println!("the kernel lacks {feature:?}");
                dialect = dialect.without(feature);
            }
        }
        dialect
    }

    fn trigger_file(&self, event: usize) -> PathBuf {
        let name = self.formats[event].full_name().replace(':', "/");
        self.instance.join("events").join(name).join("trigger")
    }

    /// Writes a trigger and returns the errno and log entries.
    fn write(&self, event: usize, text: &str) -> (Option<Errno>, Vec<String>) {
        let log = self.instance.join("error_log");
        File::create(&log).unwrap();
        let bytes: Vec<u8> = text.chars().map(|c| c as u8).collect();
        let errno = write(&self.trigger_file(event), &bytes).err();
        let entries = log_entries(&fs::read(log).unwrap());
        (errno, entries)
    }

    fn triggers(&self) -> String {
        (0..self.formats.len()).map(|event| self.triggers_of(event)).collect()
    }

    fn triggers_of(&self, event: usize) -> String {
        let text = cpu_once(&visible(&fs::read(self.trigger_file(event)).unwrap()));
        text.lines().filter(|line| !line.starts_with('#')).map(|line| line.to_owned() + "\n").collect()
    }

    /// Removes all triggers, first those that refer to variables.
    fn forget(&self) {
        for _ in 0..6 {
            if self.triggers().is_empty() {
                return;
            }
            for event in 0..self.formats.len() {
                File::create(self.trigger_file(event)).unwrap();
                // When an event's histograms refer to its own variables, the truncation removed nothing.
                for line in self.triggers_of(event).lines().rev() {
                    let command = line.trim_end_matches(" [active]").trim_end_matches(" [paused]");
                    self.write(event, &format!("!{command}"));
                }
            }
        }
        panic!("triggers stay: {}", self.triggers());
    }

    /// Writes commands to both, one after the other, and returns the first difference.
    fn compare(&self, commands: &[(usize, String)]) -> Option<(Outcome, Outcome)> {
        let mut set = Set::default();
        let mut difference = None;
        for (event, text) in commands {
            let ours = self.ours(&mut set, *event, text);
            let (errno, log) = self.write(*event, text);
            let theirs = Outcome { errno, log, triggers: self.triggers() };
            if ours != theirs {
                difference = Some((theirs, ours));
                break;
            }
        }
        self.forget();
        difference
    }

    /// The mirror's result for a line of a `trigger` file.
    fn ours(&self, set: &mut Set, event: usize, text: &str) -> Outcome {
        let bytes: Vec<u8> = text.chars().map(|c| c as u8).collect();
        let (remove, command) = after_hist(&bytes);
        let result = set.apply(&self.formats[event], command, remove, self);
        let (errno, log) = match &result {
            Ok(taken) => (None, taken.log.texts()),
            Err(refusal) => (Some(refusal.errno()), refusal.log().texts()),
        };
        let of_event = |format: &Arc<Format>| {
            set.of_event(InstanceId::TOP, &format.system, &format.name)
                .map(|t| visible(&t.read_back()))
                .collect::<String>()
        };
        let mut log: Vec<String> = log.iter().map(|entry| visible(entry)).collect();
        if !self.logs_filters {
            log.retain(|entry| !entry.starts_with("event filter"));
        }
        let mut triggers: String = self.formats.iter().map(of_event).collect();
        if !self.dialect.has(Feature::Stacktraces) {
            // The older name; newer kernels accept it and show the newer one.
            triggers = triggers.replace("common_stacktrace", "stacktrace");
        }
        Outcome { errno, log, triggers }
    }

    /// Compares, and describes the difference. Another process may have written into the log, so a second comparison
    /// decides.
    fn difference(&self, commands: &[(usize, String)]) -> Option<String> {
        self.compare(commands)?;
        let (theirs, ours) = self.compare(commands)?;
        let shown: Vec<_> =
            commands.iter().map(|(event, text)| format!("{event} {}", text.escape_debug())).collect();
        Some(format!("{}\n--- kernel: {theirs:#?}\n--- ours: {ours:#?}", shown.join("\n")))
    }
}

impl Drop for Kernel {
    fn drop(&mut self) {
        self.forget();
        let _ = fs::remove_dir(&self.instance);
        for line in SYNTHETIC {
            let name = line.split(' ').next().unwrap_or_default();
            let _ = write(&self.tracefs.root().join("synthetic_events"), format!("!{name}").as_bytes());
        }
    }
}

fn write(file: &Path, bytes: &[u8]) -> Result<(), Errno> {
    let file = OpenOptions::new().append(true).open(file).unwrap();
    rustix::io::write(&file, bytes).map(|_| ())
}

/// The text of a trigger line after `hist`, and whether the line starts with `!` (`trigger_process_regex()`).
fn after_hist(text: &[u8]) -> (bool, Option<&[u8]>) {
    let text = text.trim_ascii();
    let remove = text.first() == Some(&b'!');
    let end = text.iter().position(|byte| matches!(byte, b':' | b' ' | b'\t'));
    let behind = end.map(|end| text[end + 1..].trim_ascii_start()).filter(|behind| !behind.is_empty());
    (remove, behind)
}

/// Whether the kernel would crash. For a field of another event it creates a histogram and reads the field name of
/// each key, but some keys are no fields. The mirror refuses this with the error of a refused histogram. If the
/// kernel refuses that histogram itself, the histogram's own error comes first.
fn is_deadly(log: &Log) -> bool {
    let kinds: Vec<ErrorKind> = log
        .entries()
        .iter()
        .filter_map(|entry| match entry {
            Entry::Hist { kind, .. } => Some(*kind),
            Entry::Filter(_) => None,
        })
        .collect();
    let Some(at) = kinds.iter().position(|kind| *kind == ErrorKind::HistCreateFailed) else { return false };
    let before = at.checked_sub(1).map(|before| kinds[before]);
    matches!(before, None | Some(ErrorKind::FieldVarParseFailed | ErrorKind::VarCreateFindFailed))
}

fn with_kernel(test: impl FnOnce(&Kernel)) {
    let _turn = crate::turn();
    if let Some(kernel) = Kernel::open() {
        test(&kernel);
    }
}

fn report(differences: &[String]) {
    assert!(
        differences.is_empty(),
        "{} differences\n{}",
        differences.len(),
        differences[..differences.len().min(10)].join("\n")
    );
}

#[test]
fn corners_mean_the_same() {
    with_kernel(|kernel| {
        let mut differences = Vec::new();
        for command in COMMANDS {
            differences.extend(kernel.difference(&[(2, (*command).to_owned())]));
        }
        differences.extend(kernel.difference(&[(3, "hist:keys=args".to_owned())]));
        differences.extend(kernel.difference(&[(3, "hist:keys=id.syscall:vals=id".to_owned())]));
        println!("{} commands compared", COMMANDS.len() + 2);
        report(&differences);
    });
}

#[test]
fn sequences_mean_the_same() {
    let mkdir = |text: &str| (0, format!("hist:{text}"));
    let rename = |text: &str| (1, format!("hist:{text}"));
    let off = |(event, text): (usize, String)| (event, format!("!{text}"));
    let sequences = [
        vec![
            mkdir("keys=id:ts0=common_timestamp.usecs"),
            rename(
                "keys=id:d=common_timestamp.usecs-$ts0:onmatch(cgroup.cgroup_mkdir).tracerhist_num($d,level)",
            ),
            off(mkdir("keys=id:ts0=common_timestamp.usecs")),
        ],
        vec![
            mkdir("keys=id:ts0=level"),
            rename("keys=id:d=$ts0"),
            rename("keys=level:e=$d"),
            off(rename("keys=id:d=$ts0")),
        ],
        vec![mkdir("keys=id:v=3"), rename("keys=id:d=100/$v:e=$v*2:f=id/$v"), rename("keys=level:g=$v-1")],
        vec![mkdir("keys=id:v=8"), rename("keys=id:d=100/$v")],
        vec![mkdir("keys=id:v=0"), rename("keys=id:d=100/$v")],
        vec![
            mkdir("keys=id:v=id"),
            rename("keys=id:v=id"),
            (2, "hist:keys=pid:w=$v".to_owned()),
            (2, "hist:keys=pid:w=$v+1".to_owned()),
        ],
        vec![mkdir("keys=id:v=id"), mkdir("keys=level:v=id"), mkdir("keys=level:w=$v")],
        vec![
            mkdir("keys=id:vals=level if root > 1"),
            rename("keys=id:x=level:onmatch(cgroup.cgroup_mkdir).tracerhist_num($x,level)"),
            rename("keys=id:onmatch(cgroup.cgroup_mkdir).tracerhist_num(id,cgroup.cgroup_mkdir.level)"),
            off(rename("keys=id:onmatch(cgroup.cgroup_mkdir).tracerhist_num(id,cgroup.cgroup_mkdir.level)")),
        ],
        vec![
            mkdir("keys=id"),
            (2, "hist:keys=pid:onmatch(cgroup.cgroup_mkdir).tracerhist_one(id)".to_owned()),
        ],
        vec![
            mkdir("keys=level"),
            rename("keys=level:onmatch(cgroup.cgroup_mkdir).tracerhist_one(cgroup.cgroup_mkdir.id)"),
            rename("keys=level:a=1:onmatch(cgroup.cgroup_mkdir).tracerhist_one(cgroup.cgroup_mkdir.id)"),
            off(mkdir("keys=level")),
        ],
        vec![
            mkdir("name=tracerhist:keys=id"),
            rename("name=tracerhist:keys=id"),
            rename("name=tracerhist:keys=id:pause"),
            off(mkdir("name=tracerhist:keys=id")),
            rename("name=tracerhist:keys=level"),
            mkdir("name=tracerhist:keys=id if level > 1"),
        ],
        vec![
            mkdir("name=tracerhist:keys=id:pause"),
            rename("name=tracerhist:keys=id:cont"),
            rename("keys=id"),
        ],
        vec![
            mkdir("keys=id"),
            mkdir("keys=id if level > 1"),
            mkdir("keys=id:pause if level > 1"),
            mkdir("keys=id"),
            off(mkdir("keys=id if level > 2")),
            off(mkdir("keys=id if level > 1")),
            mkdir("keys=id:clear"),
            mkdir("keys=id:cont"),
            mkdir("keys=id:pause"),
            mkdir("keys=id:cont"),
        ],
        vec![
            mkdir("keys=id:m=level:onmax($m).save(path)"),
            mkdir("keys=id:m=level:onmax($m).save(path):pause"),
            off(mkdir("keys=id:m=level:onmax($m).save(root)")),
            off(mkdir("keys=id:m=level:onmax($m).save(path)")),
        ],
        vec![
            mkdir("keys=id:x=path"),
            rename("keys=id:onmatch(cgroup.cgroup_mkdir).tracerhist_dyn($x)"),
            rename("keys=id:onmatch(cgroup.cgroup_mkdir).tracerhist_one($x)"),
            rename("keys=id:y=$x:onmatch(cgroup.cgroup_mkdir).tracerhist_dyn($y)"),
        ],
        vec![
            mkdir("keys=id:x=common_pid.execname"),
            rename("keys=id:onmatch(cgroup.cgroup_mkdir).tracerhist_dyn($x)"),
            rename("keys=id:z=$x+1"),
        ],
    ];
    with_kernel(|kernel| {
        let differences: Vec<String> =
            sequences.iter().filter_map(|commands| kernel.difference(commands)).collect();
        report(&differences);
    });
}

#[test]
fn random_commands_mean_the_same() {
    with_kernel(|kernel| {
        if kernel.dialect.has(Feature::NoHitcount) {
            println!("hist::differential::commands_are_answered_alike compares random commands here");
            return;
        }
        let (start, made) = (Instant::now(), host::share(CASES));
        let (mut cases, mut taken) = (0, 0);
        let mut refused = BTreeMap::<String, u32>::new();
        let mut differences = Vec::new();
        for seed in 0..u64::from(made) {
            let mut commands = Generator::new(seed).sequence();
            for (_, text) in &mut commands {
                *text = match text.strip_prefix('!') {
                    Some(text) => format!("!hist:{text}"),
                    None => format!("hist:{text}"),
                };
            }
            // Skips names with a system, which older kernels read back differently.
            if !kernel.dialect.has(Feature::QualifiedNames)
                && commands.iter().any(|(_, c)| c.contains("cgroup_mkdir.$"))
            {
                continue;
            }
            let mut set = Set::default();
            let mut is_safe = true;
            for (event, text) in &commands {
                let bytes: Vec<u8> = text.chars().map(|c| c as u8).collect();
                let (remove, command) = after_hist(&bytes);
                match set.apply(&kernel.formats[*event], command, remove, kernel) {
                    Ok(_) => taken += 1,
                    Err(refusal) => {
                        is_safe &= !is_deadly(refusal.log());
                        *refused.entry(format!("{:?}", refusal.log().kind())).or_default() += 1;
                    }
                }
            }
            if !is_safe {
                continue;
            }
            cases += 1;
            differences.extend(kernel.difference(&commands));
        }
        let total: u32 = refused.values().sum();
        println!(
            "{cases} sequences, {taken} commands taken, {total} refused in {:?}: {refused:?}",
            start.elapsed()
        );
        report(&differences);
        // 6.1 takes 512 of 1,500 sequences' commands.
        assert!(taken > made / 4 && refused.len() >= 20, "{taken} taken, {refused:?}");
    });
}
