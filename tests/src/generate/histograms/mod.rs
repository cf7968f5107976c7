//! Generates random histogram commands and synthetic events, valid and invalid ones. The same seed makes the same
//! text.
//!
//! The generator omits commands that crash a kernel when the event is hit (`.stacktrace` on a value that is no
//! stack). It also omits commands that crash a kernel at once: keys that are no fields, in histograms that the kernel
//! creates for a field of another event.

pub mod corners;
pub mod scenes;

use crate::generate::Rng;

/// The events of the compared histograms, and their fields. The tests do not hit them.
pub const EVENTS: [(&str, &[&str]); 3] = [
    ("cgroup:cgroup_mkdir", &["root", "level", "id", "path"]),
    ("cgroup:cgroup_rename", &["root", "level", "id", "path"]),
    ("sched:sched_process_hang", &["comm", "pid"]),
];

/// Synthetic events that actions generate.
pub const SYNTHETIC: [&str; 4] = [
    "tracerhist_num u64 v; int w",
    "tracerhist_text char c[16]; pid_t p",
    "tracerhist_dyn char s[]",
    "tracerhist_one u64 v",
];

const COMMON: &[&str] = &[
    "common_pid",
    "common_cpu",
    "common_timestamp",
    "common_type",
    "cpu",
    "hitcount",
    "nope",
    "",
    "comm",
    "CPU",
];

const MODIFIERS: &[&str] = &[
    ".hex",
    ".sym",
    ".sym-offset",
    ".execname",
    ".syscall",
    ".log2",
    ".usecs",
    ".buckets=10",
    ".bucket=0x10",
    ".buckets=0",
    ".buckets",
    ".buckets=x",
    ".percent",
    ".graph",
    ".graphs",
    ".foo",
    ".",
    ".hex.hex",
];

const NUMBERS: &[&str] =
    &["0", "1", "2", "3", "10", "07", "0x10", "100", "1048577", "1x", "08", "99999999999999999999"];

/// Generates commands for [`EVENTS`].
#[derive(Debug)]
pub struct Generator {
    rng: Rng,
    /// Variables that previous commands may have defined.
    variables: Vec<String>,
}

impl Generator {
    /// Starts from a seed.
    pub fn new(seed: u64) -> Self {
        Self { rng: Rng::new(seed), variables: Vec::new() }
    }

    /// A few commands, each with the index of its event in [`EVENTS`]. A leading `!` removes.
    pub fn sequence(&mut self) -> Vec<(usize, String)> {
        self.variables.clear();
        let mut commands: Vec<(usize, String)> = Vec::new();
        for _ in 0..=self.rng.below(3) {
            let again = !commands.is_empty() && self.rng.once_in(4);
            if again {
                let (event, command) = commands[self.rng.below(commands.len())].clone();
                let bare = command.trim_start_matches('!').to_owned();
                let changed = match self.rng.below(5) {
                    0 => bare,
                    1 => bare.replacen(":size=128", ":size=128:pause", 1),
                    2 => bare.replacen(":size=128", ":size=128:cont", 1),
                    3 => bare.replacen(":size=128", ":size=128:clear", 1),
                    _ => format!("!{bare}"),
                };
                commands.push((event, changed));
                continue;
            }
            let event = self.rng.below(EVENTS.len());
            let command = self.command(event);
            commands.push((event, command));
        }
        commands
    }

    fn command(&mut self, event: usize) -> String {
        let mut parts = vec![format!("{}={}", self.rng.pick(&["keys", "keys", "key"]), self.keys(event))];
        if !self.rng.once_in(30) {
            parts.push("size=128".to_owned());
        }
        for _ in 0..self.rng.below(4) {
            let part = self.part(event);
            parts.push(part);
        }
        if self.rng.once_in(12) {
            let (a, b) = (self.rng.below(parts.len()), self.rng.below(parts.len()));
            parts.swap(a, b);
        }
        let mut text = parts.join(":");
        match self.rng.below(12) {
            0 => text += " if level > 1",
            1 => text += " if pid == 3 ",
            2 => text += " if nope == 1",
            3 if self.rng.once_in(3) => text += " if",
            4 if self.rng.once_in(3) => text += "  if  ",
            5 if self.rng.once_in(4) => text = self.damaged(&text),
            _ => {}
        }
        text
    }

    /// The text with one character removed, inserted or repeated.
    fn damaged(&mut self, text: &str) -> String {
        let at = self.rng.below(text.len());
        let (head, tail) = text.split_at(at);
        let mut behind = tail.chars();
        let first = behind.next();
        match self.rng.below(3) {
            0 => format!("{head}{}", behind.as_str()),
            1 => format!("{head}{}{tail}", self.rng.pick(&[":", ",", ".", "=", "$", "(", ")", " ", "-"])),
            _ => format!("{head}{}{}", first.unwrap_or('x'), tail),
        }
    }

