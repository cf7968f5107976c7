//! Types: of fields, from the format file; of names in a print fmt, from the kernel; and their sizes.

use super::{Lower, Result};
use crate::event::Field;
use crate::render::fmt::ast::{Expr, TypeName};
use crate::render::fmt::ctype::{self, CType, Type};

impl Lower<'_> {
    /// The C type of a field, from its text, its size and its sign.
    pub(super) fn field_type(field: &Field) -> Type {
        let sized = |size: usize| sized(size as u64, field.signed);
        let (base, brackets) =
            field.ty.split_once('[').map_or((field.ty.as_str(), false), |(b, _)| (b, true));
        let base = base.trim();
        if brackets {
            let element = match field.array {
                Some(count) if count > 0 && field.size.is_multiple_of(count) => sized(field.size / count),
                _ => scalar(base).map(|ty| CType { signed: field.signed, ..ty }),
            };
            return Type::Array(Box::new(match element {
                Some(element) => Type::Int(element),
                None if base.ends_with('*') => Type::Ptr(Box::new(Type::Void)),
                None => Type::Aggregate(aggregate_name(base).to_owned()),
            }));
        }
        if let Some(target) = base.strip_suffix('*') {
            let target = scalar(target.trim()).map_or(Type::Void, Type::Int);
            return Type::Ptr(Box::new(target));
        }
        let aggregate = base.contains("struct ") || base.contains("union ");
        match sized(field.size) {
            Some(scalar) if !aggregate => Type::Int(scalar),
            _ => Type::Aggregate(aggregate_name(base).to_owned()),
        }
    }

    pub(super) fn type_of(&self, name: &TypeName) -> Result<Type> {
        let mut ty = if name.aggregate {
            Type::Aggregate(name.base.clone())
        } else if name.base == "void" {
            Type::Void
        } else if name.enumeration {
            let known = self.facts.type_size(&name.base).and_then(|(size, signed)| sized(size, signed));
            Type::Int(known.unwrap_or(CType::UINT))
        } else if let Some(ty) = scalar(&name.base) {
            Type::Int(ty)
        } else if let Some((size, signed)) = self.facts.type_size(&name.base) {
            sized(size, signed).map_or_else(|| Type::Aggregate(name.base.clone()), Type::Int)
        } else if name.stars > 0 {
            Type::Void
        } else {
            return Err(format!("the type {} is not known", name.base));
        };
        for _ in 0..name.stars {
            ty = Type::Ptr(Box::new(ty));
        }
        Ok(ty)
    }

    pub(super) fn size_of(&self, ty: &Type) -> Result<u64> {
        match ty {
            Type::Int(ty) => Ok(u64::from(ty.size)),
            Type::Ptr(_) => Ok(8),
            // GNU C counts `void` in bytes.
            Type::Void => Ok(1),
            Type::Aggregate(name) => match (self.facts.type_size(name), name.as_str()) {
                (Some((size, _)), _) => Ok(size),
                // A cache line on 64-bit kernels with `CONFIG_HAVE_ALIGNED_STRUCT_PAGE`.
                (None, "page") => Ok(64),
                _ => Err(format!("the size of {name} is not known")),
            },
            Type::Array(_) => Err("the size of an array is not known".into()),
        }
    }

    pub(super) fn sizeof(&mut self, operand: &Expr) -> Result<u64> {
        match operand {
            Expr::Field(name) => Ok(self.find(name)?.size as u64),
            Expr::Text(text) => Ok(text.len() as u64 + 1),
            _ => {
                let value = self.expr(operand)?;
                self.size_of(&value.ty)
            }
        }
    }
}

/// The type of `c ? a : b`; a pointer on one side is the result type.
pub(super) fn joined(a: &Type, b: &Type) -> Type {
    match (a, b) {
        (Type::Int(a), Type::Int(b)) => Type::Int(a.common(*b)),
        (Type::Int(_), other) => other.clone(),
        (ty, _) => ty.clone(),
    }
}

pub(super) fn sized(size: u64, signed: bool) -> Option<CType> {
    matches!(size, 1 | 2 | 4 | 8).then_some(CType { size: size as u8, signed })
}

/// The name in `const struct page`.
fn aggregate_name(base: &str) -> &str {
    base.rsplit(' ').next().unwrap_or(base)
}

/// The scalar type of C keywords or a typedef.
pub(crate) fn scalar(text: &str) -> Option<CType> {
    let mut size = None;
    let mut signed = true;
    let mut keyword = false;
    let mut other = None;
    for word in text.split_whitespace() {
        match word {
            "unsigned" => {
                signed = false;
                keyword = true;
            }
            "signed" | "int" => keyword = true,
            "char" => size = Some(1),
            "short" => size = Some(2),
            "long" => size = Some(8),
            "_Bool" | "bool" => return Some(CType::U8),
            "const" | "volatile" | "__data_loc" | "__rel_loc" => {}
            word => other = Some(word),
        }
    }
    match (size, keyword, other) {
        (Some(size), _, _) => Some(CType { size, signed }),
        (None, true, _) => Some(CType { size: 4, signed }),
        (None, false, Some(word)) => ctype::named(word),
        (None, false, None) => None,
    }
}
