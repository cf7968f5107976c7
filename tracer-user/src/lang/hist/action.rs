//! Parser of actions: `onmatch(SYSTEM.EVENT).ACTION`, `onmax($VAR).ACTION`, `onchange($VAR).ACTION`
//! (`parse_actions()`).
//!
//! ACTION is `save(FIELD[,FIELD]...)`, `snapshot()`, `trace(SYNTHETIC,PARAM...)` or `SYNTHETIC(PARAM...)`. This module
//! looks up only the event of `onmatch()`. `build/params.rs` resolves the parameters after the rest of the histogram is
//! known.

use rustix::io::Errno;

use super::super::Span;
use super::World;
use super::error::{ErrorKind, Log};
use super::split::{Pieces, strip};
use super::value::Value;
use crate::event::dynamic::{latin1, raw};

/// Maximum number of parameters of an action: `SYNTH_FIELDS_MAX`.
pub(super) const PARAMS_MAX: usize = 64;

/// The condition of an action.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Handler {
    /// The key of this event equals a key of the other event.
    Match {
        /// System of the other event.
        system: String,
        /// Name of the other event.
        event: String,
    },
    /// A variable exceeds its previous maximum.
    Max(Tracked),
    /// A variable differs from its previous value.
    Change(Tracked),
}

/// The variable of `onmax()` and `onchange()`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tracked {
    /// Text of the variable, with `$`.
    pub text: Vec<u8>,
    /// Number of the reference to the variable.
    pub reference: usize,
    /// Number of the variable that stores the last value.
    pub slot: usize,
}

/// The effect of an action.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ActionKind {
    /// Saves fields in the entry.
    Save,
    /// Generates a synthetic event.
    Trace,
    /// Takes a snapshot.
    Snapshot,
}

/// An action.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Action {
    /// The condition.
    pub handler: Handler,
    /// The effect.
    pub kind: ActionKind,
    /// The word before the parenthesis.
    pub word: Vec<u8>,
    /// Whether the word is `trace`, whose first parameter names the synthetic event.
    pub keyword: bool,
    /// Name of the synthetic event, if `trace` gives it.
    pub synthetic: Option<Vec<u8>>,
    /// The parameters.
    pub params: Vec<Vec<u8>>,
    /// Place of each parameter in the command.
    pub(super) places: Vec<Span>,
    /// Number of the reference for each parameter of a synthetic event.
    pub references: Vec<usize>,
}

impl Action {
    /// Name of the synthetic event.
    pub fn synthetic_name(&self) -> &[u8] {
        if self.keyword { self.synthetic.as_deref().unwrap_or_default() } else { &self.word }
    }

    /// The tracked variable, if any.
    pub fn tracked(&self) -> Option<&Tracked> {
        match &self.handler {
            Handler::Max(tracked) | Handler::Change(tracked) => Some(tracked),
            Handler::Match { .. } => None,
        }
    }

    /// Whether two actions are equal (`actions_match()`).
    pub(super) fn matches(&self, other: &Self) -> bool {
        let same_handler = match (&self.handler, &other.handler) {
            (Handler::Max(a), Handler::Max(b)) | (Handler::Change(a), Handler::Change(b)) => a.text == b.text,
            (a, b) => a == b,
        };
        same_handler
            && self.kind == other.kind
            && self.params == other.params
            && self.synthetic_name() == other.synthetic_name()
    }

    /// Text of the action when read back; `saved` are the variables of `save()`.
    pub(super) fn read_back(&self, saved: &[(Value, Value)]) -> Vec<u8> {
        let handler = match &self.handler {
            Handler::Match { system, event } => [b"onmatch(", &raw(system)[..], b".", &raw(event)].concat(),
            Handler::Max(tracked) => [b"onmax(", &tracked.text[..]].concat(),
            Handler::Change(tracked) => [b"onchange(", &tracked.text[..]].concat(),
        };
        let params: Vec<&[u8]> = match self.kind {
            ActionKind::Save => saved.iter().filter_map(|(saved, _)| saved.variable.as_deref()).collect(),
            ActionKind::Trace => self.synthetic.iter().chain(&self.params).map(Vec::as_slice).collect(),
            ActionKind::Snapshot => Vec::new(),
        };
        [b":", &handler[..], b").", &self.word, b"(", &params.join(&b','), b")"].concat()
    }
}

