//! Parser of histogram triggers (`kernel/trace/trace_events_hist.c`).
//!
//! The syntax is `hist:keys=...[:vals=...][:sort=...][:size=N][:name=N][:VAR=EXPR]...[:HANDLER.ACTION]... [if FILTER]`.
//!
//! [`Command`] splits the text; [`expr`] and [`action`] build trees of the parts. [`resolve`] and `build` look up
//! names in an event ([`Format`]), in the existing histograms ([`Set`]) and in the other facts ([`World`]). The result
//! is a [`Hist`] of [`Value`]s. The kernel does all of this in one pass and stops at the first error. The order here is
//! the kernel's wherever two errors are possible. A leading `!` builds the same histogram and then searches for an
//! equal one.
//!
//! This layer has no tables: `plan::hist` lays out keys and counters, `render::hist` prints them.

pub mod action;
mod build;
mod checked;
mod command;
mod dialect;
mod error;
pub mod expr;
#[cfg(any(test, feature = "internals"))]
mod fixed;
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
#[cfg(any(test, feature = "internals"))]
pub use fixed::Fixed;
pub use set::{Applied, Change, Set, Trigger, TriggerId};
pub use sort::SortKey;
pub use value::{Flags, Function, HistId, STACK_DEPTH, STACK_SIZE, Slot, TEXT_MAX, Value};

use super::filter::FilterError;
use crate::event::{Format, InstanceId, synthetic};

/// Facts for histograms, in addition to the existing histograms.
pub trait World {
    /// The instance whose events and variables apply, if there are several.
    fn instance(&self) -> InstanceId {
        InstanceId::TOP
    }

    /// The language features of the kernel.
    fn dialect(&self) -> Dialect;

    /// Finds an event.
    fn event(&self, system: &str, name: &str) -> Option<Arc<Format>>;

    /// Whether an event exists.
    fn has_event(&self, system: &str, name: &str) -> bool {
        self.event(system, name).is_some()
    }

    /// Finds a synthetic event.
    fn synthetic(&self, name: &str) -> Option<Arc<synthetic::Event>>;

    /// Whether a clock of this name exists.
    fn has_clock(&self, name: &[u8]) -> bool;

    /// Whether an event accepts this filter.
    ///
    /// # Errors
    /// Why the filter is invalid.
    fn filter(&self, event: &Format, text: &[u8]) -> Result<(), FilterError>;
}
