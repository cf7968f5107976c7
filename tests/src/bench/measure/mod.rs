//! The measurements, each with its tables.

mod all;
mod consumers;
mod cost;
mod delays;
mod events;
mod first;
mod functions;
mod parts;
mod probe;
mod throughput;
mod unread;
mod untraced;

use anyhow::Result;

use super::plan::{Part, Plan};
use super::raw::RawData;

/// Runs a part and returns its tables.
pub(super) fn part(part: Part, plan: &Plan, raw: &mut RawData) -> Result<String> {
    match part {
        Part::Cost => cost::run(plan, raw),
        Part::Untraced => untraced::run(plan, raw),
        Part::Consumers => consumers::run(plan, raw),
        Part::Probes => probe::run(plan, raw),
        Part::Functions => functions::run(plan, raw),
        Part::Events => events::run(plan, raw),
        Part::First => first::run(plan, raw),
        Part::Unread => unread::run(plan, raw),
        Part::Throughput => throughput::run(plan, raw),
        Part::All => all::run(plan, raw),
        Part::Delays => delays::run(plan, raw),
        Part::Parts => parts::run(raw),
    }
}
