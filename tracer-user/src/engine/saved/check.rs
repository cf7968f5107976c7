//! Limits on the content of a state file. A file that exceeds one was not written by this program or is damaged, and
//! is rejected as a whole.
//!
//! The limits are those of the mirror's files that set the same values. A value within its limits may still be
//! impossible now (an event of an unloaded module, more memory than the machine has). Such a value is logged and
//! skipped when it is set.

use std::collections::HashSet;

use super::{Saved, SavedHist, SavedInstance, escaped::Escaped};
use crate::{
    buffer::{PageSize, clock::Clock},
    engine::{
        instances::{
            table::{INSTANCES_MAX, is_name},
            thread_lists::PID_LIMIT,
        },
        tasks::CAPACITY_MAX,
    },
    lang::define::LINE_MAX,
    plan::source::UserData,
};

/// Maximum size of a state file in bytes.
pub const BYTES_MAX: usize = 64 << 20;
/// Maximum number of CPUs of any kernel configuration (`NR_CPUS_RANGE_END` of x86-64 with `MAXSMP`).
const CPUS_MAX: usize = 8192;
/// Maximum number of entries of one kind, such as filters; there are half as many event ids.
const EVENTS_MAX: usize = 1 << 17;
/// Maximum number of options, and of bytes of an option's word: the kernel's buffer for it.
const OPTIONS_MAX: usize = 512;
const OPTION_MAX: usize = 64;
/// Maximum number of threads in a list (`PID_MAX_LIMIT`).
const PIDS_MAX: usize = 1 << 22;
/// Maximum bytes of a definition, a command or a filter: several times the limit of one write, because the shown text
/// may be longer.
const TEXT_MAX: usize = 64 * 1024;
/// Maximum bytes of the name of a system or event: the length of a definition. The kernel's names of user events and of
/// synthetic events are as long as the text allows.
const EVENT_NAME_MAX: usize = LINE_MAX;
/// Maximum number of lines of a `trigger` file.
const LINES_MAX: usize = 4096;
/// Maximum size of a buffer in bytes: more than any machine has.
const BUFFER_MAX: usize = 1 << 46;

/// Why a state file is rejected.
#[derive(Debug, thiserror::Error)]
pub enum SavedError {
    /// It is longer than any valid file.
    #[error("it has more than {BYTES_MAX} bytes")]
    TooLong,
    /// It is not JSON of the expected form.
    #[error(transparent)]
    Form(#[from] serde_json::Error),
    /// A value in it could not have been set.
    #[error("{what} of {}", Escaped(.whose))]
    Value {
        /// The kind of value.
        what: &'static str,
        /// What it belongs to.
        whose: String,
    },
}

impl Saved {
    /// Parses a state file. Nesting uses no stack: the form has four levels, and a fifth is rejected where it begins.
    ///
    /// # Errors
    /// The file does not have the form, or contains a value that could not have been set.
    pub fn parse(bytes: &[u8]) -> Result<Self, SavedError> {
        if bytes.len() > BYTES_MAX {
            return Err(SavedError::TooLong);
        }
        let mut saved: Self = serde_json::from_slice(bytes)?;
        // Clients choose these names and texts, so they must not decide about the rest.
        saved.skip_bad_entries_of_clients();
        saved.check()?;
        Ok(saved)
    }

