//! A checked histogram.

use std::sync::Arc;

use rustix::io::Errno;

use super::action::{Action, ActionKind, Handler};
use super::command::VARS_MAX;
use super::sort;
use super::value::{Flags, Function, HistId, Slot, Value};
use crate::event::dynamic::{latin1, raw};
use crate::event::{Format, InstanceId};

const REFERENCES_MAX: usize = VARS_MAX;

/// A histogram.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "properties of their own each")]
pub struct Hist {
    /// Id of the histogram.
    pub id: HistId,
    /// The instance whose variables the histogram can use.
    pub instance: InstanceId,
    /// The event.
    pub event: Arc<Format>,
    /// `name=NAME` as a whole.
    pub name: Option<Vec<u8>>,
    /// The table has 2 to the power of `bits` entries.
    pub bits: u32,
    /// The clock, if the command names one.
    pub clock: Option<Vec<u8>>,
    /// Whether rows omit the hit count.
    pub no_hitcount: bool,
    /// The values (the hit count first), then the variables, then the keys.
    pub fields: Vec<Value>,
    /// Number of [`Self::fields`] before the keys.
    pub values: usize,
    /// Number of variables among [`Self::fields`].
    pub variables: usize,
    /// Size of a key in bytes.
    pub key_size: u32,
    /// Sort order of the rows; at least one key.
    pub sort: Vec<sort::SortKey>,
    /// References to variables, which are read at a hit.
    pub references: Vec<Value>,
    /// For each reference, whether reading it clears the value.
    pub read_once: Vec<bool>,
    /// Actions.
    pub actions: Vec<Action>,
    /// Variables that actions created from fields, each with its value.
    pub field_variables: Vec<(Value, Value)>,
    /// Variables of `save()`, each with its value.
    pub saved: Vec<(Value, Value)>,
    /// Number of variables in an entry.
    pub slots: usize,
    /// Whether the histogram uses timestamps of the clock.
    pub timestamps: bool,
    /// Whether timestamps are in microseconds.
    pub in_usecs: bool,
    /// Whether the command only identifies a histogram to remove.
    pub(super) remove: bool,
    /// Histograms that actions created on other events.
    pub(super) helpers: Vec<Helper>,
}

/// A histogram that the kernel creates on another event to use one of its fields as a variable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Helper {
    pub(super) system: String,
    pub(super) event: String,
    pub(super) command: Vec<u8>,
}

impl Hist {
    /// The keys.
    pub fn keys(&self) -> &[Value] {
        self.fields.get(self.values..).unwrap_or_default()
    }

    /// Finds a variable of the command by name.
    pub(super) fn variable(&self, name: &[u8]) -> Option<&Value> {
        self.fields
            .iter()
            .find(|value| value.flags.has(Flags::VAR) && value.variable.as_deref() == Some(name))
    }

    /// Whether the histogram is on this event.
    pub(super) fn is_on(&self, system: &[u8], event: &[u8]) -> bool {
        raw(&self.event.system) == system && raw(&self.event.name) == event
    }

    /// The events of `onmatch()`.
    pub(super) fn matched_events(&self) -> Vec<(String, String)> {
        let names = |action: &Action| match &action.handler {
            Handler::Match { system, event } => Some((system.clone(), event.clone())),
            _ => None,
        };
        self.actions.iter().filter_map(names).collect()
    }

    /// Returns the number of a reference to a variable, and adds the reference if it is new. Returns `None` if there
    /// are too many (`create_var_ref()`).
    pub(super) fn refer_to(&mut self, variable: &Value, event: Option<(Vec<u8>, Vec<u8>)>) -> Option<usize> {
        if let Some(at) = self.references.iter().position(|reference| reference.slot == variable.slot) {
            return Some(at);
        }
        let reference = self.references.len();
        if reference >= REFERENCES_MAX {
            return None;
        }
        let flags = variable.flags.only(Flags::TIMESTAMP.and(Flags::USECS));
        self.references.push(Value {
            slot: variable.slot,
            size: variable.size,
            signed: variable.signed,
            ty: variable.ty.clone(),
            event,
            name: variable.variable.clone().or_else(|| variable.name.clone()),
            reference,
            ..Value::new(Flags::VAR_REF.and(flags), Function::Reference)
        });
        self.read_once.push(false);
        Some(reference)
    }

    /// Adds a variable to the entry (`tracing_map_add_var()`).
    pub(super) fn add_slot(&mut self) -> Result<Slot, Errno> {
        if self.slots >= VARS_MAX {
            return Err(Errno::INVAL);
        }
        self.slots += 1;
        Ok(Slot { hist: self.id, at: self.slots - 1 })
    }

