//! Selects the type of a stored value and the steps that the type needs.
//!
//! The type is the written one or the one from BTF (`parse_probe_arg_type()`, `fetch_type_from_btf_type()` and
//! `finalize_fetch_insn()`, `kernel/trace/trace_probe.c`).

use rustix::io::Errno;

use super::super::facts::{Feature, Language};
use super::super::{Span, ctype, number};
use super::At;
use super::ast::TypeSpec;
use super::error::{ErrorKind, Fault, Stop};
use super::program::{Op, Source, Store};
use super::value::{Typed, Value};
use crate::event::dynamic::{FetchType, latin1};
use crate::kernel::btf::{Class, Shape};

/// Finds the type of this name for a probe at `at`. `bWIDTH@OFFSET/CONTAINER` has the type of its container.
fn named(name: &[u8], at: At, language: Language) -> Option<&'static FetchType> {
    let is_missing = match name {
        b"symbol" | b"symstr" => !at.is_kernel() && language.has(Feature::LaterErrors),
        b"char" => !language.has(Feature::Char),
        _ => false,
    };
    if is_missing {
        return None;
    }
    if name.first() == Some(&b'b') {
        let (_, container) = ctype::split_once(name, |byte| byte == b'/')?;
        return match number::unsigned(container)? {
            bits @ (8 | 16 | 32 | 64) => FetchType::named(&format!("u{bits}")),
            _ => None,
        };
    }
    FetchType::named(&latin1(name))
}

/// Returns the requested type before the value is checked. `fetch` is the text before the colon.
pub(super) fn requested(
    fetch: &[u8],
    spec: Option<&TypeSpec>,
    body: Span,
    at: At,
    language: Language,
) -> Result<&'static FetchType, Stop> {
    let span = spec.map_or(body, |spec| spec.span);
    let refused = |kind| {
        let offset = spec.map_or(body.start, |spec| spec.span.start);
        Err(Stop::new(Errno::INVAL, Fault::new(kind, offset, span)))
    };
    let is_text = matches!(fetch, b"$comm" | b"$COMM") || fetch.starts_with(b"\\\"");
    let name = match spec {
        Some(spec) if is_text && at != At::Event && (spec.count > 0 || spec.name != b"string") => {
            let later = language.has(Feature::StringTypeError);
            return refused(if later { ErrorKind::NeedsStringType } else { ErrorKind::TypelessText });
        }
        Some(spec) => &spec.name[..],
        None if is_text && at != At::Event => b"string",
        None => return Ok(FetchType::word()),
    };
    named(name, at, language).map_or_else(|| refused(ErrorKind::BadType), Ok)
}

impl Typed {
    /// Returns the type that the kernel selects for a value of this BTF type.
    fn fetch_type(&mut self) -> &'static FetchType {
        let name: &str = match self.shape.class {
            Class::Enum => "s32",
            Class::Enum64 => "s64",
            Class::Pointer => "x64",
            Class::Int { bits: bits @ (8 | 16 | 32 | 64), signed: true } => &format!("s{bits}"),
            Class::Int { bits: bits @ (8 | 16 | 32 | 64), signed: false } => &format!("u{bits}"),
            Class::Int { bits, signed: false } => {
                self.bits = bits;
                "u64"
            }
            _ => return FetchType::word(),
        };
        FetchType::named(name).unwrap_or(FetchType::word())
    }
}

impl Value<'_, '_> {
    /// Whether a type is `char`, which is signed in kernels before 6.2.
    fn is_char(&self, id: u32) -> bool {
        let signed = self.facts.has_signed_chars();
        self.facts.shape(id).is_some_and(|shape| shape.class == Class::Int { bits: 8, signed })
    }