    fn keys(&mut self, event: usize) -> String {
        let count = if self.rng.once_in(25) { 4 } else { 1 + self.rng.below(8) / 4 };
        let keys: Vec<String> = (0..count)
            .map(|_| match self.rng.below(20) {
                0 => "stacktrace".to_owned(),
                1 => "common_stacktrace".to_owned(),
                2 => self.expression(event),
                3 => self.atom(event),
                4 | 5 => {
                    let field = self.field(event);
                    format!("{field}{}", self.rng.pick(MODIFIERS))
                }
                _ => self.field(event),
            })
            .collect();
        keys.join(",")
    }

    fn field(&mut self, event: usize) -> String {
        let own = EVENTS[event].1;
        if self.rng.once_in(6) { self.rng.pick(COMMON) } else { self.rng.pick(own) }.to_owned()
    }

    fn part(&mut self, event: usize) -> String {
        match self.rng.below(16) {
            0..=2 => {
                let count = 1 + self.rng.below(3);
                let values: Vec<String> = (0..count)
                    .map(|_| if self.rng.once_in(5) { "hitcount".to_owned() } else { self.value(event) })
                    .collect();
                format!("{}={}", self.rng.pick(&["vals", "val", "values"]), values.join(","))
            }
            3..=6 => {
                let name = self.rng.pick(&["x", "y", "z", "ts0", "m", "synthetic_id"]);
                let value = self.value(event);
                self.variables.push(name.to_owned());
                let more =
                    if self.rng.once_in(6) { self.rng.pick(&[",a=1", ",b", ",=", ",c=id", ","]) } else { "" };
                format!("{name}={value}{more}")
            }
            7 | 8 => {
                let direction = ["", "", ".descending", ".ascending", ".up", "."];
                let count = if self.rng.once_in(12) { 3 } else { 1 + self.rng.below(2) };
                let sorts: Vec<String> = (0..count)
                    .map(|_| {
                        let field =
                            if self.rng.once_in(3) { "hitcount".to_owned() } else { self.field(event) };
                        format!("{field}{}", self.rng.pick(&direction))
                    })
                    .collect();
                format!("sort={}", sorts.join(","))
            }
            9 => format!(
                "size={}",
                self.rng
                    .pick(&["128", "0x80", "100", "127", "129", "64", "0", "x", "131072", "131073", "-1"])
            ),
            10 => self
                .rng
                .pick(&[
                    "name=tracerhist",
                    "name=trh2",
                    "pause",
                    "cont",
                    "clear",
                    "nohitcount",
                    "NOHC",
                    "junk",
                    "",
                ])
                .to_owned(),
            11 => format!("clock={}", self.rng.pick(&["global", "mono", "nope", " local "])),
            _ => self.action(event),
        }
    }

    fn value(&mut self, event: usize) -> String {
        match self.rng.below(4) {
            0 => self.expression(event),
            1 => {
                let field = self.field(event);
                format!("{field}{}", self.rng.pick(MODIFIERS))
            }
            _ => self.atom(event),
        }
    }

    fn variable(&mut self) -> String {
        if self.variables.is_empty() || self.rng.once_in(8) {
            return self.rng.pick(&["x", "q", "ts0", "m"]).to_owned();
        }
        let at = self.rng.below(self.variables.len());
        self.variables[at].clone()
    }

    fn atom(&mut self, event: usize) -> String {
        match self.rng.below(10) {
            0 | 1 => self.rng.pick(NUMBERS).to_owned(),
            2 | 3 => format!("${}", self.variable()),
            4 => "common_timestamp.usecs".to_owned(),
            5 if self.rng.once_in(3) => format!("cgroup.cgroup_mkdir.${}", self.variable()),
            5 if self.rng.once_in(3) => format!("cgroup.cgroup_mkdir.{}", self.field(event)),
            _ => self.field(event),
        }
    }

    fn expression(&mut self, event: usize) -> String {
        let mut text = self.atom(event);
        for _ in 0..=self.rng.below(4) {
            let sign = self.rng.pick(&["+", "-", "*", "/", "/", "-"]);
            let right = self.atom(event);
            text = match self.rng.below(14) {
                0 => format!("-({text})"),
                1 => format!("-({text}){sign}{right}"),
                2 => format!("-{text}"),
                3 => format!("{text}{sign}"),
                _ => format!("{text}{sign}{right}"),
            };
        }
        text
    }