    fn check(&self) -> Result<(), SavedError> {
        let own = Checked("the mirror");
        own.texts("a definition", "too many definitions", &self.definitions)?;
        own.texts("a path of a program", "too many programs", &self.programs)?;
        own.texts("a list of events", "too many lists of events", &self.listed)?;
        own.is("a number of names that is too large", self.names <= CAPACITY_MAX)?;
        own.is("too many instances", self.instances.len() <= 1 + INSTANCES_MAX)?;
        own.is("too many histograms", self.hists.len() <= EVENTS_MAX)?;
        let mut names = HashSet::new();
        for (at, instance) in self.instances.iter().enumerate() {
            let name = &instance.name;
            own.is("an instance without a name", name.is_empty() == (at == 0))?;
            own.is("an instance's name", name.is_empty() || is_name(name))?;
            own.is("two instances of one name", names.insert(name))?;
            instance.check()?;
        }
        self.hists.iter().try_for_each(SavedHist::check)
    }
}

impl SavedHist {
    fn check(&self) -> Result<(), SavedError> {
        let own = Checked("a histogram");
        own.is("the instance", self.instance.is_empty() || is_name(&self.instance))?;
        own.event(&self.system, &self.event)?;
        own.text("the command", &self.command)
    }
}

impl SavedInstance {
    fn check(&self) -> Result<(), SavedError> {
        let own = Checked(if self.name.is_empty() { "the top instance" } else { &self.name });
        own.is("too many options", self.options.len() <= OPTIONS_MAX)?;
        let is_option = |word: &String| (1..OPTION_MAX).contains(&word.len()) && !word.contains('\0');
        own.is("an option", self.options.iter().all(is_option))?;
        own.is("the clock", self.clock.is_empty() || Clock::named(self.clock.as_bytes()).is_some())?;
        own.is("the number of CPUs", self.cpus.len() <= CPUS_MAX && self.sizes.len() <= CPUS_MAX)?;
        own.is("the buffers' percent", self.percent <= 100)?;
        own.is("the size of a page", self.page == 0 || PageSize::exactly(self.page).is_some())?;
        let is_user_data = |bytes: u32| bytes <= u32::from(UserData::MAX);
        own.is("the size of user data", self.user_data.is_none_or(is_user_data))?;
        own.is("the size of a buffer", self.sizes.iter().all(|size| (1..=BUFFER_MAX).contains(size)))?;
        for pids in [&self.traced, &self.untraced] {
            let fits = pids.len() <= PIDS_MAX && pids.iter().all(|pid| *pid < PID_LIMIT);
            own.is("the threads", fits)?;
        }
        let counts = [self.filters.len(), self.events.len(), self.triggers.len(), self.awaited.len()];
        own.is("too many events", counts.into_iter().all(|count| count <= EVENTS_MAX))?;
        for (system, event, text) in &self.filters {
            own.event(system, event)?;
            own.text("a filter", text)?;
        }
        self.events.iter().try_for_each(|(system, event)| own.event(system, event))?;
        for (system, event, lines) in &self.triggers {
            own.event(system, event)?;
            own.is("too many triggers", lines.len() <= LINES_MAX)?;
            lines.iter().try_for_each(|line| own.text("a trigger", line))?;
        }
        self.awaited.iter().try_for_each(|word| own.text("an awaited event", word))
    }
}

/// Whether a text is within the limits of definitions, commands and filters.
pub(super) fn is_text(text: &str) -> bool {
    text.len() <= TEXT_MAX && !text.contains('\0')
}

/// Whether this can be the name of a system or an event.
pub(super) fn is_event_name(name: &str) -> bool {
    !matches!(name, "" | "." | "..") && name.len() <= EVENT_NAME_MAX && !name.contains(['/', '\0'])
}

/// Checks values that belong to something of this name.
#[derive(Clone, Copy)]
struct Checked<'a>(&'a str);

