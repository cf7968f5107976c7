//! The language of synthetic events against the running kernel. The same lines are written to the kernel's
//! `synthetic_events` and `dynamic_events` and to the mirror's. The test compares errno, `error_log`, the resulting
//! listings and the new event's `format`, byte for byte. It is skipped where the kernel has no synthetic events. Where
//! the kernel's language of histograms is the mirror's, `hist::differential` compares such lines and the deletions.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::time::Instant;

use rustix::io::Errno;
use tracer_tests::generate::Rng;
use tracer_tests::generate::histograms::synthetic;
use tracer_tests::host::{self, Tracefs};
use tracer_tests::mirror;
use tracer_tests::oracle::{Oracle, log_entries, visible};
use tracer_user::kernel;
use tracer_user::lang::define;
use tracer_user::lang::synth::{Change, File as Written, Set};

/// Number of random sequences of lines for each of the two files.
const CASES: u32 = 19_500;

/// The result of a line: errno, log, the listing of the test's events in `synthetic_events`, and `format`.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Outcome {
    errno: Option<Errno>,
    log: Vec<String>,
    listing: String,
    format: Option<String>,
}

struct Kernel {
    tracefs: Tracefs,
    /// Events that existed before the test.
    others: Vec<String>,
}

impl Kernel {
    fn open() -> Option<Self> {
        if !host::root_or_skip() {
            return None;
        }
        let tracefs = Tracefs::find_or_mount().unwrap();
        if !tracefs.root().join("synthetic_events").exists() {
            host::skip("own_synthetic", "this kernel has no synthetic events");
            return None;
        }
        let mut kernel = Self { tracefs, others: Vec::new() };
        kernel.others = kernel.listing().lines().map(str::to_owned).collect();
        Some(kernel)
    }

    fn write(&self, file: &str, line: &[u8]) -> (Option<Errno>, Vec<String>) {
        let log = self.tracefs.root().join("error_log");
        File::create(&log).unwrap();
        let file = OpenOptions::new().append(true).open(self.tracefs.root().join(file)).unwrap();
        let errno = rustix::io::write(&file, line).err();
        let entries = log_entries(&fs::read(log).unwrap());
        (errno, entries)
    }

    fn listing(&self) -> String {
        let text = visible(&fs::read(self.tracefs.root().join("synthetic_events")).unwrap());
        text.lines()
            .filter(|line| !self.others.iter().any(|other| other == line))
            .map(|line| line.to_owned() + "\n")
            .collect()
    }

    fn outcome(&self, file: &str, line: &[u8]) -> Outcome {
        let (errno, log) = self.write(file, line);
        let listing = self.listing();
        let last = listing.lines().last().and_then(|line| line.split('\t').next()).map(str::to_owned);
        let format = last.map(|name| self.tracefs.format(&format!("synthetic:{name}")).unwrap());
        Outcome { errno, log, listing, format: format.map(|text| crate::without_id(&text)) }
    }

    fn forget(&self) {
        for line in self.listing().lines() {
            let name = line.split('\t').next().unwrap_or_default();
            let (errno, _) = self.write("synthetic_events", format!("!{name}").as_bytes());
            assert_eq!(errno, None, "{name} stays");
        }
    }

    /// Writes lines to both, one after the other, and returns the first difference.
    fn compare(&self, lines: &[Vec<u8>], file: Written) -> Option<(Outcome, Outcome)> {
        let name = match file {
            Written::Synthetic => "synthetic_events",
            Written::Dynamic => "dynamic_events",
        };
        let mut set = Set::default();
        let mut difference = None;
        for line in lines {
            let result = set.apply(define::Line::split(line).text(), file);
            let format = set.events().last().map(|defined| defined.event.format(0, kernel::version()));
            let format = format.map(|format| crate::without_id(&format.text()));
            let (errno, log) = match &result {
                Ok(_) => (None, Vec::new()),
                Err(refusal) => {
                    (Some(refusal.errno()), refusal.log_entry().iter().map(|e| visible(e)).collect())
                }
            };
            let listing = visible(&set.listing(Written::Synthetic));
            let ours = Outcome { errno, log, listing, format };
            let theirs = self.outcome(name, line);
            if ours != theirs {
                difference = Some((theirs, ours));
                break;
            }
        }
        self.forget();
        difference
    }

    fn difference(&self, lines: &[Vec<u8>], file: Written) -> Option<String> {
        // Another process may have written into the log, so a second comparison decides.
        self.compare(lines, file)?;
        let (theirs, ours) = self.compare(lines, file)?;
        let shown: Vec<_> = lines.iter().map(|line| line.escape_ascii().to_string()).collect();
        Some(format!("{}\n--- kernel: {theirs:#?}\n--- ours: {ours:#?}", shown.join("\n")))
    }
}

/// Whether this kernel's language of histograms has `nohitcount`. If so, `hist::differential` runs on it.
fn has_nohitcount() -> bool {
    let oracle = Oracle::create("nohitcount").unwrap();
    let trigger = "events/sched/sched_process_hang/trigger";
    let command = "hist:keys=pid:vals=pid:nohitcount";
    let has = mirror::write(oracle.dir(), trigger, command.as_bytes(), true).is_ok();
    let _ = mirror::write(oracle.dir(), trigger, format!("!{command}").as_bytes(), true);
    has
}

#[test]
fn random_lines_define_alike() {
    let Some(kernel) = Kernel::open() else { return };
    if has_nohitcount() {
        println!("hist::differential::definitions_are_answered_alike compares the lines here");
        return;
    }
    let mut differences = Vec::new();
    for (seed, file) in [(1, Written::Synthetic), (2, Written::Dynamic)] {
        let start = Instant::now();
        let mut rng = Rng::new(seed);
        let (mut taken, mut refused) = (0, BTreeMap::<String, u32>::new());
        let cases = host::share(CASES);
        for _ in 0..cases {
            let lines = [(); 3].map(|()| {
                // One byte per character: characters beyond ASCII become their Latin-1 byte.
                let text = synthetic(file == Written::Dynamic, &mut rng);
                text.chars().map(|c| c as u8).collect::<Vec<u8>>()
            });
            differences.extend(kernel.difference(&lines, file));
            let mut set = Set::default();
            for line in &lines {
                match set.apply(define::Line::split(line).text(), file) {
                    Ok(Change::Added(_)) => taken += 1,
                    Ok(_) => {}
                    Err(refusal) => *refused.entry(format!("{:?}", refusal.kind())).or_default() += 1,
                }
            }
        }
        println!("{file:?}: {cases} sequences, {taken} taken in {:?}: {refused:?}", start.elapsed());
        assert!(taken >= cases / 10 && refused.len() >= 6, "{taken} taken, {refused:?}");
    }
    assert!(
        differences.is_empty(),
        "{} differences\n{}",
        differences.len(),
        differences[..differences.len().min(8)].join("\n")
    );
}