    /// Returns the type of a value with a known BTF type. Dereferences a `char *` whose requested type is a string.
    pub(super) fn settle(
        &mut self,
        requested: &'static FetchType,
        spec: Option<&TypeSpec>,
    ) -> Result<&'static FetchType, Stop> {
        let Some(typed) = &mut self.typed else { return Ok(requested) };
        let Some(spec) = spec else { return Ok(typed.fetch_type()) };
        if !spec.name.windows(6).any(|part| part == b"string") {
            return Ok(requested);
        }
        let Shape { class, word } = typed.shape;
        if matches!(class, Class::Array(of) if self.is_char(of)) {
            return Ok(requested);
        }
        // The kernel follows the `type` word of every BTF kind.
        if self.is_char(word) {
            self.push(Op::Deref { user: spec.name.first() == Some(&b'u'), offset: 0 }, Errno::TOOBIG)?;
            return Ok(requested);
        }
        Err(self.stop(Errno::INVAL, ErrorKind::NotForString, 0))
    }

    /// Adds the steps after the value: store, bits, loop. `ahead` is the distance from the start of the body to the
    /// type.
    pub(super) fn finish(
        &mut self,
        ty: &'static FetchType,
        spec: Option<&TypeSpec>,
        ahead: usize,
    ) -> Result<(), Stop> {
        let count = spec.map_or(0, |spec| spec.count);
        if ty.string {
            self.store_text(ty, count, ahead)?;
        } else {
            self.store(ty)?;
        }
        let stored = self.program.last().cloned();
        match (spec, self.typed) {
            (Some(spec), _) if spec.name.first() == Some(&b'b') => self.bits(&spec.name, ty, ahead)?,
            (None, Some(typed)) if typed.bits % 8 != 0 || typed.offset != 0 => {
                let left = 64u32.wrapping_sub(typed.bits.wrapping_add(typed.offset)) as u8;
                let right = 64u32.wrapping_sub(typed.bits) as u8;
                self.push(Op::Bits { left, right, size: 8 }, Errno::INVAL)?;
            }
            _ => {}
        }
        if count > 0 {
            let whole =
                matches!(stored, Some(Op::Store { what: Store::Memory | Store::Text | Store::UserText, .. }));
            if !whole {
                return Err(self.stop(Errno::INVAL, ErrorKind::BadString, ahead));
            }
            self.push(Op::Loop(count), Errno::TOOBIG)?;
        }
        Ok(())
    }

    fn store_text(&mut self, ty: &'static FetchType, count: u32, ahead: usize) -> Result<(), Stop> {
        let symbol = ty.name == "symstr";
        let fits = match self.program.last() {
            Some(Op::Deref { user, .. }) => !(symbol && *user),
            Some(Op::Load(source)) => match source {
                Source::Register(_) | Source::Stack(_) | Source::Retval | Source::Argument(_) => symbol,
                Source::Immediate(_) | Source::Comm | Source::Text(_) => !symbol,
                Source::Field(_) => true,
                Source::StackPointer | Source::File(_) | Source::SavedArg(_) | Source::Current => false,
            },
            _ => false,
        };
        if !fits {
            let kind = if symbol { ErrorKind::BadSymbolString } else { ErrorKind::BadString };
            return Err(self.stop(Errno::INVAL, kind, ahead));
        }
        let user_type = ty.name == "ustring";
        let what = |user| match (user, symbol) {
            (true, _) => Store::UserText,
            (_, true) => Store::SymbolText,
            _ => Store::Text,
        };
        match self.program.last() {
            // The store reads from the address of the last dereference.
            Some(&Op::Deref { user, offset }) if !symbol && count == 0 => {
                let what = what(user_type || user);
                self.program.replace_last(Op::Store { what, offset, size: ty.size });
                Ok(())
            }
            _ => self.push(Op::Store { what: what(user_type), offset: 0, size: ty.size }, Errno::INVAL),
        }
    }

    fn store(&mut self, ty: &'static FetchType) -> Result<(), Stop> {
        match self.program.last() {
            Some(&Op::Deref { user, offset }) => {
                let what = if user { Store::UserMemory } else { Store::Memory };
                self.program.replace_last(Op::Store { what, offset, size: ty.size });
                Ok(())
            }
            _ => self.push(Op::Store { what: Store::Raw, offset: 0, size: ty.size }, Errno::TOOBIG),
        }
    }

    /// `bWIDTH@OFFSET/CONTAINER`
    fn bits(&mut self, name: &[u8], ty: &'static FetchType, ahead: usize) -> Result<(), Stop> {
        let bad = |value: &Self| value.stop(Errno::INVAL, ErrorKind::BadBitfield, ahead);
        let (width, rest) = number::prefix(ctype::rest(name, 1), 0);
        let Some(rest) = rest.strip_prefix(b"@").filter(|_| width != 0) else { return Err(bad(self)) };
        let (offset, tail) = number::prefix(rest, 0);
        if tail.len() == rest.len() || tail.first() != Some(&b'/') {
            return Err(bad(self));
        }
        let whole = u64::from(ty.size) * 8;
        let end = width.wrapping_add(offset);
        let left = whole.wrapping_sub(end) as u8;
        let right = whole.wrapping_sub(width) as u8;
        if !self.program.push(Op::Bits { left, right, size: ty.size as u8 }) || whole < end {
            return Err(bad(self));
        }
        Ok(())
    }
}
