//! Raw tracepoint plans that are derived from the kernel's own handlers ([`crate::kernel::handler`]).

use super::{
    expression::{Condition, DEPTH_MAX, Expression},
    source::{FieldSource, Source},
};
use crate::{
    event::{Field, Format},
    kernel::{
        btf::{Kind, Prototype},
        handler::{Operation, Origin, Stores, Value},
    },
};

/// The longest chain of pointers that is followed at a hit.
const PATH_MAX: usize = 5;
/// The longest field that is copied, in bytes.
const COPY_MAX: usize = 256;

/// Why the source of a field is not derived.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Underived {
    /// A field of varying length.
    #[error("its length varies")]
    Varies,
    /// The handler stores nothing there, or not all of it.
    #[error("the handler does not always set it")]
    Missing,
    /// The handler stores different values, depending on a condition.
    #[error("a condition decides its value")]
    Condition,
    /// The handler computes it.
    #[error("the handler computes it")]
    Computed,
    /// It comes from a variable of the kernel, or from the current task.
    #[error("it comes from a kernel variable, the current task or the event's file")]
    Variable,
    /// The handler sign-extends an argument, or uses more bytes than the argument has.
    #[error("the handler widens an argument")]
    Width,
    /// A chain of pointers that is too long, or a large copy.
    #[error("it is too long")]
    Long,
}

/// The sources of all fields.
///
/// # Errors
/// The first field without a source, and the reason.
pub fn sources(
    format: &Format,
    tracepoint: &Prototype,
    stores: &Stores,
) -> Result<Vec<FieldSource>, (String, Underived)> {
    let mut sources = Vec::new();
    for field in &format.fields {
        match source(field, tracepoint, stores) {
            Ok(source) => {
                sources.push(FieldSource { offset: field.offset as u16, size: field.size as u16, source });
            }
            Err(why) => match numbers(field, tracepoint, stores) {
                Some(numbers) => sources.extend(numbers),
                None => return Err((field.name.clone(), why)),
            },
        }
    }
    Ok(sources)
}

/// The sources of the numbers of eight bytes of which a field consists; `None` if one has no source, and for a text, which
/// filters search as a whole.
fn numbers(field: &Field, tracepoint: &Prototype, stores: &Stores) -> Option<Vec<FieldSource>> {
    let is_in_numbers = field.size > 8 && field.size <= COPY_MAX && field.size.is_multiple_of(8);
    if field.is_data_loc() || field.is_rel_loc() || field.ty.contains("char") || !is_in_numbers {
        return None;
    }
    let piece = |at: usize| {
        let offset = (field.offset + at) as u16;
        let Origin::Number(value) = stores.origin(offset, 8) else { return None };
        let source = number(&value, 8, tracepoint).or_else(|_| computed(&value, 8, tracepoint)).ok()?;
        Some(FieldSource { offset, size: 8, source })
    };
    (0..field.size).step_by(8).map(piece).collect()
}

fn source(field: &Field, tracepoint: &Prototype, stores: &Stores) -> Result<Source, Underived> {
    if field.is_data_loc() || field.is_rel_loc() || field.size == 0 {
        return Err(Underived::Varies);
    }
    match stores.origin(field.offset as u16, field.size) {
        Origin::Number(value) if [1, 2, 4, 8].contains(&field.size) => {
            let size = field.size as u8;
            number(&value, size, tracepoint)
                .or_else(|why| computed(&value, size, tracepoint).map_err(|_| why))
        }
        Origin::Copy { from, offset } if field.size > 8 => {
            if field.size > COPY_MAX {
                return Err(Underived::Long);
            }
            let (arg, path) = place(&from, offset, tracepoint)?;
            Ok(Source::Memory { arg, path })
        }
        Origin::Number(_) | Origin::Copy { .. } | Origin::Computed => Err(Underived::Computed),
        Origin::Missing => Err(Underived::Missing),
        Origin::Differs => Err(Underived::Condition),
    }
}

/// The source of a number of so many bytes.
fn number(value: &Value, size: u8, tracepoint: &Prototype) -> Result<Source, Underived> {
    match value {
        Value::Const(number) => Ok(Source::Const(*number)),
        Value::Arg(number) => argument(*number, 8, size, tracepoint),
        Value::Low { of, size: known } => match &**of {
            Value::Arg(number) => argument(*number, *known, size, tracepoint),
            _ => Err(Underived::Computed),
        },
        Value::Load { from, offset, size: width } => memory(from, *offset, *width, size, false, tracepoint),
        Value::Signed { of, size: known, to } => match &**of {
            Value::Load { from, offset, size: width } if width == known && *to == size => {
                memory(from, *offset, *width, size, true, tracepoint)
            }
            Value::Low { of, .. } if matches!(**of, Value::Arg(_)) => Err(Underived::Width),
            _ => Err(Underived::Computed),
        },
        _ => Err(Underived::Computed),
    }
}