    /// Number of texts and stack traces that an entry stores for variables.
    pub(super) fn texts(&self) -> usize {
        let is_text = |value: &Value| value.flags.has(Flags::STRING.and(Flags::STACKTRACE));
        let values = self.fields.iter().take(self.values);
        let own = values.filter(|value| value.flags.has(Flags::VAR) && is_text(value));
        let made = self.field_variables.iter().chain(&self.saved).filter(|(_, value)| is_text(value));
        own.count() + made.count()
    }

    /// Whether the histogram uses variables (`has_hist_vars()`).
    pub(super) fn has_variables(&self) -> bool {
        !self.references.is_empty() || self.fields.iter().any(Value::has_variables)
    }

    /// Whether two histograms are equal for the kernel, apart from their filters (`hist_trigger_match()`).
    pub(super) fn matches(&self, other: &Self) -> bool {
        fn field(value: &Value) -> Option<(&str, &str, usize, bool)> {
            value.field.as_ref().map(|field| (&*field.name, &*field.ty, field.size, field.signed))
        }
        let same = |a: &Value, b: &Value| {
            a.flags == b.flags
                && field(a) == field(b)
                && (a.offset, a.size, a.signed) == (b.offset, b.size, b.signed)
                && a.variable == b.variable
        };
        self.values == other.values
            && self.fields.len() == other.fields.len()
            && self.sort == other.sort
            && self.fields.iter().zip(&other.fields).all(|(a, b)| same(a, b))
            && self.actions.len() == other.actions.len()
            && self.actions.iter().zip(&other.actions).all(|(a, b)| a.matches(b))
    }

    /// Whether the keys of both histograms have the same types (`compatible_keys()`).
    pub(super) fn has_keys_like(&self, other: &Self) -> bool {
        let alike = |(a, b): (&Value, &Value)| a.ty == b.ty && a.size == b.size && a.signed == b.signed;
        self.keys().len() == other.keys().len() && self.keys().iter().zip(other.keys()).all(alike)
    }

    /// Text of the histogram in `trigger`, without filter and state (`event_hist_trigger_print()`).
    pub(super) fn read_back(&self) -> Vec<u8> {
        let mut text = b"keys=".to_vec();
        let key = |key: &Value| match &key.field {
            Some(field) if key.flags.has(Flags::STACKTRACE) => {
                [&raw(&field.name)[..], b".stacktrace"].concat()
            }
            None if key.flags.has(Flags::STACKTRACE) => b"common_stacktrace".to_vec(),
            _ => key.read_back(),
        };
        text.extend(self.keys().iter().map(key).collect::<Vec<_>>().join(&b','));
        text.extend(b":vals=");
        let fields = self.fields.iter().take(self.values).enumerate();
        let (variables, values): (Vec<_>, Vec<_>) =
            fields.partition(|(_, value)| value.flags.has(Flags::VAR));
        let shown = values.into_iter().filter_map(|(at, value)| match at {
            0 if self.no_hitcount => None,
            0 => Some(b"hitcount".to_vec()),
            _ => Some(value.read_back()),
        });
        text.extend(shown.collect::<Vec<_>>().join(&b','));
        if !variables.is_empty() {
            text.push(b':');
            let shown: Vec<_> = variables.into_iter().map(|(_, value)| value.read_back()).collect();
            text.extend(shown.join(&b','));
        }
        text.extend(b":sort=");
        let sorted: Vec<_> = self.sort.iter().map(|key| key.read_back(self)).collect();
        text.extend(sorted.join(&b','));
        text.extend(format!(":size={}", 1u32 << self.bits).bytes());
        if self.timestamps {
            text.extend(b":clock=");
            text.extend(self.clock.as_deref().unwrap_or(b"global"));
        }
        if self.no_hitcount {
            text.extend(b":nohitcount");
        }
        text.extend(self.actions.iter().flat_map(|action| action.read_back(&self.saved)));
        text
    }

    /// Whether an action takes snapshots.
    pub fn takes_snapshots(&self) -> bool {
        self.takes_snapshot_before(self.actions.len())
    }

    pub(super) fn takes_snapshot_before(&self, end: usize) -> bool {
        self.actions.iter().take(end).any(|action| action.kind == ActionKind::Snapshot)
    }

    /// Whether a value or key is the stack at the hit.
    pub fn reads_stack(&self) -> bool {
        self.fields.iter().any(|value| value.flags.has(Flags::STACKTRACE) && value.field.is_none())
    }

    /// Names of the synthetic events that the actions generate.
    pub fn synthetic_events(&self) -> impl Iterator<Item = String> + '_ {
        let traces = self.actions.iter().filter(|action| action.kind == ActionKind::Trace);
        traces.map(|action| latin1(action.synthetic_name()))
    }
}
