//! Resolves the source of a value: variables, registers, named arguments and their fields (`parse_probe_arg()`,
//! `parse_btf_arg()` and `parse_btf_field()`, `kernel/trace/trace_probe.c`).

use rustix::io::Errno;

use super::super::Span;
use super::super::facts::{Facts, Feature};
use super::super::number;
use super::At;
use super::ast::{Cast, Fetch, FetchKind, Path, Step};
use super::check::{Site, Types};
use super::error::{ErrorKind, Fault, Stop};
use super::program::{Op, Program, Source};
use crate::event::dynamic::latin1;
use crate::event::{Field, FieldClass};
use crate::kernel::btf::{Class, Shape};

/// Words of a kernel stack: `THREAD_SIZE` (16 KiB on both architectures) divided by the word size.
const STACK_WORDS: u64 = 2048;

/// The BTF type of a value. An explicit dereference clears it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Typed {
    pub(super) shape: Shape,
    /// Offset of the value in its byte, in bits.
    pub(super) offset: u32,
    /// Width of a bit field; 0 for any other value.
    pub(super) bits: u32,
}

/// A value while its steps are built.
pub(super) struct Value<'a, 'b> {
    pub(super) facts: &'a dyn Facts,
    pub(super) site: &'b Site<'a>,
    pub(super) types: &'b mut Types,
    pub(super) program: Program,
    pub(super) typed: Option<Typed>,
    /// Position of the kernel's parser.
    pub(super) offset: usize,
    /// Whether that position is undefined.
    pub(super) astray: bool,
    /// Place of the current text in the word.
    pub(super) span: Span,
}

impl Value<'_, '_> {
    /// Returns a fault at `more` bytes after the current position.
    pub(super) fn stop(&self, errno: Errno, kind: ErrorKind, more: usize) -> Stop {
        let fault = Fault { kind, offset: self.offset + more, span: self.span, astray: self.astray };
        Stop::new(errno, fault)
    }

    fn fail<T>(&self, errno: Errno, kind: ErrorKind) -> Result<T, Stop> {
        Err(self.stop(errno, kind, 0))
    }

    fn invalid<T>(&self, kind: ErrorKind) -> Result<T, Stop> {
        self.fail(Errno::INVAL, kind)
    }

    /// Adds a step, or fails if the program is full.
    pub(super) fn push(&mut self, op: Op, errno: Errno) -> Result<(), Stop> {
        if self.program.push(op) { Ok(()) } else { self.fail(errno, ErrorKind::TooManyOps) }
    }

    fn load(&mut self, source: Source) -> Result<(), Stop> {
        self.push(Op::Load(source), Errno::INVAL)
    }

    /// Loads the memory at an address.
    fn load_from(&mut self, address: Source) -> Result<(), Stop> {
        self.load(address)?;
        self.push(Op::Deref { user: false, offset: 0 }, Errno::INVAL)
    }

    /// Loads an argument of the function, counted from 0. At a return it was saved at entry.
    fn load_argument(&mut self, index: u32) -> Result<(), Stop> {
        if self.site.at.is_exit() {
            let offset = self.types.save(index);
            self.load(Source::SavedArg(offset))
        } else {
            self.load(Source::Argument(index + u32::from(self.site.at == At::Tracepoint)))
        }
    }

    fn shape(&self, id: u32) -> Result<Shape, Stop> {
        self.facts.shape(id).map_or_else(|| self.invalid(ErrorKind::BadTypeId), Ok)
    }