/// The source of a number of `size` bytes that is an argument, of which `known` bytes are used and the others are zero.
fn argument(number: u8, known: u8, size: u8, tracepoint: &Prototype) -> Result<Source, Underived> {
    let (arg, width) = parameter(number, tracepoint)?;
    // A program gets the argument with zeros above its width. If the field is not wider, it is cut off.
    if known == width || (known >= size && size <= width) {
        Ok(Source::Arg(arg))
    } else {
        Err(Underived::Width)
    }
}

/// The number of a tracepoint's argument, and its bytes, from the number of the handler's argument.
fn parameter(number: u8, tracepoint: &Prototype) -> Result<(u8, u8), Underived> {
    // The first is the event's file.
    let arg = number.checked_sub(1).ok_or(Underived::Variable)?;
    let param = tracepoint.params.get(usize::from(arg)).ok_or(Underived::Computed)?;
    // A structure that is passed by value takes several registers, and the numbers of arguments differ.
    let is_plain = |kind| matches!(kind, Kind::Number { .. } | Kind::Pointer { .. });
    if !tracepoint.params.iter().all(|param| is_plain(param.info.kind) && param.info.size <= 8) {
        return Err(Underived::Computed);
    }
    Ok((arg, param.info.size as u8))
}

/// The source of a number that is computed.
fn computed(value: &Value, size: u8, tracepoint: &Prototype) -> Result<Source, Underived> {
    let expression = expression(value, size, tracepoint)?;
    if expression.depth() > DEPTH_MAX {
        Err(Underived::Long)
    } else {
        Ok(Source::Computed(Box::new(expression)))
    }
}

/// The expression of a number of which the low `size` bytes count.
fn expression(value: &Value, size: u8, tracepoint: &Prototype) -> Result<Expression, Underived> {
    let extended = |of: &Value, size, signed| -> Result<Expression, Underived> {
        Ok(Expression::Extended { of: Box::new(expression(of, size, tracepoint)?), size, signed })
    };
    let both = |size, one: &Value, two: &Value| -> Result<[Expression; 2], Underived> {
        Ok([expression(one, size, tracepoint)?, expression(two, size, tracepoint)?])
    };
    match value {
        Value::Const(number) => Ok(Expression::Const(*number)),
        Value::Arg(number) => match parameter(*number, tracepoint)? {
            (arg, width) if size <= width => Ok(Expression::Arg(arg)),
            _ => Err(Underived::Width),
        },
        Value::Sum { of, offset } => {
            let operands = both(size, of, &Value::Const(offset.cast_unsigned()))?;
            Ok(Expression::Operation { operation: Operation::Add, size: 8, operands: Box::new(operands) })
        }
        Value::Load { from, offset, size: width } => {
            if let Ok((arg, path)) = place(from, *offset, tracepoint) {
                return Ok(Expression::Memory { arg, path, width: *width });
            }
            let from = Box::new(expression(from, 8, tracepoint)?);
            let offset = i32::try_from(*offset).map_err(|_| Underived::Long)?;
            Ok(Expression::Load { from, offset, width: *width })
        }
        Value::Low { of, size: low } => extended(of, *low, false),
        Value::Signed { of, size: low, to } => {
            let signed = extended(of, *low, true)?;
            Ok(if *to < 8 {
                Expression::Extended { of: Box::new(signed), size: *to, signed: false }
            } else {
                signed
            })
        }
        Value::Computed { operation, size, operands } => {
            let operands = Box::new(both(*size, &operands.0, &operands.1)?);
            Ok(Expression::Operation { operation: *operation, size: *size, operands })
        }
        Value::Choice { condition, numbers } => {
            let condition = Condition {
                comparison: condition.comparison,
                holds_if: condition.holds_if,
                size: condition.size,
                operands: both(condition.size, &condition.operands.0, &condition.operands.1)?,
            };
            let numbers = Box::new(both(size, &numbers.0, &numbers.1)?);
            Ok(Expression::Choice { condition: Box::new(condition), numbers })
        }
        Value::Stack(_) | Value::Record(_) | Value::Task | Value::Partial { .. } | Value::Other { .. } => {
            Err(Underived::Computed)
        }
    }
}

/// The source of a number in memory, of which `width` bytes are read.
fn memory(
    from: &Value,
    offset: i64,
    width: u8,
    size: u8,
    signed: bool,
    tracepoint: &Prototype,
) -> Result<Source, Underived> {
    let (arg, path) = place(from, offset, tracepoint)?;
    Ok(if width == size {
        Source::Memory { arg, path }
    } else {
        Source::Extended { arg, path, width, signed }
    })
}