impl Checked<'_> {
    fn is(self, what: &'static str, good: bool) -> Result<(), SavedError> {
        if good { Ok(()) } else { Err(SavedError::Value { what, whose: self.0.to_owned() }) }
    }

    fn event(self, system: &str, event: &str) -> Result<(), SavedError> {
        self.is("the name of an event", is_event_name(system) && is_event_name(event))
    }

    fn text(self, what: &'static str, text: &str) -> Result<(), SavedError> {
        self.is(what, is_text(text))
    }

    fn texts(self, what: &'static str, many: &'static str, all: &[String]) -> Result<(), SavedError> {
        self.is(many, all.len() <= EVENTS_MAX)?;
        all.iter().try_for_each(|text| self.text(what, text))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;

    /// A state with a value of every kind.
    fn whole() -> Value {
        let one = |name: &str| {
            json!({
                "name": name, "options": ["noraw", "overwrite"], "clock": "mono", "on": true, "cpus": [true, false],
                "percent": 50, "user_data": 63, "page": 8192,
                "sizes": [1_441_792, 8192], "traced": [1, 2], "untraced": [77],
                "filters": [["sched", "sched_switch", "prev_pid == 1"]], "events": [["sched", "sched_switch"]],
                "triggers": [["sched", "sched_wakeup", ["traceoff:7 if pid == 1"]]], "awaited": ["nfs:*:mod:nfs"],
            })
        };
        json!({
            "definitions": ["p:a/b vfs_read"], "programs": ["/bin/x"], "names": 6552,
            "instances": [one(""), one("below")],
            "hists": [{"instance": "below", "system": "a", "event": "b", "command": "keys=pid", "paused": false}],
        })
    }

    fn parsed(value: &Value) -> Result<Saved, SavedError> {
        Saved::parse(&serde_json::to_vec(value).unwrap())
    }

    #[test]
    fn a_written_state_is_accepted() {
        let saved = parsed(&whole()).unwrap();
        assert_eq!((saved.instances.len(), saved.hists.len(), saved.instances[1].page), (2, 1, 8192));
        assert_eq!(Saved::parse(&serde_json::to_vec(&saved).unwrap()).unwrap(), saved);
        assert_eq!(Saved::parse(b"{}").unwrap(), Saved::default());
    }

    #[test]
    fn every_value_has_its_limits() {
        let long = "x".repeat(TEXT_MAX + 1);
        for (pointer, bad, what) in [
            ("/definitions/0", json!(long), "a definition of the mirror"),
            ("/programs/0", json!("a\0b"), "a path of a program of the mirror"),
            ("/names", json!(CAPACITY_MAX + 1), "a number of names that is too large of the mirror"),
            ("/instances/0/name", json!("top"), "an instance without a name of the mirror"),
            ("/instances/1/name", json!(""), "an instance without a name of the mirror"),
            ("/instances/1/name", json!("../x"), "an instance's name of the mirror"),
            ("/instances/1/name", json!("n".repeat(256)), "an instance's name of the mirror"),
            ("/instances/0/options/0", json!(""), "an option of the top instance"),
            ("/instances/1/options/0", json!("o".repeat(64)), "an option of below"),
            ("/instances/1/clock", json!("sundial"), "the clock of below"),
            ("/instances/1/cpus", json!(vec![true; CPUS_MAX + 1]), "the number of CPUs of below"),
            ("/instances/1/percent", json!(101), "the buffers' percent of below"),
            ("/instances/1/user_data", json!(166), "the size of user data of below"),
            ("/instances/1/page", json!(16), "the size of a page of below"),
            ("/instances/1/page", json!(12288), "the size of a page of below"),
            ("/instances/1/sizes/0", json!(0), "the size of a buffer of below"),
            ("/instances/1/sizes/1", json!(usize::MAX), "the size of a buffer of below"),
            ("/instances/1/traced/0", json!(PID_LIMIT), "the threads of below"),
            ("/instances/1/events/0/0", json!("a/b"), "the name of an event of below"),
            ("/instances/1/filters/0/1", json!(""), "the name of an event of below"),
            (
                "/instances/1/events/0/1",
                json!("e".repeat(EVENT_NAME_MAX + 1)),
                "the name of an event of below",
            ),
            ("/instances/1/filters/0/2", json!(long), "a filter of below"),
            ("/instances/1/triggers/0/2/0", json!(long), "a trigger of below"),
            ("/instances/1/awaited/0", json!(long), "an awaited event of below"),
            ("/hists/0/command", json!(long), "the command of a histogram"),
            ("/hists/0/instance", json!("."), "the instance of a histogram"),
        ] {
            let mut state = whole();
            *state.pointer_mut(pointer).unwrap() = bad;
            match parsed(&state) {
                Err(error @ SavedError::Value { .. }) => assert_eq!(error.to_string(), what, "{pointer}"),
                other => panic!("{pointer}: {other:?}"),
            }
        }
        let mut twice = whole();
        let second = twice["instances"][1].clone();
        twice["instances"].as_array_mut().unwrap().push(second);
        assert_eq!(parsed(&twice).unwrap_err().to_string(), "two instances of one name of the mirror");
    }

    #[test]
    fn other_forms_are_rejected() {
        for bad in [
            &b""[..],
            b"\0\0\0\0",
            b"null",
            b"{\"unknown\":1}",
            b"{\"names\":-1}",
            b"{\"names\":1e300}",
            b"{\"names\":1,\"names\":2}",
            b"{\"instances\":[{\"percent\":4294967296}]}",
            b"{\"definitions\":[1]}",
            b"{} {}",
            b"{\"definitions\":[\"\xff\"]}",
        ] {
            let text = String::from_utf8_lossy(bad).into_owned();
            assert!(matches!(Saved::parse(bad), Err(SavedError::Form(_))), "{text}");
        }
        let deep = [&b"{\"instances\":"[..], &vec![b'['; 1 << 20]].concat();
        assert!(matches!(Saved::parse(&deep), Err(SavedError::Form(_))));
        assert!(matches!(Saved::parse(&vec![b' '; BYTES_MAX + 1]), Err(SavedError::TooLong)));
    }

    fn any_json() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<u64>().prop_map(Value::from),
            any::<f64>().prop_map(Value::from),
            ".{0,20}".prop_map(Value::from),
        ];
        leaf.prop_recursive(3, 16, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                prop::collection::btree_map("[a-z]{1,8}", inner, 0..4)
                    .prop_map(|map| Value::Object(map.into_iter().collect())),
            ]
        })
    }

    /// The paths of all values inside a value.
    fn places(value: &Value, at: &str, all: &mut Vec<String>) {
        all.push(at.to_owned());
        match value {
            Value::Array(list) => {
                list.iter().enumerate().for_each(|(n, one)| places(one, &format!("{at}/{n}"), all));
            }
            Value::Object(map) => map.iter().for_each(|(key, one)| places(one, &format!("{at}/{key}"), all)),
            _ => {}
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

        #[test]
        fn accepted_states_are_within_limits(place in any::<prop::sample::Index>(), other in any_json()) {
            let mut state = whole();
            let mut all = Vec::new();
            places(&state, "", &mut all);
            *state.pointer_mut(&all[place.index(all.len())]).unwrap() = other;
            if let Ok(saved) = parsed(&state) {
                for instance in &saved.instances {
                    prop_assert!(instance.page == 0 || PageSize::exactly(instance.page).is_some());
                    prop_assert!(instance.percent <= 100 && instance.sizes.iter().all(|size| *size <= BUFFER_MAX));
                }
                prop_assert_eq!(Saved::parse(&serde_json::to_vec(&saved).unwrap()).unwrap(), saved);
            }
        }

        #[test]
        fn no_bytes_panic(cut in any::<prop::sample::Index>(), at in any::<prop::sample::Index>(), byte in any::<u8>()) {
            let mut bytes = serde_json::to_vec(&whole()).unwrap();
            let place = at.index(bytes.len());
            bytes[place] = byte;
            let _ = Saved::parse(&bytes);
            bytes.truncate(cut.index(bytes.len()));
            let _ = Saved::parse(&bytes);
        }
    }
}
