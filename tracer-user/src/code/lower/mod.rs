//! Lowering: turns a filter or a record's layout at a hook into eBPF functions.
//!
//! An [`Emitter`](emitter) owns the function that is being generated. [`values`] loads numbers from the context,
//! [`filter`] tests them, and [`probe`] fetches the values of dynamic events. Values are loaded into R0, and constants
//! too wide for an immediate into R5.

mod emission;
mod emitter;
mod exits;
mod facts;
mod filter;
pub mod hist;
mod image;
mod output;
mod probe;
mod record;
pub mod relay;
mod trigger;
mod user_data;
mod user_record;
mod values;

pub use emission::{EMIT, emission};
pub use filter::filter;
pub use output::{Code, LowerError, Needs};
pub use probe::{entry_args, prefault};
pub use record::record;
pub use trigger::trigger;

#[cfg(test)]
mod tests;

#[cfg(test)]
mod goldens;
