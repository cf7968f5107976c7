//! A checked histogram, created in the order of the kernel's `create_hist_data()`.

use std::sync::Arc;

use rustix::io::Errno;

use super::super::Span;
use super::action::{Action, Deed, Handler};
use super::command::{Command, VARS_MAX};
use super::dialect::Feature;
use super::error::{ErrorKind, Log};
use super::expr::Expr;
use super::resolve::{Definition, REFERENCES_MAX, Resolver};
use super::set::Set;
use super::split::Pieces;
use super::value::{Flags, Function, HistId, STACK_SIZE, Slot, TEXT_MAX, Value};
use super::{World, sort};
use crate::event::Format;
use crate::event::{
    InstanceId,
    dynamic::{latin1, raw},
};

/// Maximum number of keys, and of values with the hit count: `TRACING_MAP_KEYS_MAX`, `TRACING_MAP_VALS_MAX`.
const KEYS_MAX: usize = 3;
const VALUES_MAX: usize = 3;

/// Maximum size of a key in bytes: `HIST_KEY_SIZE_MAX`.
const KEY_MAX: u32 = TEXT_MAX + STACK_SIZE;

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
    /// Whether the clock is read.
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
        let events = self.actions.iter().filter_map(|action| match &action.handler {
            Handler::Match { system, event } => Some((system.clone(), event.clone())),
            _ => None,
        });
        events.collect()
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
        let mut value = Value::new(Flags::VAR_REF.and(flags), Function::Reference);
        value.slot = variable.slot;
        value.size = variable.size;
        value.signed = variable.signed;
        value.ty.clone_from(&variable.ty);
        value.event = event;
        value.name = variable.variable.clone().or_else(|| variable.name.clone());
        value.reference = reference;
        self.references.push(value);
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
}

/// The inputs for creating a histogram.
pub(super) struct Making<'a> {
    pub(super) set: &'a Set,
    pub(super) world: &'a dyn World,
    pub(super) command: &'a Command,
    pub(super) event: &'a Arc<Format>,
    pub(super) given: bool,
    pub(super) instance: InstanceId,
}