/// The argument from which a place in memory is found, and the offsets on the way, the last of which is its own.
fn place(from: &Value, offset: i64, tracepoint: &Prototype) -> Result<(u8, Vec<u32>), Underived> {
    let (arg, mut path) = pointer(from, tracepoint)?;
    path.push(u32::try_from(offset).map_err(|_| Underived::Computed)?);
    if path.len() > PATH_MAX { Err(Underived::Long) } else { Ok((arg, path)) }
}

/// The argument from which an address comes, and the offsets of the pointers on the way.
fn pointer(address: &Value, tracepoint: &Prototype) -> Result<(u8, Vec<u32>), Underived> {
    match address {
        Value::Arg(number) => match parameter(*number, tracepoint)? {
            (arg, 8) => Ok((arg, Vec::new())),
            _ => Err(Underived::Computed),
        },
        Value::Load { from, offset, size: 8 } => {
            let (arg, mut path) = pointer(from, tracepoint)?;
            path.push(u32::try_from(*offset).map_err(|_| Underived::Computed)?);
            Ok((arg, path))
        }
        Value::Const(_) | Value::Other { of_arguments: false } => Err(Underived::Variable),
        _ => Err(Underived::Computed),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::{
        btf::{Param, TypeInfo},
        handler::tests::copies,
    };

    fn format(fields: &[(&str, &str, usize, usize)]) -> Format {
        let line = |(ty, name, offset, size): &(&str, &str, usize, usize)| {
            format!("\tfield:{ty} {name};\toffset:{offset};\tsize:{size};\tsigned:0;\n")
        };
        let fields: String = fields.iter().map(line).collect();
        Format::parse("s", &format!("name: copies\nID: 7\nformat:\n{fields}\nprint fmt: \"\"\n")).unwrap()
    }

    fn tracepoint(types: &[(u32, Kind)]) -> Prototype {
        let param = |(size, kind): &(u32, Kind)| Param {
            name: None,
            ty: "t".to_owned(),
            info: TypeInfo { id: 1, size: *size, kind: *kind },
        };
        Prototype { params: types.iter().map(param).collect(), returns: None }
    }

    const NUMBER: Kind = Kind::Number { signed: false };
    const POINTER: (u32, Kind) = (8, Kind::Pointer { to: 1 });

    #[test]
    fn sources_are_what_the_handler_copies() {
        let fields = [
            ("char", "name[16]", 8, 16),
            ("void *", "pointer", 24, 8),
            ("u32", "arg", 32, 4),
            ("int", "number", 36, 4),
            ("long", "wide", 40, 8),
            ("u32", "deep", 48, 4),
            ("bool", "flag", 52, 1),
            ("u64", "sum", 56, 8),
        ];
        let tracepoint = tracepoint(&[POINTER, (4, NUMBER), (1, NUMBER)]);
        let sources: Vec<Source> = sources(&format(&fields), &tracepoint, &copies())
            .unwrap()
            .into_iter()
            .map(|field| field.source)
            .collect();
        let memory = |path: &[u32]| Source::Memory { arg: 0, path: path.to_vec() };
        let expected = [
            memory(&[16]),
            Source::Arg(0),
            Source::Arg(1),
            memory(&[32]),
            Source::Extended { arg: 0, path: vec![32], width: 4, signed: true },
            memory(&[8, 8]),
            Source::Arg(2),
            Source::Computed(Box::new(Expression::Operation {
                operation: Operation::Add,
                size: 8,
                operands: Box::new([
                    Expression::Extended { of: Box::new(Expression::Arg(1)), size: 4, signed: false },
                    Expression::Memory { arg: 0, path: vec![0], width: 8 },
                ]),
            })),
        ];
        assert_eq!(sources, expected);
    }

    #[test]
    fn other_fields_have_no_source() {
        let three = tracepoint(&[POINTER, (4, NUMBER), (1, NUMBER)]);
        let of =
            |field, tracepoint: &Prototype| sources(&format(&[field]), tracepoint, &copies()).unwrap_err().1;
        assert_eq!(of(("u64", "more", 64, 8), &three), Underived::Missing);
        assert_eq!(of(("u32", "flags", 52, 4), &three), Underived::Missing);
        assert_eq!(of(("__data_loc char[]", "text", 32, 4), &three), Underived::Varies);
        // The field has four bytes of an argument that has two.
        let narrow = tracepoint(&[POINTER, (2, NUMBER), (1, NUMBER)]);
        assert_eq!(of(("u32", "arg", 32, 4), &narrow), Underived::Width);
        // An argument that takes several registers moves those after it.
        let by_value = tracepoint(&[POINTER, (4, NUMBER), (16, Kind::Struct)]);
        assert_eq!(of(("u32", "arg", 32, 4), &by_value), Underived::Computed);
        let few = tracepoint(&[POINTER]);
        assert_eq!(of(("u32", "arg", 32, 4), &few), Underived::Computed);
    }
}
