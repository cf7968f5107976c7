//! Settings at the start: a list of events, and words of the kernel's command line.
//!
//! The words are those that the kernel's own tracing accepts (Documentation/admin-guide/kernel-parameters.txt), so
//! one command line serves both.

use super::instance_named;
use crate::{
    engine::{
        Engine, InstanceCommand,
        command::error::{CommandError, ErrorKind},
        instances::select::Selector,
    },
    event::InstanceId,
};

/// A list of events for one instance.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Instance {
    name: String,
    on: bool,
    events: Vec<String>,
}

/// The settings of a command line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Boot {
    options: Vec<String>,
    clock: Option<String>,
    bytes: Option<usize>,
    instances: Vec<Instance>,
}

impl Boot {
    /// Parses a kernel's command line (/proc/cmdline). A blank within double quotes belongs to its word.
    pub fn read(line: &str) -> Self {
        let mut boot = Self::default();
        let mut top = Instance { on: true, ..Instance::default() };
        let mut below = Vec::new();
        for word in words(line) {
            let Some((key, value)) = word.split_once('=') else { continue };
            let list = || value.split(',').filter(|part| !part.is_empty()).map(str::to_owned);
            match key {
                // The last word counts, as in the kernel, which copies it into one buffer.
                "trace_event" => top.events = list().collect(),
                "trace_options" => boot.options = list().collect(),
                "trace_clock" => boot.clock = Some(value.to_owned()),
                "trace_buf_size" => boot.bytes = size(value),
                "trace_instance" => below.extend(instance(value)),
                _ => {}
            }
        }
        boot.instances = std::iter::once(top).chain(below).collect();
        boot
    }

    /// The events of lists, for the top instance: `SYSTEM:EVENT,SYSTEM,...`
    pub(super) fn events(lists: &[String]) -> Self {
        let words = lists.iter().flat_map(|list| list.split(',')).filter(|word| !word.is_empty());
        let top = Instance { on: true, events: words.map(str::to_owned).collect(), ..Instance::default() };
        Self { instances: vec![top], ..Self::default() }
    }
}

/// The words of a command line, without quotes.
fn words(line: &str) -> Vec<String> {
    let mut quoted = false;
    let parts = line.split(|c: char| {
        quoted ^= c == '"';
        c.is_whitespace() && !quoted
    });
    parts.map(|part| part.replace('"', "")).filter(|word| !word.is_empty()).collect()
}

/// `NAME[^FLAGS][@WHERE][,EVENT...]`. Of the flags only `traceoff` has an effect, and all buffers are in ordinary
/// memory.
fn instance(value: &str) -> Option<Instance> {
    let mut parts = value.split(',');
    let first = parts.next()?;
    let (name, _) = first.split_once('@').unwrap_or((first, ""));
    let (name, flags) = name.split_once('^').unwrap_or((name, ""));
    let events = parts.filter(|part| !part.is_empty()).map(str::to_owned).collect();
    let on = !flags.split('^').any(|flag| flag == "traceoff" || flag == "off");
    (!name.is_empty()).then(|| Instance { name: name.to_owned(), on, events })
}

/// A number with an optional unit letter (`memparse()`), at least the two pages of the smallest buffer.
fn size(text: &str) -> Option<usize> {
    let text = text.split(|c: char| !c.is_ascii_alphanumeric()).next()?;
    let units = [(['k', 'K'], 1 << 10), (['m', 'M'], 1 << 20), (['g', 'G'], 1 << 30)];
    let with_unit = units.into_iter().find_map(|(letter, unit)| Some((text.strip_suffix(letter)?, unit)));
    let (digits, unit): (&str, usize) = with_unit.unwrap_or((text, 1));
    let number: usize = match digits.strip_prefix("0x") {
        Some(hex) => usize::from_str_radix(hex, 16).ok()?,
        None => digits.parse().ok()?,
    };
    number.checked_mul(unit).map(|bytes| bytes.max(4096))
}

/// Applies the settings of the start. Settings that fail are skipped, and returned with their errors.
pub fn boot(engine: &mut Engine, boot: &Boot) -> Vec<(String, CommandError)> {
    let mut failed = Vec::new();
    let mut keep = |what: String, done: Result<(), CommandError>| {
        failed.extend(done.err().map(|error| (what, error)));
    };
    for word in &boot.options {
        let done = engine.apply(InstanceId::TOP, InstanceCommand::OptionWord(word.as_bytes()));
        keep(format!("trace_options={word}"), done);
    }
    if let Some(clock) = &boot.clock {
        let done = engine.apply(InstanceId::TOP, InstanceCommand::Clock(clock.as_bytes()));
        keep(format!("trace_clock={clock}"), done);
    }
    if let Some(bytes) = boot.bytes {
        let command = InstanceCommand::BufferSize { cpu: None, bytes };
        keep("trace_buf_size".to_owned(), engine.apply(InstanceId::TOP, command));
    }
    for one in &boot.instances {
        let instance = match instance_named(&engine.facts, &mut engine.instances, &one.name) {
            Ok(instance) => instance,
            Err(error) => {
                keep(format!("trace_instance={}", one.name), Err(error));
                continue;
            }
        };
        if !one.on {
            keep("traceoff".to_owned(), engine.apply(instance, InstanceCommand::Tracing(false)));
        }
        for word in &one.events {
            let done = match Selector::read(word.as_bytes()) {
                Some((on, which)) => engine.apply(instance, InstanceCommand::Events { which, on }),
                None => Err(ErrorKind::Invalid.into()),
            };
            keep(format!("event {word}"), done);
        }
    }
    failed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_line_selects_events() {
        let boot = Boot::read(
            "root=/dev/vda ro trace_event=sched:sched_switch,irq \"trace_clock=mono\" trace_options=sym-addr,noirq-info \
             trace_buf_size=2M trace_instance=foo^traceoff@0x100:1M,sched:* trace_instance=bar quiet\n",
        );
        let strings = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
        assert_eq!(boot.options, strings(&["sym-addr", "noirq-info"]));
        assert_eq!((boot.clock.as_deref(), boot.bytes), (Some("mono"), Some(2 << 20)));
        let [top, foo, bar] = &boot.instances[..] else { panic!("{boot:?}") };
        assert_eq!((top.name.as_str(), &top.events), ("", &strings(&["sched:sched_switch", "irq"])));
        assert_eq!((foo.name.as_str(), foo.on, &foo.events), ("foo", false, &strings(&["sched:*"])));
        assert_eq!((bar.name.as_str(), bar.on, bar.events.len()), ("bar", true, 0));
        assert_eq!(Boot::events(&strings(&["a:b,c", "d"])).instances[0].events, strings(&["a:b", "c", "d"]));
        assert_eq!(Boot::read("trace_event").instances[0].events.len(), 0);
    }

    #[test]
    fn sizes_have_units() {
        for (text, bytes) in [
            ("1", Some(4096)),
            ("64k", Some(65536)),
            ("0x10000", Some(65536)),
            ("x", None),
            ("", None),
            ("17179869184g", None),
        ] {
            assert_eq!(size(text), bytes, "{text}");
        }
    }
}