    pub(super) fn fetch(&mut self, fetch: &Fetch) -> Result<(), Stop> {
        (self.offset, self.span, self.astray) = (fetch.offset, fetch.span, false);
        match &fetch.kind {
            FetchKind::Broken(stop) => Err(stop.clone()),
            FetchKind::Variable(name) if self.site.at == At::Event => self.field(name),
            FetchKind::Variable(name) => self.variable(name),
            FetchKind::Retval(path) => {
                if !self.site.at.has_return() {
                    return self.invalid(ErrorKind::RetvalOnProbe);
                }
                if self.site.at.is_kernel() && self.facts.language().has(Feature::BtfArgs) {
                    return self.by_name(path, fetch.span);
                }
                self.load(Source::Retval)
            }
            FetchKind::Named(path) => {
                if self.site.at.is_exit() && !self.facts.language().has(Feature::ArgsAtReturn) {
                    return self.invalid(ErrorKind::NoTypes);
                }
                self.by_name(path, fetch.span)
            }
            FetchKind::Current(path) if path.steps.is_empty() && path.hyphen.is_none() => {
                self.load(Source::Current)
            }
            FetchKind::Current(path) => self.by_name(path, fetch.span),
            FetchKind::Field(name) => match self.find_field(&latin1(name)) {
                Some(field) => self.load(field),
                None => self.invalid(ErrorKind::NoEventField),
            },
            FetchKind::Register(name) => match self.facts.arch().register(&latin1(name)) {
                Some(place) => self.load(Source::Register(place)),
                None => self.invalid(ErrorKind::BadRegister),
            },
            FetchKind::Memory(address) => self.load_from(Source::Immediate(*address)),
            FetchKind::File(offset) => self.load_from(Source::File(*offset)),
            FetchKind::Symbol(symbol) => {
                self.push(Op::Symbol(symbol.clone()), Errno::INVAL)?;
                self.load_from(Source::Immediate(0))
            }
            FetchKind::Immediate(value) => self.load(Source::Immediate(*value)),
            FetchKind::Text(text) => self.load(Source::Text(text.clone())),
            FetchKind::Deref { user, offset, inner } => {
                self.fetch(inner)?;
                (self.offset, self.span, self.astray) = (inner.offset, inner.span, false);
                if matches!(self.program.last(), Some(Op::Load(Source::Comm | Source::Text(_)))) {
                    return self.invalid(ErrorKind::CommDeref);
                }
                self.push(Op::Deref { user: *user, offset: *offset as i32 }, Errno::INVAL)?;
                self.typed = None;
                Ok(())
            }
            FetchKind::ThisCpu { read, inner } => self.this_cpu(*read, inner),
            FetchKind::Cast(cast) => self.cast(cast, fetch),
        }
    }

    fn this_cpu(&mut self, read: bool, inner: &Fetch) -> Result<(), Stop> {
        self.fetch(inner)?;
        (self.offset, self.span, self.astray) = (inner.offset, inner.span, false);
        if matches!(self.program.last(), Some(Op::Load(Source::Comm | Source::Text(_)))) {
            return self.invalid(ErrorKind::CommDeref);
        }
        // The variable's address counts, not the word there.
        if matches!(inner.kind, FetchKind::Symbol(_) | FetchKind::Memory(_)) {
            self.program.replace_last(Op::ThisCpu);
        } else {
            self.push(Op::ThisCpu, Errno::INVAL)?;
        }
        self.typed = None;
        if read { self.push(Op::Deref { user: false, offset: 0 }, Errno::INVAL) } else { Ok(()) }
    }

    /// Follows the path of a cast from the address in it (`parse_btf_casttype()`).
    fn cast(&mut self, cast: &Cast, fetch: &Fetch) -> Result<(), Stop> {
        self.fetch(&cast.inner)?;
        let ty = Span::new(fetch.span.start + 1, fetch.span.start + 1 + cast.structure.len());
        (self.offset, self.span, self.astray) = (fetch.offset + 1, ty, false);
        let Some(id) = self.facts.structure(&latin1(&cast.structure)) else {
            return self.invalid(ErrorKind::NoPointer);
        };
        let structure = Shape { class: Class::Aggregate(id), word: 0 };
        let mut before = 0;
        if let Some(path) = &cast.member {
            self.offset += ty.len() + 1;
            let mut steps = path.steps.iter().peekable();
            let (bits, _, _) = self.member(&mut steps, path.hyphen, structure)?;
            if !bits.is_multiple_of(8) {
                return self.invalid(ErrorKind::CastNotAligned);
            }
            if steps.peek().is_some() {
                self.offset -= 2;
                return self.invalid(ErrorKind::CastArrow);
            }
            before = bits / 8;
        }
        // The name of the task is in its `task_struct`.
        if self.program.last() == Some(&Op::Load(Source::Comm)) {
            let task = self.facts.structure("task_struct");
            let Some(name) = task.and_then(|task| self.facts.member(task, "comm")) else {
                return self.fail(Errno::NOENT, ErrorKind::NoTypesHere);
            };
            self.program.replace_last(Op::Load(Source::Current));
            before = before.wrapping_sub(name.offset / 8);
        }
        let start = cast.path.steps.first().map_or(fetch.span.end, |step| step.span.start);
        self.offset = fetch.offset + start - fetch.span.start;
        self.fields(&cast.path, Base::Structure { shape: structure, before })
    }

