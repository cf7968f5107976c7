//! Creates a histogram from a command, in the order of the kernel's `create_hist_data()`.

use std::sync::Arc;

use rustix::io::Errno;

use crate::{
    event::{Format, InstanceId},
    lang::{
        Span,
        hist::{
            World,
            checked::Hist,
            command::{Command, VARS_MAX},
            dialect::Feature,
            error::{ErrorKind, Log},
            expr::Expr,
            resolve::{Definition, Resolver},
            set::Set,
            sort,
            split::Pieces,
            value::{Flags, Function, HistId, STACK_SIZE, TEXT_MAX, Value},
        },
    },
};

/// Maximum number of keys, and of values with the hit count: `TRACING_MAP_KEYS_MAX`, `TRACING_MAP_VALS_MAX`.
const KEYS_MAX: usize = 3;
const VALUES_MAX: usize = 3;

/// Maximum size of a key in bytes: `HIST_KEY_SIZE_MAX`.
const KEY_MAX: u32 = TEXT_MAX + STACK_SIZE;

pub(crate) struct Making<'a> {
    pub(crate) set: &'a Set,
    pub(crate) world: &'a dyn World,
    pub(crate) command: &'a Command,
    pub(crate) event: &'a Arc<Format>,
    pub(crate) given: bool,
    pub(crate) instance: InstanceId,
}

impl Making<'_> {
    /// Creates the histogram. Its actions are parsed but not yet resolved.
    pub(crate) fn make(&self, id: HistId, remove: bool, log: &mut Log) -> Result<Hist, Errno> {
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
            hist.actions.push(crate::lang::hist::action::read(&command.text, *action, self.world, log)?);
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
                return Err(log.add(kind, name.of(text), self.given.then_some(name)));
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
            let value = value(&mut resolver, &expr, Flags::NONE, None)?;
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
                return Err(log.add(ErrorKind::DuplicateVar, &name, None));
            }
            hist.variables += 1;
            let expr = Expr::read(text, left);
            if let Some(definition) = definitions.get_mut(at) {
                definition.left = expr.left;
            }
            let mut resolver = self.resolver(hist, definitions, log);
            let mut value = value(&mut resolver, &expr, Flags::VAR, Some(&name))?;
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

/// Resolves a value or variable, which must not have a modifier that is valid only for keys.
fn value(
    resolver: &mut Resolver<'_>,
    expr: &Expr,
    flags: Flags,
    variable: Option<&[u8]>,
) -> Result<Value, Errno> {
    let value = resolver.expression(expr, flags, variable)?;
    let rounded = Flags::BUCKET.and(Flags::LOG2);
    let bad = if value.flags.has(Flags::VAR) {
        rounded.and(Flags::GRAPH).and(Flags::PERCENT)
    } else {
        rounded.and(Flags::SYM).and(Flags::SYM_OFFSET).and(Flags::SYSCALL).and(Flags::STACKTRACE)
    };
    let is_bad = value.flags.has(bad);
    if is_bad { Err(resolver.error(ErrorKind::BadFieldModifier, expr.left)) } else { Ok(value) }
}
