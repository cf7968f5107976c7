//! Expressions: any of them, and what they are worth by arithmetic.

use super::*;
use crate::plan::expression::{Comparison, Condition, Expression, Operation};

const OPERATIONS: [Operation; 9] = [
    Operation::Add,
    Operation::Subtract,
    Operation::Multiply,
    Operation::And,
    Operation::Or,
    Operation::Xor,
    Operation::ShiftLeft,
    Operation::ShiftRight,
    Operation::ShiftRightSigned,
];

const COMPARISONS: [Comparison; 5] = [
    Comparison::Equal,
    Comparison::Less,
    Comparison::LessOrEqual,
    Comparison::SignedLess,
    Comparison::SignedLessOrEqual,
];

/// Expressions of arguments 0 to 3 and of memory at argument 1.
pub(super) fn expression() -> impl Strategy<Value = Expression> {
    let size = || prop::sample::select(vec![1_u8, 2, 4, 8]);
    let leaf = prop_oneof![
        prop_oneof![Just(0), Just(1), Just(u64::MAX), any::<u64>()].prop_map(Expression::Const),
        (0_u8..4).prop_map(Expression::Arg),
        (0_u32..24, size()).prop_map(|(at, width)| Expression::Memory {
            arg: 1,
            path: vec![at * u32::from(width)],
            width
        }),
    ];
    leaf.prop_recursive(5, 24, 4, move |inner| {
        let operands = |size, operands: [Expression; 2]| operands.map(|operand| cut(operand, size));
        let two = || [inner.clone(), inner.clone()];
        prop_oneof![
            (inner.clone(), prop::sample::select(vec![1_u8, 2, 4]), any::<bool>())
                .prop_map(|(of, size, signed)| Expression::Extended { of: Box::new(of), size, signed }),
            // An address: that of the second object, moved by a number below 64.
            (inner.clone(), -16_i32..64, size()).prop_map(|(by, offset, width)| {
                let operands = |operation, one, two| {
                    Box::new(Expression::Operation { operation, size: 8, operands: Box::new([one, two]) })
                };
                let by = *operands(Operation::And, by, Expression::Const(63));
                Expression::Load { from: operands(Operation::Add, Expression::Arg(1), by), offset, width }
            }),
            (prop::sample::select(OPERATIONS.to_vec()), size(), two()).prop_map(
                move |(operation, size, two)| Expression::Operation {
                    operation,
                    size,
                    operands: Box::new(operands(size, two))
                }
            ),
            (prop::sample::select(COMPARISONS.to_vec()), any::<bool>(), size(), two(), two()).prop_map(
                move |(comparison, holds_if, size, two, numbers)| {
                    let operands = operands(size, two);
                    let condition = Box::new(Condition { comparison, holds_if, size, operands });
                    Expression::Choice { condition, numbers: Box::new(numbers) }
                }
            ),
        ]
    })
}

/// A number with zeros above its low bytes.
fn cut(of: Expression, size: u8) -> Expression {
    if size == 8 { of } else { Expression::Extended { of: Box::new(of), size, signed: false } }
}

/// What an expression is worth, with the bytes of memory at a place.
pub(super) fn worth(
    expression: &Expression,
    args: &[u64],
    memory: &dyn Fn(u8, &[u32], u8) -> u64,
    at: &dyn Fn(u64, u8) -> u64,
) -> u64 {
    let of = |expression: &Expression| worth(expression, args, memory, at);
    match expression {
        Expression::Const(number) => *number,
        Expression::Arg(arg) => args[usize::from(*arg)],
        Expression::Memory { arg, path, width } => memory(*arg, path, *width),
        Expression::Load { from, offset, width } => {
            at(of(from).wrapping_add_signed(i64::from(*offset)), *width)
        }
        Expression::Extended { of: number, size, signed } => {
            let number = of(number);
            if *signed { with_sign(number, *size).cast_unsigned() } else { low(number, *size) }
        }
        Expression::Operation { operation, size, operands } => {
            let [one, two] = [of(&operands[0]), of(&operands[1])];
            let by = (two & if *size == 8 { 63 } else { 31 }) as u32;
            let wide = i128::from(one);
            let result = match operation {
                Operation::Add => wide + i128::from(two),
                Operation::Subtract => wide - i128::from(two),
                Operation::Multiply => i128::from(one.wrapping_mul(two)),
                Operation::And => i128::from(one & two),
                Operation::Or => i128::from(one | two),
                Operation::Xor => i128::from(one ^ two),
                Operation::ShiftLeft => wide << by,
                Operation::ShiftRight => wide >> by,
                Operation::ShiftRightSigned => i128::from(with_sign(one, *size)) >> by,
            };
            low(result as u64, *size)
        }
        Expression::Choice { condition, numbers } => {
            let [one, two] = [of(&condition.operands[0]), of(&condition.operands[1])];
            let signed = (with_sign(one, condition.size), with_sign(two, condition.size));
            let result = match condition.comparison {
                Comparison::Equal => one == two,
                Comparison::Less => one < two,
                Comparison::LessOrEqual => one <= two,
                Comparison::SignedLess => signed.0 < signed.1,
                Comparison::SignedLessOrEqual => signed.0 <= signed.1,
            };
            of(&numbers[usize::from(result != condition.holds_if)])
        }
    }
}

fn low(number: u64, size: u8) -> u64 {
    if size == 8 { number } else { number % (1 << (8 * size)) }
}

fn with_sign(number: u64, size: u8) -> i64 {
    match size {
        1 => i64::from(number as i8),
        2 => i64::from(number as i16),
        4 => i64::from(number as i32),
        _ => number as i64,
    }
}
