//! Checks the arguments of one probe in order: names, sizes and offsets in the record, in the order of the kernel's
//! checks (`traceprobe_parse_probe_arg()`, `kernel/trace/trace_probe.c`).

use rustix::io::Errno;

use super::super::Span;
use super::super::facts::{Facts, Feature};
use super::error::{ErrorKind, Fault, Stop};
use super::parser::parse;
use super::program::{Program, Source};
use super::value::Value;
use super::{At, SIZE_MAX, is_name, types};
use crate::event::Format;
use crate::event::dynamic::{Arg, RESERVED, latin1};
use crate::kernel::btf::Signature;

/// The location of a probe.
#[derive(Clone, Debug)]
pub struct Site<'a> {
    /// Kind of the location.
    pub at: At,
    /// The function whose BTF type describes the arguments.
    pub function: Option<String>,
    /// The probed event, for event probes.
    pub event: Option<&'a Format>,
}

/// A checked argument.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checked {
    /// The argument in the record.
    pub arg: Arg,
    /// The steps that fetch the value.
    pub program: Program,
}

/// State shared by all arguments: the cached signature of the function, and the arguments that a return probe saves.
#[derive(Debug, Default)]
pub(super) struct Types {
    known: Option<Signature>,
    saved_args: Vec<u32>,
}

impl Types {
    pub(super) fn is_known(&self) -> bool {
        self.known.is_some()
    }

    pub(super) fn signature(&mut self, facts: &dyn Facts, function: &str) -> Option<&Signature> {
        if self.known.is_none() {
            self.known = facts.signature(function);
        }
        self.known.as_ref()
    }

    /// Returns the parameters; for a tracepoint without the first one.
    pub(super) fn params(&mut self, facts: &dyn Facts, function: &str, at: At) -> &[(String, u32)] {
        let params = self.signature(facts, function).map_or(&[][..], |signature| &signature.params);
        match at {
            At::Tracepoint => params.get(1..).unwrap_or_default(),
            _ => params,
        }
    }

    /// Saves an argument. Returns its byte offset among the saved arguments.
    pub(super) fn save(&mut self, index: u32) -> u32 {
        let known = self.saved_args.iter().position(|saved| *saved == index);
        let at = known.unwrap_or_else(|| {
            self.saved_args.push(index);
            self.saved_args.len() - 1
        });
        at as u32 * 8
    }
}

/// Checker for the arguments of a probe.
pub struct Checker<'a> {
    facts: &'a dyn Facts,
    site: Site<'a>,
    types: Types,
    names: Vec<String>,
    size: u32,
}

impl<'a> Checker<'a> {
    /// A checker without arguments.
    pub fn new(facts: &'a dyn Facts, site: Site<'a>) -> Self {
        Self { facts, site, types: Types::default(), names: Vec::new(), size: 0 }
    }

    /// Location of the probe.
    pub fn site(&self) -> &Site<'a> {
        &self.site
    }

    /// Returns the parameters of the probed function, or an empty slice if its types are unavailable.
    pub fn params(&mut self) -> &[(String, u32)] {
        match &self.site.function {
            Some(function) if self.facts.language().has(Feature::BtfArgs) => {
                self.types.params(self.facts, function, self.site.at)
            }
            _ => &[],
        }
    }

    /// Arguments of the function, counted from 0, that a return probe saves at entry, in order.
    pub fn saved_args(&self) -> &[u32] {
        &self.types.saved_args
    }

    /// Checks the next argument.
    ///
    /// # Errors
    /// If the kernel would reject it.
    pub fn add(&mut self, word: &[u8]) -> Result<Checked, Stop> {
        let language = self.facts.language();
        let draft = parse(word, self.site.at, language);
        let body = draft.body;
        let name = match draft.name? {
            Some(name) => latin1(&name),
            None => self.generated_name(word),
        };
        if RESERVED.contains(&name.as_str()) || self.names.contains(&name) {
            return Err(Stop::invalid(ErrorKind::UsedArgName, Span::new(0, body.start.saturating_sub(1))));
        }
        draft.length?;
        let spec = draft.ty?;
        let spec = spec.as_ref();
        let fetch = draft.fetch;
        let requested = types::requested(fetch.span.of(word), spec, body, self.site.at, language)?;
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
        value.span = spec.map_or(body, |spec| spec.span);
        let ty = value.settle(requested, spec)?;
        let count = spec.map_or(0, |spec| spec.count);
        let arg = Arg { name, text: body.of(word).to_vec(), ty, count, offset: self.size };
        if self.size + arg.size() > SIZE_MAX && language.has(Feature::SizeLimit) {
            value.span = body;
            return Err(value.stop(Errno::TOOBIG, ErrorKind::EventTooBig, 0));
        }
        let ahead = spec.map_or(0, |spec| spec.span.start - body.start);
        value.finish(ty, spec, ahead)?;
        let mut program = value.program;
        match program.unknown_field() {
            None => {}
            Some("comm" | "COMM") => program.replace_source(Source::Comm),
            Some(_) => {
                return Err(Stop::new(Errno::NOENT, Fault::new(ErrorKind::NoAttachField, 0, body)));
            }
        }
        self.size += arg.size();
        self.names.push(arg.name.clone());
        Ok(Checked { arg, program })
    }

    /// Returns the name of an unnamed argument: its own text if that is a valid name, else its number.
    fn generated_name(&self, word: &[u8]) -> String {
        let text = word.split(|byte| *byte == b':').next().unwrap_or_default();
        if self.facts.language().has(Feature::BtfArgs) && is_name(text, false) {
            latin1(text)
        } else {
            format!("arg{}", self.names.len() + 1)
        }
    }
}