pub(super) fn read(text: &[u8], part: Span, world: &dyn World, log: &mut Log) -> Result<Action, Errno> {
    let mut reader = Reader { text, log };
    let bytes = part.of(text);
    let behind = |handler: &str| {
        bytes.starts_with(handler.as_bytes()).then(|| Span::new(part.start + handler.len(), part.end))
    };
    if let Some(rest) = behind("onmatch(") {
        let (handler, rest) = reader.matched(rest, world)?;
        return reader.read_action(rest, handler);
    }
    let (rest, handler): (_, fn(Tracked) -> Handler) = match (behind("onmax("), behind("onchange(")) {
        (Some(rest), _) => (rest, Handler::Max),
        (_, Some(rest)) => (rest, Handler::Change),
        _ => return Err(Errno::INVAL),
    };
    let mut pieces = Pieces::of(text, rest);
    let variable = pieces.up_to(b')').ok_or(Errno::INVAL)?;
    let rest = pieces.rest().ok_or(Errno::INVAL)?;
    let tracked = Tracked { text: variable.of(text).to_vec(), ..Tracked::default() };
    reader.read_action(rest, handler(tracked))
}

struct Reader<'a> {
    text: &'a [u8],
    log: &'a mut Log,
}

impl Reader<'_> {
    fn error(&mut self, kind: ErrorKind, span: Span) -> Errno {
        self.log.add(kind, span.of(self.text), Some(span))
    }

    /// `SYSTEM.EVENT)`
    fn matched(&mut self, part: Span, world: &dyn World) -> Result<(Handler, Span), Errno> {
        let mut pieces = Pieces::of(self.text, part);
        let names = pieces.up_to(b')').unwrap_or(part);
        let Some(rest) = pieces.rest() else {
            return Err(self.error(ErrorKind::NoClosingParen, names));
        };
        let mut names = Pieces::of(self.text, names);
        let system = names.up_to(b'.').unwrap_or(part);
        let Some(event) = names.rest() else {
            return Err(self.error(ErrorKind::SubsystemNotFound, system));
        };
        let name = |span: Span| latin1(span.of(self.text));
        if !world.has_event(&name(system), &name(event)) {
            return Err(self.error(ErrorKind::InvalidSubsystemEvent, event));
        }
        Ok((Handler::Match { system: name(system), event: name(event) }, rest))
    }

    /// `.ACTION(PARAMS)` (`action_parse()`).
    fn read_action(&mut self, part: Span, handler: Handler) -> Result<Action, Errno> {
        let mut pieces = Pieces::of(self.text, part);
        pieces.up_to(b'.');
        if pieces.rest().is_none() {
            return Err(self.log.add_anywhere(ErrorKind::ActionNotFound));
        }
        let word = pieces.up_to(b'(').unwrap_or(part);
        if pieces.rest().is_none() {
            return Err(self.log.add_anywhere(ErrorKind::ActionNotFound));
        }
        let bytes = word.of(self.text);
        let params = pieces.up_to(b')').unwrap_or(part);
        let closed = pieces.rest().is_some();
        let kind = if bytes.starts_with(b"save") {
            ActionKind::Save
        } else if bytes.starts_with(b"snapshot") {
            ActionKind::Snapshot
        } else {
            ActionKind::Trace
        };
        let mut action = Action {
            handler,
            kind,
            word: bytes.to_vec(),
            keyword: kind == ActionKind::Trace && bytes.starts_with(b"trace"),
            synthetic: None,
            params: Vec::new(),
            places: Vec::new(),
            references: Vec::new(),
        };
        if kind == ActionKind::Snapshot {
            if !closed {
                return Err(self.error(ErrorKind::NoClosingParen, params));
            }
        } else {
            self.params(params, &mut action)?;
        }
        if kind != ActionKind::Trace && matches!(action.handler, Handler::Match { .. }) {
            return Err(self.error(ErrorKind::ActionMismatch, word));
        }
        Ok(action)
    }

    fn params(&mut self, part: Span, action: &mut Action) -> Result<(), Errno> {
        let mut pieces = Pieces::of(self.text, part);
        let mut first = action.keyword;
        while pieces.rest().is_some() {
            if action.params.len() >= PARAMS_MAX {
                return Err(self.log.add_anywhere(ErrorKind::TooManyParams));
            }
            let param = strip(self.text, pieces.up_to(b',').unwrap_or(part));
            if param.len() < 2 {
                return Err(self.error(ErrorKind::InvalidParam, param));
            }
            let bytes = param.of(self.text).to_vec();
            if std::mem::take(&mut first) {
                action.synthetic = Some(bytes);
            } else {
                action.params.push(bytes);
                action.places.push(param);
            }
        }
        Ok(())
    }
}
