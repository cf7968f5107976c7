//! Generates random scenes: histograms on calls that a test makes itself. A scene has keys, values, sorting,
//! variables that pass from one event to the next, expressions, handlers, actions, synthetic events, and the calls.
//! The histograms depend only on the scene, so two tracers show the same. Most commands are valid; both tracers
//! refuse the others.

use crate::generate::Rng;
use crate::workload::{getpgid, getpriority, getsid};

/// A directory below `events/`, a field, and a call.
type Event = (&'static str, &'static str, fn(i32));

/// The events, the field that a call sets, and the calls.
const CALLS: [Event; 3] = [
    ("syscalls/sys_enter_getpgid", "pid", getpgid),
    ("syscalls/sys_enter_getsid", "pid", getsid),
    ("syscalls/sys_enter_getpriority", "who", getpriority),
];

/// Synthetic events that actions generate, and their numbers of parameters.
pub const SYNTHETIC: [(&str, &str, usize); 3] = [
    ("histd_one", "histd_one u64 v", 1),
    ("histd_two", "histd_two u64 v; int w", 2),
    ("histd_text", "histd_text char c[16]; u32 w", 2),
];

/// The commands and the calls of a scene.
#[derive(Clone, Debug, Default)]
pub struct Scene {
    /// Events as directories below `events/`, each with the command after `hist:`.
    pub commands: Vec<(String, String)>,
    /// Index of each call in [`CALLS`], and the value of its field relative to `base`.
    calls: Vec<(usize, i32)>,
    base: i32,
}

/// Generates scenes.
#[derive(Debug)]
pub struct Scenes {
    rng: Rng,
    /// Smallest value of the calls' fields. The commands filter by it, so that they count no other process's calls.
    base: i32,
    thread: i32,
    /// Variables that the scene's commands define: event and name.
    variables: Vec<(usize, String)>,
    /// Synthetic events that the scene's actions generate.
    made: Vec<usize>,
}

impl Scenes {
    /// Creates a generator from a seed, for calls of one thread.
    pub fn new(seed: u64, base: i32, thread: i32) -> Self {
        Self { rng: Rng::new(seed), base, thread, variables: Vec::new(), made: Vec::new() }
    }

    /// The next scene.
    pub fn scene(&mut self) -> Scene {
        self.variables.clear();
        self.made.clear();
        let mut commands = Vec::new();
        for _ in 0..=self.rng.below(3) {
            let event = self.rng.below(CALLS.len());
            let command = self.command(event);
            commands.push((CALLS[event].0.to_owned(), command));
        }
        for made in self.made.clone() {
            if !self.rng.once_in(4) {
                commands.push((format!("synthetic/{}", SYNTHETIC[made].0), self.of_synthetic(made)));
            }
        }
        let calls = (0..4 + self.rng.below(24)).map(|_| {
            let spread = if self.rng.once_in(5) { 40 } else { 4 };
            (self.rng.below(CALLS.len()), self.rng.below(spread) as i32)
        });
        Scene { commands, calls: calls.collect(), base: self.base }
    }