    fn field(&mut self, name: &[u8]) -> Result<(), Stop> {
        let name = latin1(name);
        if let Some(field) = self.find_field(&name) {
            return self.load(field);
        }
        if !self.facts.language().has(Feature::LaterErrors) {
            // The checker looks up the field after all other checks of the argument.
            let field = Field {
                name,
                ty: String::new(),
                offset: 0,
                size: 8,
                signed: false,
                array: None,
                class: FieldClass::Number,
            };
            return self.load(Source::Field(Box::new(field)));
        }
        match name.as_str() {
            "comm" | "COMM" => self.load(Source::Comm),
            _ => self.invalid(ErrorKind::BadVariable),
        }
    }

    /// A field of the probed event.
    fn find_field(&self, name: &str) -> Option<Source> {
        let fields = self.site.event.map_or(&[][..], |event| &event.fields);
        let field = fields.iter().find(|field| field.name == name)?;
        Some(Source::Field(Box::new(field.clone())))
    }

    fn variable(&mut self, name: &[u8]) -> Result<(), Stop> {
        if let Some(number) = name.strip_prefix(b"stack") {
            return self.stack(number);
        }
        if name == b"comm" || name == b"COMM" {
            return self.load(Source::Comm);
        }
        match name.strip_prefix(b"arg") {
            Some(number) => self.argument(number),
            None => self.invalid(ErrorKind::BadVariable),
        }
    }

    fn stack(&mut self, number: &[u8]) -> Result<(), Stop> {
        if number.is_empty() {
            return self.load(Source::StackPointer);
        }
        if !number.first().is_some_and(u8::is_ascii_digit) {
            return self.invalid(ErrorKind::BadVariable);
        }
        match number::read_unsigned(number, 10) {
            Err(errno) => self.fail(self.number_errno(errno), ErrorKind::BadVariable),
            Ok(n) if self.site.at.is_kernel() && n > STACK_WORDS => self.invalid(ErrorKind::BadStackNumber),
            Ok(n) => self.load(Source::Stack(n as u32)),
        }
    }

    /// The errno for a number that cannot be read.
    fn number_errno(&self, errno: Errno) -> Errno {
        if self.facts.language().has(Feature::LatestErrors) { errno } else { Errno::INVAL }
    }

    /// `$argN`
    fn argument(&mut self, number: &[u8]) -> Result<(), Stop> {
        let (at, language) = (self.site.at, self.facts.language());
        match number::read_unsigned(number, 10) {
            Ok(_) if !language.has(Feature::LaterErrors) && !at.is_entry() => {
                self.invalid(ErrorKind::BadVariable)
            }
            Err(errno) => self.fail(self.number_errno(errno), ErrorKind::BadVariable),
            Ok(n) if n == 0 || n > STACK_WORDS => self.invalid(ErrorKind::BadArgNumber),
            Ok(n) if at.is_entry() || at.is_exit() && language.has(Feature::ArgsAtReturn) => {
                self.load_argument(n as u32 - 1)
            }
            Ok(_) => self.invalid(ErrorKind::ArgsNotAtEntry),
        }
    }

