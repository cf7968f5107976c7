//! Histogram triggers: `hist:keys=...[:vals=...][:sort=...][:size=N][:name=N][:VAR=EXPR]...[:HANDLER.ACTION]...
//! [if FILTER]` (kernel/trace/trace_events_hist.c).
//!
//! [`Command`] takes the text apart, [`expr`] and [`action`] make trees of the parts, [`resolve`] and [`params`] look
//! names up in an event ([`Format`]), in the histograms that are there ([`Set`]) and in what else there is ([`World`]),
//! and the result is a [`Hist`] of [`Value`]s. The kernel does all of it in one go and stops at the first error; the
//! order here is the kernel's wherever two things can be wrong at once. `!` in front makes the same histogram and then
//! looks for its equal.
//!
//! No table is here: `plan::hist` lays out keys and counters, `render::hist` shows them.

pub mod action;
mod checked;
mod command;
mod dialect;
mod error;
pub mod expr;
mod fixed;
mod params;
pub mod resolve;
mod set;
mod sort;
mod split;
#[cfg(test)]
mod tests;
mod value;

use std::sync::Arc;

pub use checked::Hist;
pub use command::Command;
pub use dialect::{Dialect, Feature};
pub use error::{Entry, ErrorKind, Log, Refusal};
pub use fixed::Fixed;
pub use set::{Change, Set, Taken, Trigger, TriggerId};
pub use sort::SortKey;
pub use value::{Flags, Function, HistId, STACK_DEPTH, STACK_SIZE, Slot, TEXT_MAX, Value};

use super::filter::FilterError;
use crate::event::{Format, synthetic};

/// What histograms may be about, beside the histograms that there are.
pub trait World {
    /// The instance whose events and variables are meant, where there are several.
    fn instance(&self) -> u32 {
        0
    }

    /// How much of the language there is.
    fn dialect(&self) -> Dialect;

    /// An event.
    fn event(&self, system: &str, name: &str) -> Option<Arc<Format>>;

    /// Whether there is this event.
    fn has_event(&self, system: &str, name: &str) -> bool {
        self.event(system, name).is_some()
    }

    /// A synthetic event.
    fn synthetic(&self, name: &str) -> Option<Arc<synthetic::Event>>;

    /// Whether there is a clock of this name.
    fn has_clock(&self, name: &[u8]) -> bool;

    /// Whether an event's filter may be this one.
    ///
    /// # Errors
    /// When not, and why.
    fn filter(&self, event: &Format, text: &[u8]) -> Result<(), FilterError>;
}