impl Making<'_> {
    /// Creates the histogram. Its actions are parsed but not yet resolved.
    pub(super) fn make(&self, id: HistId, remove: bool, log: &mut Log) -> Result<Hist, Errno> {
        let command = self.command;
        let part = |span: Span| command.part(span).to_vec();
        let mut hist = Hist {
            id,
            instance: self.instance,
            event: Arc::clone(self.event),
            name: command.name.map(part),
            bits: command.bits,
            clock: command.clock.map(part),
            no_hitcount: command.no_hitcount,
            fields: Vec::new(),
            values: 0,
            variables: 0,
            key_size: 0,
            sort: Vec::new(),
            references: Vec::new(),
            read_once: Vec::new(),
            actions: Vec::new(),
            field_variables: Vec::new(),
            saved: Vec::new(),
            slots: 0,
            timestamps: false,
            in_usecs: false,
            remove,
            helpers: Vec::new(),
        };
        for action in &command.actions {
            hist.actions.push(super::action::read(&command.text, *action, self.world, log)?);
        }
        let mut definitions = self.definitions(log)?;
        self.make_values(&mut hist, &definitions, log)?;
        self.make_variables(&mut hist, &mut definitions, log)?;
        hist.values = hist.fields.len();
        self.make_keys(&mut hist, &definitions, log)?;
        hist.sort = sort::read(&hist, &command.text, command.sort, log)?;
        let mut fields = std::mem::take(&mut hist.fields);
        for variable in fields.iter_mut().filter(|value| value.flags.has(Flags::VAR)) {
            variable.slot = hist.add_slot()?;
        }
        hist.fields = fields;
        Ok(hist)
    }

    fn resolver<'a>(
        &'a self,
        hist: &'a mut Hist,
        definitions: &'a [Definition],
        log: &'a mut Log,
    ) -> Resolver<'a> {
        Resolver {
            set: self.set,
            world: self.world,
            text: &self.command.text,
            given: self.given,
            definitions,
            hist,
            log,
        }
    }

    /// Parses the defined variables and their expressions (`parse_var_defs()`).
    fn definitions(&self, log: &mut Log) -> Result<Vec<Definition>, Errno> {
        let text = &self.command.text;
        let mut definitions = Vec::new();
        for assignment in &self.command.assignments {
            let mut pieces = Pieces::of(text, *assignment);
            for _ in 0..VARS_MAX {
                let Some(piece) = pieces.up_to(b',') else { break };
                let mut sides = Pieces::of(text, piece);
                let name = sides.up_to(b'=').unwrap_or(piece);
                let kind = match sides.rest() {
                    None => ErrorKind::MalformedAssignment,
                    Some(_) if definitions.len() == VARS_MAX => ErrorKind::TooManyVars,
                    Some(left) => {
                        definitions.push(Definition { name: name.of(text).to_vec(), left });
                        continue;
                    }
                };
                log.add(kind, name.of(text), self.given.then_some(name));
                return Err(Errno::INVAL);
            }
        }
        Ok(definitions)
    }

    fn make_values(&self, hist: &mut Hist, definitions: &[Definition], log: &mut Log) -> Result<(), Errno> {
        hist.fields.extend(Value::make(None, Flags::HITCOUNT, None));
        let listed = self.make_listed_values(hist, definitions, log)?;
        if hist.no_hitcount && listed == 0 {
            log.add_anywhere(ErrorKind::NeedValue);
            return Err(Errno::NOENT);
        }
        Ok(())
    }

    /// Adds the values of `vals=`. Returns their number without the hit count.
    fn make_listed_values(
        &self,
        hist: &mut Hist,
        definitions: &[Definition],
        log: &mut Log,
    ) -> Result<usize, Errno> {
        let Some(listed) = self.command.values else { return Ok(0) };
        let text = &self.command.text;
        let mut pieces = Pieces::of(text, listed);
        let (mut count, mut seen_hitcount) = (0, false);
        for _ in 0..VALUES_MAX {
            if count + 1 >= VALUES_MAX {
                break;
            }
            let Some(piece) = pieces.up_to(b',') else { break };
            let only_once = self.world.dialect().has(Feature::NoHitcount);
            if piece.of(text) == b"hitcount" && !(only_once && std::mem::replace(&mut seen_hitcount, true)) {
                continue;
            }
            count += 1;
            let expr = Expr::read(text, piece);
            let mut resolver = self.resolver(hist, definitions, log);
            let value = resolver.expression(&expr, Flags::NONE, None)?;
            check_value_modifiers(&value)
                .map_err(|()| resolver.error(ErrorKind::BadFieldModifier, expr.left))?;
            hist.fields.push(value);
        }
        match pieces.rest() {
            Some(rest) if rest.of(text) != b"hitcount" => Err(Errno::INVAL),
            _ => Ok(count),
        }
    }

    fn make_variables(
        &self,
        hist: &mut Hist,
        definitions: &mut [Definition],
        log: &mut Log,
    ) -> Result<(), Errno> {
        let text = &self.command.text;
        for at in 0..definitions.len() {
            let Some(Definition { name, left }) = definitions.get(at).cloned() else { break };
            if !hist.remove && self.set.finds_variable(hist, &name) {
                // The kernel searches for the text of the name, as for every error.
                log.add(ErrorKind::DuplicateVar, &name, None);
                return Err(Errno::INVAL);
            }
            hist.variables += 1;
            let expr = Expr::read(text, left);
            if let Some(definition) = definitions.get_mut(at) {
                definition.left = expr.left;
            }
            let mut resolver = self.resolver(hist, definitions, log);
            let mut value = resolver.expression(&expr, Flags::VAR, Some(&name))?;
            check_value_modifiers(&value)
                .map_err(|()| resolver.error(ErrorKind::BadFieldModifier, expr.left))?;
            if value.flags.has(Flags::EXECNAME) {
                value.flags = Flags::STRING.and(Flags::VAR).and(Flags::EXECNAME);
                value.size = TEXT_MAX;
                value.signed = false;
                value.ty = Some("char[]".to_owned());
                value.function = Function::Execname;
            }
            hist.fields.push(value);
        }
        Ok(())
    }

    fn make_keys(&self, hist: &mut Hist, definitions: &[Definition], log: &mut Log) -> Result<(), Errno> {
        let text = &self.command.text;
        let mut pieces = Pieces::of(text, self.command.keys);
        for _ in 0..KEYS_MAX {
            let Some(piece) = pieces.up_to(b',') else { break };
            let mut key = if piece.of(text) == b"stacktrace" {
                Value::make(None, Flags::KEY.and(Flags::STACKTRACE), None).ok_or(Errno::NOMEM)?
            } else {
                let expr = Expr::read(text, piece);
                let mut resolver = self.resolver(hist, definitions, log);
                let key = resolver.expression(&expr, Flags::KEY, None)?;
                if key.has_variables() {
                    return Err(resolver.error(ErrorKind::InvalidRefKey, expr.left));
                }
                key
            };
            key.size = key.size.next_multiple_of(8);
            key.offset = hist.key_size;
            hist.key_size += key.size;
            hist.fields.push(key);
            if hist.key_size > KEY_MAX {
                return Err(Errno::INVAL);
            }
        }
        if pieces.rest().is_some() { Err(Errno::INVAL) } else { Ok(()) }
    }
}

/// Checks that a value or variable has no modifier that is valid only for keys.
fn check_value_modifiers(value: &Value) -> Result<(), ()> {
    let rounded = Flags::BUCKET.and(Flags::LOG2);
    let bad = if value.flags.has(Flags::VAR) {
        rounded.and(Flags::GRAPH).and(Flags::PERCENT)
    } else {
        rounded.and(Flags::SYM).and(Flags::SYM_OFFSET).and(Flags::SYSCALL).and(Flags::STACKTRACE)
    };
    if value.flags.has(bad) { Err(()) } else { Ok(()) }
}

impl Hist {
    /// Whether two histograms are equal for the kernel, apart from their filters (`hist_trigger_match()`).
    pub(super) fn matches(&self, other: &Self) -> bool {
        let same_field = |a: &Value, b: &Value| match (&a.field, &b.field) {
            (None, None) => true,
            (Some(a), Some(b)) => {
                a.name == b.name && a.ty == b.ty && a.size == b.size && a.signed == b.signed
            }
            _ => false,
        };
        let same = |a: &Value, b: &Value| {
            a.flags == b.flags
                && same_field(a, b)
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
        let saved: Vec<Value> = self.saved.iter().map(|(variable, _)| variable.clone()).collect();
        for action in &self.actions {
            text.extend(action.read_back(&saved));
        }
        text
    }

    /// Whether an action takes snapshots.
    pub fn takes_snapshots(&self) -> bool {
        self.takes_snapshot_before(self.actions.len())
    }

    pub(super) fn takes_snapshot_before(&self, end: usize) -> bool {
        self.actions.iter().take(end).any(|action| action.deed == Deed::Snapshot)
    }

    /// Names of the synthetic events that the actions generate.
    pub fn synthetic_events(&self) -> impl Iterator<Item = String> + '_ {
        let traces = self.actions.iter().filter(|action| action.deed == Deed::Trace);
        traces.map(|action| latin1(action.synthetic_name()))
    }
}