    /// Loads a named argument, the return value or the current task, then follows its path.
    fn by_name(&mut self, path: &Path, span: Span) -> Result<(), Stop> {
        let is_current = path.root == b"$current";
        let function = match &self.site.function {
            Some(function) => function.as_str(),
            None if is_current => "",
            None => return self.invalid(ErrorKind::NoFunction),
        };
        let first = path.steps.first();
        if let (None, Some(hyphen)) = (first, path.hyphen) {
            return Err(self.stop(Errno::INVAL, ErrorKind::BadHyphen, hyphen - span.start));
        }
        let to_first = first.map_or(0, |step| step.span.start - span.start);
        if first.is_some_and(|step| !step.arrow) {
            return Err(self.stop(Errno::OPNOTSUPP, ErrorKind::DotOnArgument, to_first));
        }
        if is_current {
            self.load(Source::Current)?;
            let Some(id) = self.facts.structure("task_struct") else {
                return self.fail(Errno::NOENT, ErrorKind::NoTypesHere);
            };
            self.offset += to_first;
            let shape = Shape { class: Class::Aggregate(id), word: 0 };
            return self.fields(path, Base::Structure { shape, before: 0 });
        }
        let ty = if path.root == b"$retval" {
            self.load(Source::Retval)?;
            match self.types.signature(self.facts, function) {
                Some(signature) if signature.returns == 0 => {
                    return self.fail(Errno::NOENT, ErrorKind::NoRetval);
                }
                Some(signature) => signature.returns,
                None if first.is_some() => {
                    return Err(self.stop(Errno::NOENT, ErrorKind::NoTypesHere, to_first));
                }
                None => return Ok(()),
            }
        } else {
            let asked = self.types.is_known();
            let params = self.types.params(self.facts, function, self.site.at);
            if !asked && params.is_empty() {
                return self.fail(Errno::NOENT, ErrorKind::NoTypesHere);
            }
            let root = latin1(&path.root);
            let mut params = params.iter().enumerate();
            let Some((index, (_, ty))) = params.find(|(_, (name, _))| *name == root) else {
                return self.fail(Errno::NOENT, ErrorKind::NoVariable);
            };
            let ty = *ty;
            self.load_argument(index as u32)?;
            ty
        };
        let shape = self.shape(ty)?;
        self.typed = Some(Typed { shape, offset: 0, bits: 0 });
        self.offset += to_first;
        if first.is_some() { self.fields(path, Base::Value(shape)) } else { Ok(()) }
    }

    /// Follows the path through pointers and nested structures.
    fn fields(&mut self, path: &Path, mut base: Base) -> Result<(), Stop> {
        let mut steps = path.steps.iter().peekable();
        while steps.peek().is_some() {
            self.span = steps.peek().map_or(self.span, |step| step.span);
            let (inside, before) = match base {
                Base::Structure { shape, before } => (shape, before),
                Base::Value(shape) if shape.class == Class::Pointer => (self.shape(shape.word)?, 0),
                Base::Value(_) => return self.invalid(ErrorKind::NoPointer),
            };
            let (offset, bits, shape) = self.member(&mut steps, path.hyphen, inside)?;
            let bytes = (offset / 8).wrapping_sub(before).cast_signed();
            self.push(Op::Deref { user: false, offset: bytes }, Errno::INVAL)?;
            self.typed = Some(Typed { shape, offset: offset % 8, bits });
            base = Base::Value(shape);
        }
        Ok(())
    }

    /// Follows a path through nested structures to its end or its next arrow. Returns the offset in bits, the width of a
    /// bit field or 0, and the type (`get_bitoffset_of_field()`).
    fn member<'s>(
        &mut self,
        steps: &mut std::iter::Peekable<impl Iterator<Item = &'s Step>>,
        hyphen: Option<usize>,
        mut inside: Shape,
    ) -> Result<(u32, u32, Shape), Stop> {
        let (mut offset, mut bits) = (0_u32, 0);
        while let Some(step) = steps.next() {
            self.span = step.span;
            if let (None, Some(hyphen)) = (steps.peek(), hyphen) {
                return Err(self.stop(Errno::INVAL, ErrorKind::BadHyphen, hyphen - step.span.start));
            }
            let Class::Aggregate(id) = inside.class else {
                return self.invalid(ErrorKind::BadTypeId);
            };
            let Some(member) = self.facts.member(id, &latin1(&step.name)) else {
                return self.fail(Errno::NOENT, ErrorKind::NoField);
            };
            offset = offset.saturating_add(member.offset);
            bits = member.bits;
            inside = self.shape(member.ty)?;
            match steps.peek() {
                Some(next) => self.offset += next.span.start - step.span.start,
                None => self.astray = !self.facts.language().has(Feature::LatestErrors),
            }
            if steps.peek().is_some_and(|next| next.arrow) {
                break;
            }
        }
        Ok((offset, bits, inside))
    }
}

/// Where a path begins.
#[derive(Clone, Copy)]
enum Base {
    /// At a value of this type, which is a pointer.
    Value(Shape),
    /// In a structure of this type, `before` bytes before the value.
    Structure { shape: Shape, before: u32 },
}