    fn action(&mut self, event: usize) -> String {
        let handler = match self.rng.below(8) {
            0..=2 => format!("onmax(${})", self.variable()),
            3 | 4 => format!("onchange(${})", self.variable()),
            5 => self
                .rng
                .pick(&[
                    "onmax(m)",
                    "onmatch(cgroup)",
                    "onmatch(a.b)",
                    "onchange($x",
                    "onmatch(cgroup.cgroup_mkdir",
                    "onfoo($x)",
                ])
                .to_owned(),
            _ => "onmatch(cgroup.cgroup_mkdir)".to_owned(),
        };
        let action = match self.rng.below(9) {
            0..=2 => {
                let count = 1 + self.rng.below(3);
                let fields: Vec<String> = (0..count).map(|_| self.param(event)).collect();
                format!("save({})", fields.join(","))
            }
            3 => "snapshot()".to_owned(),
            4 => self
                .rng
                .pick(&[
                    "snapshot(",
                    "save(pid",
                    "save",
                    "trace()",
                    "nope(id)",
                    "tracerhist_one()",
                    "trace(tracerhist_one, $x )",
                ])
                .to_owned(),
            _ => {
                let synthetic =
                    self.rng.pick(&["tracerhist_num", "tracerhist_text", "tracerhist_dyn", "tracerhist_one"]);
                let count = match self.rng.below(6) {
                    0 => self.rng.below(3),
                    _ if synthetic.ends_with("num") || synthetic.ends_with("text") => 2,
                    _ => 1,
                };
                let params: Vec<String> = (0..count).map(|_| self.param(event)).collect();
                let listed = params.join(",");
                if self.rng.once_in(2) {
                    format!("{synthetic}({listed})")
                } else if listed.is_empty() {
                    format!("trace({synthetic})")
                } else {
                    format!("trace({synthetic},{listed})")
                }
            }
        };
        let dot = if self.rng.once_in(40) { "" } else { "." };
        format!("{handler}{dot}{action}")
    }

    fn param(&mut self, event: usize) -> String {
        match self.rng.below(8) {
            0..=2 => format!("${}", self.variable()),
            3 => {
                let field = self.field(event);
                format!("cgroup.cgroup_mkdir.{field}")
            }
            4 if self.rng.once_in(3) => format!("{}.hex", self.field(event)),
            _ => self.field(event),
        }
    }
}

const TYPES: &[&str] = &[
    "u64",
    "s64",
    "u32",
    "s32",
    "u16",
    "s16",
    "u8",
    "s8",
    "char",
    "int",
    "long",
    "bool",
    "pid_t",
    "gfp_t",
    "unsigned int",
    "unsigned long",
    "unsigned char",
    "char[16]",
    "char[]",
    "long[]",
    "unsigned long[]",
    "char[0]",
    "char[256]",
    "char[257]",
    "char[0x10]",
    "char[x]",
    "char[1000]",
    "u64[2]",
    "void",
    "unsigned",
    "unsigned short",
    "void *",
    "char[4]]",
    "char[",
];
const FIELDS: &[&str] = &[
    "a",
    "b",
    "c",
    "comm[16]",
    "name[]",
    "s[]",
    "x[2]",
    "1x",
    "x-y",
    "_z",
    "",
    "a[",
    "a]",
    "a[300]",
    "common_pid",
    "x[07]",
];

/// A line of `synthetic_events` or `dynamic_events`.
pub fn synthetic(dynamic: bool, rng: &mut Rng) -> String {
    let name = rng.pick(&[
        "tracersynth",
        "tracersynth",
        "tracersynth2",
        "tracer-synth",
        "9tracersynth",
        "",
        "tracersynth/x",
    ]);
    let head = match (dynamic, rng.below(8)) {
        (true, 0) => "s",
        (true, 1) => "s:other/",
        (true, 2) => "s: ",
        (true, 3) => "s1:",
        (true, 4 | 5) => "s:synthetic/",
        (true, _) => "s:",
        (false, 0) => "!",
        (false, 1) => " ",
        (false, _) => "",
    };
    let count = if rng.once_in(20) { 63 + rng.below(3) } else { rng.below(5) };
    let separators = [";", "; ", " ; ", ";;", " ", ";  "];
    let plain = count > 5 || rng.once_in(3);
    let mut text = format!("{head}{name}{}", rng.pick(&[" ", " ", "\t", "  ", ";"]));
    for at in 0..count {
        let (ty, field) = if plain { ("u8", "f") } else { (rng.pick(TYPES), rng.pick(FIELDS)) };
        let separator = if plain { ";" } else { rng.pick(&separators) };
        if at > 0 {
            text += separator;
        }
        text.extend([ty, " ", field]);
    }
    if rng.once_in(8) {
        text += rng.pick(&[";", " ", " u8", " # u8 x", "\u{a0}"]);
    }
    text
}
