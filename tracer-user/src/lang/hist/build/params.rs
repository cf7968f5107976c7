//! Resolves actions after their histogram is known: tracked variables, saved fields and parameters of synthetic events
//! (`create_actions()`).
//!
//! A named field becomes a variable, either of this histogram or of a new histogram on the other event.

use rustix::io::Errno;

use crate::{
    event::{
        dynamic::{latin1, raw},
        synthetic,
    },
    lang::{
        Span,
        hist::{
            World,
            action::{Action, ActionKind, Handler, PARAMS_MAX, Tracked},
            checked::{Helper, Hist},
            error::{ErrorKind, Log},
            resolve::Resolver,
            set::Set,
            split::Pieces,
            value::{Flags, Function, Value},
        },
    },
};

/// Maximum number of fields that become variables: `SYNTH_FIELDS_MAX`.
const MADE_MAX: usize = PARAMS_MAX;

pub(crate) struct Params<'a> {
    pub(crate) set: &'a mut Set,
    pub(crate) world: &'a dyn World,
    pub(crate) text: &'a [u8],
    pub(crate) hist: &'a mut Hist,
    pub(crate) log: &'a mut Log,
}

/// System and event as written.
type EventName = (Vec<u8>, Vec<u8>);

impl Params<'_> {
    pub(crate) fn create(&mut self) -> Result<(), Errno> {
        for at in 0..self.hist.actions.len() {
            let Some(mut action) = self.hist.actions.get(at).cloned() else { break };
            match &mut action.handler {
                Handler::Match { .. } => {}
                Handler::Max(tracked) | Handler::Change(tracked) => self.track(tracked)?,
            }
            match action.kind {
                ActionKind::Trace => self.trace(&mut action)?,
                ActionKind::Save => self.save(&action)?,
                // An instance can have only one such action (`tracing_snapshot_cond_enable()`).
                ActionKind::Snapshot
                    if self.set.takes_snapshots(self.hist.instance)
                        || self.hist.takes_snapshot_before(at) =>
                {
                    return Err(Errno::BUSY);
                }
                ActionKind::Snapshot => {}
            }
            if let Some(known) = self.hist.actions.get_mut(at) {
                *known = action;
            }
        }
        Ok(())
    }

    fn error(&mut self, kind: ErrorKind, span: Span) -> Errno {
        self.log.add(kind, span.of(self.text), Some(span))
    }

    fn resolver(&mut self) -> Resolver<'_> {
        Resolver {
            set: self.set,
            world: self.world,
            text: self.text,
            given: true,
            definitions: &[],
            hist: self.hist,
            log: self.log,
        }
    }

    /// `track_data_create()`
    fn track(&mut self, tracked: &mut Tracked) -> Result<(), Errno> {
        let Some(name) = tracked.text.strip_prefix(b"$") else {
            return Err(self.log.add(ErrorKind::OnxNotVar, &tracked.text, None));
        };
        let Some(variable) = self.hist.variable(name).cloned() else {
            return Err(self.log.add(ErrorKind::OnxVarNotFound, name, None));
        };
        tracked.reference = self.hist.refer_to(&variable, None).ok_or(Errno::NOMEM)?;
        let slot = self.hist.add_slot();
        let slot = slot.map_err(|_| self.log.add_anywhere(ErrorKind::OnxVarCreateFailed))?;
        tracked.slot = slot.at;
        Ok(())
    }

    fn save(&mut self, action: &Action) -> Result<(), Errno> {
        if !self.hist.saved.is_empty() {
            self.log.add_anywhere(ErrorKind::TooManySaveActions);
            return Err(Errno::EXIST);
        }
        for place in &action.places {
            match self.field_variable(*place) {
                Ok(made) => self.hist.saved.push(made),
                Err((errno, left)) => {
                    self.error(ErrorKind::FieldVarCreateFailed, left);
                    return Err(errno);
                }
            }
        }
        Ok(())
    }

    /// Resolves the parameters of a synthetic event (`trace_action_create()`).
    fn trace(&mut self, action: &mut Action) -> Result<(), Errno> {
        let name = action.synthetic_name().to_vec();
        let Some(event) = self.world.synthetic(&latin1(&name)) else {
            return Err(self.log.add(ErrorKind::SynthEventNotFound, &name, None));
        };
        let matched = match &action.handler {
            Handler::Match { system, event } => Some((raw(system), raw(event))),
            _ => None,
        };
        for place in action.places.clone() {
            let mut pieces = Pieces::of(self.text, place);
            let first = pieces.up_to(b'.').unwrap_or(place);
            let (named, param) = if pieces.rest().is_none() {
                (None, place)
            } else {
                let second = pieces.up_to(b'.').unwrap_or(place);
                let param = pieces.rest().ok_or(Errno::INVAL)?;
                let part = |span: Span| span.of(self.text).to_vec();
                (Some((part(first), part(second))), param)
            };
            let (variable, left) = if param.of(self.text).first() == Some(&b'$') {
                (self.find_variable(named.as_ref(), matched.as_ref(), param), param)
            } else {
                self.variable_of_field(named.as_ref(), matched.as_ref(), param)
            };
            let variable = variable.ok_or(Errno::INVAL)?;
            if !fits(&event, action.references.len(), &variable) {
                return Err(self.error(ErrorKind::SynthTypeMismatch, left));
            }
            action.references.push(self.hist.refer_to(&variable, named).ok_or(Errno::NOMEM)?);
        }
        if action.references.len() != event.fields.len() {
            return Err(self.log.add(ErrorKind::SynthCountMismatch, &raw(&event.name), None));
        }
        Ok(())
    }

    /// `[SYSTEM.EVENT.]$VAR` (`trace_action_find_var()`).
    fn find_variable(
        &mut self,
        named: Option<&EventName>,
        matched: Option<&EventName>,
        param: Span,
    ) -> Option<Value> {
        let name_span = Span::new(param.start + 1, param.end);
        let name = name_span.of(self.text).to_vec();
        let here = named.is_none_or(|(system, event)| self.hist.is_on(system, event));
        let own = if here { self.hist.variable(&name).cloned() } else { None };
        let found = own.or_else(|| {
            let event = named.or(matched).cloned();
            self.resolver().find_event_variable(event.as_ref(), &name, Some(name_span))
        });
        if found.is_none() {
            self.error(ErrorKind::ParamNotFound, name_span);
        }
        found
    }

    /// Resolves `[SYSTEM.EVENT.]FIELD`. Also returns the remaining part of its text
    /// (`trace_action_create_field_var()`).
    fn variable_of_field(
        &mut self,
        named: Option<&EventName>,
        matched: Option<&EventName>,
        param: Span,
    ) -> (Option<Value>, Span) {
        let here = named.is_none_or(|(system, event)| self.hist.is_on(system, event));
        let mut left = param;
        if here {
            match self.field_variable(param) {
                Ok((variable, value)) => {
                    let (_, rest) = crate::lang::hist::expr::Name::read(self.text, param);
                    self.hist.field_variables.push((variable.clone(), value));
                    return (Some(variable), rest);
                }
                Err((_, rest)) => left = rest,
            }
        }
        let Some((system, event)) = named.or(matched) else { return (None, left) };
        let (system, event) = (latin1(system), latin1(event));
        (self.other_events_field(&system, &event, left), left)
    }

    /// Creates a variable for a field of this event (`create_field_var()`). An error includes the remaining part of the
    /// field's text.
    fn field_variable(&mut self, field: Span) -> Result<(Value, Value), (Errno, Span)> {
        if self.hist.field_variables.len() >= MADE_MAX {
            return Err((self.error(ErrorKind::TooManyFieldVars, field), field));
        }
        let (value, left) = self.resolver().atom(field, Flags::VAR);
        let value = match value {
            Ok(value) => value,
            Err(errno) => {
                self.error(ErrorKind::FieldVarParseFailed, left);
                return Err((errno, left));
            }
        };
        let name = left.of(self.text).to_vec();
        let is_taken = self.set.finds_variable(self.hist, &name);
        let slot = if is_taken { Err(Errno::INVAL) } else { self.hist.add_slot() };
        let Ok(slot) = slot else {
            return Err((self.error(ErrorKind::VarCreateFindFailed, left), left));
        };
        let variable = Value {
            slot,
            size: value.size,
            ty: value.ty.clone(),
            variable: Some(name),
            ..Value::new(Flags::VAR, Function::Nothing)
        };
        Ok((variable, value))
    }

    /// Creates a variable for a field of another event, with another histogram on that event
    /// (`create_field_var_hist()`).
    fn other_events_field(&mut self, system: &str, event: &str, field: Span) -> Option<Value> {
        let name = field.of(self.text).to_vec();
        let refuse = |this: &mut Self, kind| {
            this.error(kind, field);
            None
        };
        if self.hist.helpers.len() >= MADE_MAX {
            return refuse(self, ErrorKind::TooManyFieldVars);
        }
        if !self.world.has_event(system, event) {
            return refuse(self, ErrorKind::EventFileNotFound);
        }
        let Some((other, filter)) = self.set.like_on(self.hist, system, event) else {
            return refuse(self, ErrorKind::HistNotFound);
        };
        let made = [b"synthetic_", &name[..]].concat();
        let named = Some((raw(system), raw(event)));
        if let Some(variable) = self.resolver().find_event_variable(named.as_ref(), &made, None) {
            return Some(variable);
        }
        // The kernel writes the field names of the keys here, so every key must be a field.
        let keys: Option<Vec<Vec<u8>>> =
            other.keys().iter().map(|key| key.field.as_ref().map(|field| raw(&field.name))).collect();
        let Some(keys) = keys else { return refuse(self, ErrorKind::HistCreateFailed) };
        let mut command = [b"keys=", &keys.join(&b',')[..], b":", &made, b"=", &name].concat();
        if let Some(filter) = filter {
            command.extend([b" if ", &filter[..]].concat());
        }
        if self.set.put(self.hist.instance, system, event, &command, self.world, self.log).is_err() {
            return refuse(self, ErrorKind::HistCreateFailed);
        }
        let found = self.resolver().find_event_variable(named.as_ref(), &made, None);
        if found.is_none() {
            return refuse(self, ErrorKind::SynthVarNotFound);
        }
        self.hist.helpers.push(Helper { system: system.to_owned(), event: event.to_owned(), command });
        found
    }
}

/// Whether a variable matches a field of the synthetic event (`check_synth_field()`).
fn fits(event: &synthetic::Event, at: usize, variable: &Value) -> bool {
    let Some(field) = event.fields.get(at) else { return false };
    let ty = variable.ty.as_deref().unwrap_or_default();
    let as_text = ty.contains("char[") && field.is_text() && field.is_dynamic();
    let as_stack = ty.contains("long[") && field.is_stack();
    let as_number =
        field.size() == variable.size as usize && (field.is_text() || field.is_signed() == variable.signed);
    as_text || as_stack || field.field_type() == ty || as_number
}
