//! What the kernel's handler of an event stores in a record.
//!
//! The kernel compiles a function for each class of events, `trace_event_raw_event_CLASS`. It gets the event's file (`struct
//! trace_event_file`) and the tracepoint's arguments, reserves a record (`trace_event_buffer_reserve()`), stores each field
//! and commits the record (`trace_event_buffer_commit()`). This module executes the function's instructions, read from the
//! running kernel, symbolically: a number is represented by its origin ([`Value`]). So the origin of each field is found
//! without a table.
//!
//! Both sides of each branch are followed. Where the paths that commit the record store different numbers, the condition of
//! the branch decides between them. Anything that is not supported ends the analysis ([`Unfollowed`]): a call of another
//! function, an instruction that is not listed here, a store to other memory.

mod arm64;
mod machine;
mod memory;
#[cfg(test)]
pub(crate) mod tests;
mod text;
mod value;
mod x86;

use std::collections::BTreeMap;

pub use text::{CHECKS, COPIES, Callees, ENDS, FILLS, InstructionSet, KernelText, Unfollowed};
pub use value::{Comparison, Condition, Operation, Value};

use machine::Path;

/// The origin of bytes of a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// One number.
    Number(Value),
    /// Memory that is copied: the address, without the offset, and the offset.
    Copy {
        /// The address, without the offset.
        from: Value,
        /// Byte offset.
        offset: i64,
    },
    /// Nothing is stored there, or only in some of the bytes.
    Missing,
    /// The paths through the handler store different bytes, and the condition is not known.
    Differs,
    /// A number that is computed.
    Computed,
}

/// What a handler stores.
#[derive(Clone, Debug)]
pub struct Stores(Vec<Path>);

/// Follows the handler at an address.
///
/// # Errors
/// The first thing that is not understood.
pub fn follow(
    address: u64,
    set: InstructionSet,
    callees: &Callees,
    text: &mut dyn KernelText,
) -> Result<Stores, Unfollowed> {
    let paths = match set {
        InstructionSet::X86_64 => machine::paths(x86::start(address), callees, text, x86::step)?,
        InstructionSet::Arm64 => machine::paths(arm64::start(address), callees, text, arm64::step)?,
    };
    if paths.is_empty() {
        return Err(Unfollowed::NoRecord);
    }
    Ok(Stores(paths))
}

impl Stores {
    /// The origin of these bytes of the record.
    pub fn origin(&self, offset: u16, bytes: usize) -> Origin {
        let paths: Vec<&Path> = self.0.iter().collect();
        origin_of_all(&paths, 0, &|path| origin(path, i64::from(offset), bytes))
    }
}

/// The origin of bytes on paths that have their first `depth` decisions in common. Where paths part by a condition that is
/// known, it decides between their numbers.
fn origin_of_all(paths: &[&Path], depth: usize, of: &dyn Fn(&Path) -> Origin) -> Origin {
    let Some((first, others)) = paths.split_first() else { return Origin::Missing };
    let one = of(first);
    if others.iter().all(|path| of(path) == one) {
        return one;
    }
    // Paths that have the same decisions so far meet the same branch next.
    let Some(condition) = first.decisions().get(depth).map(|decision| decision.condition.clone()) else {
        return Origin::Differs;
    };
    let holds = |path: &Path| path.decisions().get(depth).is_some_and(|decision| decision.holds);
    let (with, without): (Vec<&Path>, Vec<&Path>) = paths.iter().partition(|path| holds(path));
    if with.is_empty() || without.is_empty() {
        return origin_of_all(paths, depth + 1, of);
    }
    match (origin_of_all(&with, depth + 1, of), origin_of_all(&without, depth + 1, of), condition) {
        (with, without, _) if with == without => with,
        (Origin::Number(with), Origin::Number(without), Some(condition)) => {
            match Value::choice(Some((*condition).clone()), with, without, true) {
                Value::Other { .. } => Origin::Computed,
                value => Origin::Number(value),
            }
        }
        (Origin::Computed, _, _) | (_, Origin::Computed, _) => Origin::Computed,
        _ => Origin::Differs,
    }
}

fn origin(path: &Path, offset: i64, bytes: usize) -> Origin {
    let parts: BTreeMap<i64, (u8, &Value)> = path
        .record()
        .parts(offset, bytes as i64)
        .map(|(at, size, value)| (at - offset, (size, value)))
        .collect();
    if let Some((size, value)) = parts.get(&0)
        && usize::from(*size) >= bytes
    {
        let value = (*value).clone().low(bytes as u8);
        return if matches!(value, Value::Other { .. } | Value::Partial { .. }) {
            Origin::Computed
        } else {
            Origin::Number(value)
        };
    }
    let mut next = 0;
    for (at, (size, _)) in &parts {
        if *at != next {
            return Origin::Missing;
        }
        next = at + i64::from(*size);
    }
    if next != bytes as i64 {
        return Origin::Missing;
    }
    // Several stores: they must copy memory that is in one piece too.
    let mut copy: Option<(&Value, i64)> = None;
    for (at, (size, value)) in &parts {
        let Value::Load { from, offset, size: read } = value else { return Origin::Computed };
        let piece = (&**from, offset.wrapping_sub(*at));
        if read != size || copy.is_some_and(|copy| copy != piece) {
            return Origin::Computed;
        }
        copy = Some(piece);
    }
    copy.map_or(Origin::Missing, |(from, offset)| Origin::Copy { from: from.clone(), offset })
}