    fn field(&mut self, event: usize) -> &'static str {
        if self.rng.once_in(5) { "__syscall_nr" } else { CALLS[event].1 }
    }

    fn command(&mut self, event: usize) -> String {
        let field = CALLS[event].1;
        let mut keys: Vec<String> = vec![match self.rng.below(10) {
            0..=3 => "common_pid".to_owned(),
            4 | 5 => field.to_owned(),
            6 => "common_pid.execname".to_owned(),
            7 => format!("{field}.{}", self.rng.pick(&["hex", "log2", "buckets=3", "buckets=16"])),
            8 => format!(
                "{field}{}{}",
                self.rng.pick(&["/", "-", "*", "+"]),
                self.rng.pick(&["3", "4", "7", "1024"])
            ),
            _ => "__syscall_nr.syscall".to_owned(),
        }];
        if self.rng.once_in(3) {
            let more =
                self.rng.pick(&["common_pid", "common_cpu", "__syscall_nr", "common_type", "pid", "who"]);
            keys.push(more.to_owned());
        }
        let mut parts = vec![format!("keys={}", keys.join(",")), "size=128".to_owned()];
        let mut sums = vec!["hitcount".to_owned()];
        if self.rng.once_in(2) {
            let value = match self.rng.below(4) {
                0 => format!("hitcount,{field}.hex"),
                1 => format!("{field},__syscall_nr"),
                2 => self.variable().map_or_else(|| field.to_owned(), |name| format!("${name}")),
                _ => field.to_owned(),
            };
            if !value.contains('$') {
                sums.extend(value.split(',').map(|name| name.split('.').next().unwrap_or(name).to_owned()));
            }
            parts.push(format!("vals={value}"));
        }
        let mut own = Vec::new();
        for number in 0..self.rng.below(3) {
            let name = format!("{}{event}{number}", self.rng.pick(&["a", "b"]));
            let value = self.expression(event);
            own.push(name.clone());
            parts.push(format!("{name}={value}"));
        }
        if self.rng.once_in(2) {
            let mut by: Vec<String> = (0..=self.rng.below(2))
                .map(|_| {
                    let at = self.rng.below(keys.len() + sums.len());
                    let name = keys.iter().chain(&sums).nth(at).cloned().unwrap_or_default();
                    let direction = self.rng.pick(&["", ".descending", ".ascending"]);
                    format!("{}{direction}", name.split('.').next().unwrap_or_default())
                })
                .collect();
            by.dedup();
            parts.push(format!("sort={}", by.join(",")));
        }
        for _ in 0..self.rng.below(3) {
            let action = self.action(event, &own);
            parts.push(action);
        }
        self.variables.extend(own.into_iter().map(|name| (event, name)));
        let more = match self.rng.below(5) {
            0 => format!(" && {field} != {}", self.base + 1),
            1 => format!(" && {field} & 2"),
            _ => String::new(),
        };
        format!("{} if {field} >= {} && common_pid == {}{more}", parts.join(":"), self.base, self.thread)
    }

    fn variable(&mut self) -> Option<String> {
        let at = self.variables.len().checked_sub(1).map(|last| self.rng.below(last + 1))?;
        Some(self.variables[at].1.clone())
    }

    fn atom(&mut self, event: usize) -> String {
        match (self.rng.below(6), self.variable()) {
            (0, _) => self.rng.pick(&["1", "3", "8", "1000", "0x10"]).to_owned(),
            (1 | 2, Some(name)) => format!("${name}"),
            _ => self.field(event).to_owned(),
        }
    }

    fn expression(&mut self, event: usize) -> String {
        let first = match self.rng.below(3) {
            0 => format!("{}-{}", CALLS[event].1, self.base),
            _ => self.atom(event),
        };
        match self.rng.below(6) {
            0 => first,
            1 => format!("-({first})"),
            2 => format!("{first}/{}", self.rng.pick(&["2", "3", "7", "16"])),
            3 => format!("{}/{}", self.rng.pick(&["1000", "100000"]), self.atom(event)),
            _ => {
                let sign = self.rng.pick(&["+", "-", "*"]);
                format!("{first}{sign}{}", self.atom(event))
            }
        }
    }

    fn action(&mut self, event: usize, own: &[String]) -> String {
        let known = own.last().cloned().or_else(|| self.variable());
        let handler = match (self.rng.below(4), known) {
            (0 | 1, Some(name)) => format!("onmax(${name})"),
            (2, Some(name)) => format!("onchange(${name})"),
            _ => {
                let at = self.rng.below(CALLS.len());
                format!("onmatch({})", CALLS[at].0.replace('/', "."))
            }
        };
        if !handler.starts_with("onmatch") && self.rng.once_in(2) {
            let fields = [CALLS[event].1, "__syscall_nr", "common_pid"];
            let count = 1 + self.rng.below(fields.len());
            return format!("{handler}.save({})", fields[..count].join(","));
        }
        let made = self.rng.below(SYNTHETIC.len());
        let (name, _, wanted) = SYNTHETIC[made];
        let mut params: Vec<String> = (0..wanted)
            .map(|_| match (self.rng.below(3), own.last().cloned().or_else(|| self.variable())) {
                (0 | 1, Some(name)) => format!("${name}"),
                _ => CALLS[event].1.to_owned(),
            })
            .collect();
        if made == 1 && self.rng.once_in(2) {
            // The types must match: `__syscall_nr` is an int, like `w`.
            "__syscall_nr".clone_into(&mut params[1]);
        }
        self.made.push(made);
        if self.rng.once_in(2) {
            format!("{handler}.{name}({})", params.join(","))
        } else {
            format!("{handler}.trace({name},{})", params.join(","))
        }
    }

    fn of_synthetic(&mut self, made: usize) -> String {
        let first = if made == 2 { "c" } else { "v" };
        let key = self.rng.pick(&["", ".hex", ".log2", ".buckets=5"]);
        let key = if made == 2 { "" } else { key };
        match self.rng.below(4) {
            0 if made > 0 => format!("keys={first},w:sort={first},w:size=128"),
            1 if made > 0 => format!("keys={first}{key}:vals=w:sort={first}.descending:size=128"),
            2 => format!("keys=common_pid:vals=hitcount:size=128 if common_pid == {}", self.thread),
            _ => format!("keys={first}{key}:size=128"),
        }
    }
}

impl Scene {
    /// Makes the calls.
    pub fn play(&self) {
        for (call, more) in &self.calls {
            CALLS[*call].2(self.base + more);
        }
    }

    /// The events with a histogram.
    pub fn events(&self) -> Vec<&str> {
        let mut events: Vec<&str> = self.commands.iter().map(|(event, _)| event.as_str()).collect();
        events.sort_unstable();
        events.dedup();
        events
    }
}
