//! Arguments of one probe, one after the other: names, sizes, places in the record, and the kernel's order of
//! looking at things (`traceprobe_parse_probe_arg()`, kernel/trace/trace_probe.c).

use rustix::io::Errno;

use super::super::Span;
use super::super::facts::{Facts, Feature};
use super::ast::Argument;
use super::error::{ErrorKind, Fault, Stop};
use super::parser::parse;
use super::program::{Program, Source};
use super::value::Value;
use super::{At, SIZE_MAX, is_name, types};
use crate::event::Format;
use crate::event::dynamic::{Arg, RESERVED, latin1};
use crate::kernel::btf::Signature;

/// What a probe sits on.
#[derive(Clone, Debug)]
pub struct Site<'a> {
    /// Where.
    pub at: At,
    /// The function that has the types of the arguments.
    pub function: Option<String>,
    /// The event, for event probes.
    pub event: Option<&'a Format>,
}

/// A checked argument.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checked {
    /// What it is in the record.
    pub arg: Arg,
    /// Its text, read.
    pub tree: Argument,
    /// How its value is fetched.
    pub program: Program,
}

/// What is asked once for all arguments: the function's signature; and which arguments a return probe has to keep.
#[derive(Debug, Default)]
pub(super) struct Types {
    known: Option<Signature>,
    kept: Vec<u32>,
}

impl Types {
    /// Whether the signature was asked for and found.
    pub(super) fn is_known(&self) -> bool {
        self.known.is_some()
    }

    /// The signature.
    pub(super) fn signature(&mut self, facts: &dyn Facts, function: &str) -> Option<&Signature> {
        if self.known.is_none() {
            self.known = facts.signature(function);
        }
        self.known.as_ref()
    }

    /// The parameters, without the one in front of a tracepoint's.
    pub(super) fn params(&mut self, facts: &dyn Facts, function: &str, at: At) -> &[(String, u32)] {
        let params = self.signature(facts, function).map_or(&[][..], |signature| &signature.params);
        match at {
            At::Tracepoint => params.get(1..).unwrap_or_default(),
            _ => params,
        }
    }

    /// Keeps an argument; its place among those that are kept.
    pub(super) fn keep(&mut self, index: u32) -> u32 {
        let known = self.kept.iter().position(|kept| *kept == index);
        let at = known.unwrap_or_else(|| {
            self.kept.push(index);
            self.kept.len() - 1
        });
        at as u32 * 8
    }
}

/// Checks the arguments of a probe.
pub struct Checker<'a> {
    facts: &'a dyn Facts,
    site: Site<'a>,
    types: Types,
    names: Vec<String>,
    size: u32,
}

impl<'a> Checker<'a> {
    /// A probe without arguments yet.
    pub fn new(facts: &'a dyn Facts, site: Site<'a>) -> Self {
        Self { facts, site, types: Types::default(), names: Vec::new(), size: 0 }
    }

    /// Where the probe sits.
    pub fn site(&self) -> &Site<'a> {
        &self.site
    }

    /// The parameters of the probed function; none where types are not to be had.
    pub fn params(&mut self) -> &[(String, u32)] {
        match &self.site.function {
            Some(function) if self.facts.language().has(Feature::BtfArgs) => {
                self.types.params(self.facts, function, self.site.at)
            }
            _ => &[],
        }
    }

    /// The function's arguments, counted from 0, that a return probe keeps at the entry, in order.
    pub fn kept(&self) -> &[u32] {
        &self.types.kept
    }

    /// The next argument.
    ///
    /// # Errors
    /// When the kernel would refuse it.
    pub fn add(&mut self, word: &[u8]) -> Result<Checked, Stop> {
        let language = self.facts.language();
        let draft = parse(word, self.site.at, language);
        let body = draft.body;
        let name = match draft.name? {
            Some(name) => latin1(&name),
            None => self.made_up_name(word),
        };
        if RESERVED.contains(&name.as_str()) || self.names.contains(&name) {
            return Err(Stop::invalid(ErrorKind::UsedArgName, Span::new(0, body.start.saturating_sub(1))));
        }
        draft.length?;
        let spec = draft.ty?;
        let fetch = draft.fetch;
        let asked = types::asked(fetch.span.of(word), spec.as_ref(), body, self.site.at, language)?;
        let mut value = Value {
            facts: self.facts,
            site: &self.site,
            types: &mut self.types,
            program: Program::default(),
            typed: None,
            offset: body.start,
            astray: false,
            span: body,
        };
        value.fetch(&fetch)?;
        if !language.has(Feature::LaterErrors) {
            value.offset = body.start;
        }
        value.span = spec.as_ref().map_or(body, |spec| spec.span);
        let ty = value.settle(asked, spec.as_ref(), self.facts)?;
        let count = spec.as_ref().map_or(0, |spec| spec.count);
        let arg = Arg { name, text: body.of(word).to_vec(), ty, count, offset: self.size };
        if self.size + arg.size() > SIZE_MAX && language.has(Feature::SizeLimit) {
            value.span = body;
            return Err(value.stop(Errno::TOOBIG, ErrorKind::EventTooBig, 0));
        }
        let ahead = spec.as_ref().map_or(0, |spec| spec.span.start - body.start);
        value.finish(ty, spec.as_ref(), ahead)?;
        let mut program = value.program;
        match program.unknown_field() {
            None => {}
            Some("comm" | "COMM") => program.replace_source(Source::Comm),
            Some(_) => {
                let fault = Fault { kind: ErrorKind::NoAttachField, offset: 0, span: body, astray: false };
                return Err(Stop::new(Errno::NOENT, fault));
            }
        }
        self.size += arg.size();
        self.names.push(arg.name.clone());
        let tree = Argument { name: draft_name(word, body), fetch, ty: spec };
        Ok(Checked { arg, tree, program })
    }

    /// The name of an argument that is given none: its own text where that is one, else its number.
    fn made_up_name(&self, word: &[u8]) -> String {
        let text = word.split(|byte| *byte == b':').next().unwrap_or_default();
        if self.facts.language().has(Feature::BtfArgs) && is_name(text, false) {
            latin1(text)
        } else {
            format!("arg{}", self.names.len() + 1)
        }
    }
}

fn draft_name(word: &[u8], body: Span) -> Option<Vec<u8>> {
    body.start.checked_sub(1).map(|end| Span::new(0, end).of(word).to_vec())
}
