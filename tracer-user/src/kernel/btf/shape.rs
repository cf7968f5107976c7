//! Types as the kernel's probe parser resolves them (kernel/trace/trace_btf.c and trace_probe.c).
//!
//! Signatures have type ids, members have offsets in bits, and typedefs and qualifiers are removed.

use btf_rs::{BtfType, Type};

use super::Btf;
use crate::kernel::Error;

/// A function's parameters and return type, by BTF ids.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Signature {
    /// Names (empty if BTF records none) and types.
    pub params: Vec<(String, u32)>,
    /// Return type; 0 for void.
    pub returns: u32,
}

/// A type without typedefs and qualifiers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// The class of the type.
    pub class: Class,
    /// The word of `struct btf_type` that holds either a size or another type's id, depending on the kind. The kernel
    /// follows it as an id in one place without checking the kind.
    pub word: u32,
}

/// The classes of types that the probe parser distinguishes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// A whole number.
    Int {
        /// Width.
        bits: u32,
        /// Whether it is signed.
        signed: bool,
    },
    /// An enum of at most four bytes.
    Enum,
    /// An enum of eight bytes.
    Enum64,
    /// A pointer; [`Shape::word`] is the target type's id.
    Pointer,
    /// An array with elements of this type.
    Array(u32),
    /// A struct or union, by its id.
    Aggregate(u32),
    /// Anything else.
    Other,
}

/// A member, also one inside anonymous structs and unions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BitMember {
    /// Bits from the start of the struct.
    pub offset: u32,
    /// Width of a bit field; 0 for any other member.
    pub bits: u32,
    /// Type.
    pub ty: u32,
}

impl Btf {
    /// The signature of the first function of this name.
    pub(crate) fn signature(&self, function: &str) -> Result<Option<Signature>, Error> {
        for id in self.ids(function)? {
            let Type::Func(function) = self.get(id)? else { continue };
            let Some(proto) = function.get_type_id() else { continue };
            let Type::FuncProto(proto) = self.get(proto)? else { return Ok(None) };
            let mut params = Vec::with_capacity(proto.parameters.len());
            for param in &proto.parameters {
                params.push((self.name_of(param)?, param.get_type_id().unwrap_or(0)));
            }
            return Ok(Some(Signature { params, returns: proto.return_type_id() }));
        }
        Ok(None)
    }

    /// The shape of a type; None if there is no such type.
    pub fn shape(&self, id: u32) -> Option<Shape> {
        let (id, ty) = self.plain(id).ok()?;
        let (class, word) = match &ty {
            Type::Int(of) => {
                let size = of.size() as u32;
                (Class::Int { bits: size.saturating_mul(8), signed: of.is_signed() }, size)
            }
            Type::Enum(of) => (Class::Enum, of.size() as u32),
            Type::Enum64(of) => (Class::Enum64, of.size() as u32),
            Type::Ptr(to) => (Class::Pointer, to.get_type_id().unwrap_or(0)),
            Type::Array(of) => (Class::Array(of.get_type_id().unwrap_or(0)), 0),
            Type::Struct(of) | Type::Union(of) => (Class::Aggregate(id), of.size() as u32),
            Type::Float(of) => (Class::Other, of.size() as u32),
            _ => (Class::Other, 0),
        };
        Some(Shape { class, word })
    }

    /// The location of a member in a struct or union, by the struct's id. None if there is no such member.
    pub(crate) fn bit_member(&self, id: u32, name: &str) -> Result<Option<BitMember>, Error> {
        let (Type::Struct(of) | Type::Union(of)) = self.get(id)? else { return Ok(None) };
        let mut nameless = Vec::new();
        for member in &of.members {
            let own = self.name_of(member)?;
            let ty = member.get_type_id().unwrap_or(0);
            if own.is_empty() {
                nameless.push((member.bit_offset(), ty));
            } else if own == name {
                let bits = member.bitfield_size().unwrap_or(0);
                return Ok(Some(BitMember { offset: member.bit_offset(), bits, ty }));
            }
        }
        for (offset, ty) in nameless {
            let (inner, _) = self.plain(ty)?;
            if let Some(found) = self.bit_member(inner, name)? {
                return Ok(Some(BitMember { offset: offset.saturating_add(found.offset), ..found }));
            }
        }
        Ok(None)
    }

    /// The names of a struct's or union's members, including those of anonymous structs and unions in it.
    pub(crate) fn member_names(&self, id: u32) -> Result<Vec<String>, Error> {
        let (Type::Struct(of) | Type::Union(of)) = self.get(id)? else { return Ok(Vec::new()) };
        let mut names = Vec::new();
        for member in &of.members {
            let own = self.name_of(member)?;
            if own.is_empty() {
                let (inner, _) = self.plain(member.get_type_id().unwrap_or(0))?;
                names.extend(self.member_names(inner)?);
            } else {
                names.push(own);
            }
        }
        Ok(names)
    }
}

#[cfg(test)]
mod tests {
    use super::super::build::Build;
    use super::*;

    #[test]
    fn members_signatures_and_shapes() {
        let mut build = Build::new();
        let int = build.int("int", 4, true);
        let inner = build.aggregate("", 8, &[("deep", int, 32)]);
        let outer = build.aggregate("outer", 24, &[("a", int, 0), ("", inner, 64)]);
        let pointer = build.pointer(outer);
        let alias = build.typedef("alias", pointer);
        build.tracepoint("tried", &[("t", alias)]);
        let btf = build.read("shape");
        let deep = btf.bit_member(outer, "deep").unwrap();
        assert_eq!(deep, Some(BitMember { offset: 96, bits: 0, ty: int }));
        assert_eq!(btf.bit_member(outer, "none").unwrap(), None);
        assert_eq!(btf.member_names(outer).unwrap(), ["a", "deep"]);
        assert_eq!(btf.member_names(int).unwrap(), [""; 0]);
        assert_eq!(btf.shape(alias), Some(Shape { class: Class::Pointer, word: outer }));
        assert_eq!(btf.shape(int), Some(Shape { class: Class::Int { bits: 32, signed: true }, word: 4 }));
        assert_eq!(btf.shape(0).map(|shape| shape.class), Some(Class::Other));
        assert_eq!(btf.shape(9999), None);
        let found = btf.signature("__traceiter_tried").unwrap().unwrap();
        let names: Vec<_> = found.params.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!((names, found.returns), (vec!["__data", "t"], 0));
        assert_eq!(btf.signature("outer").unwrap(), None);
    }
}
