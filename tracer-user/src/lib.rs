//! Linux event tracing with the semantics of tracefs, done by eBPF.
//!
//! [`api`] is the public library: it records events, counts them in histograms, and defines, enables and emits events.
//! Everything else is private.
//!
//! The feature `internals` makes the layers below public for the tests, benchmarks and fuzz targets of this
//! workspace. It is unstable: any version may change it.
//!
//! Each module is a layer. A module imports only from the modules before it, which `cargo xtask lint` checks:
//! `sys < kernel < event < lang < plan < code < attach < ring < buffer < render < engine < api < fs < cli`.
//! docs/design/architecture.md describes the layers.

// `pub` and `pub use` in a layer are for the feature `internals`, so these lints are enabled only with it.
#![cfg_attr(not(feature = "internals"), allow(unreachable_pub, unused_imports))]
// The documentation of the layers is read with `--document-private-items`.
#![cfg_attr(feature = "internals", allow(rustdoc::private_intra_doc_links))]
// A panic ends the daemon in a release build. So invalid input must return an error, and a remaining panic must state
// why it cannot happen.
#![warn(
    clippy::expect_used,
    clippy::panic,
    clippy::todo,
    clippy::unimplemented,
    clippy::unreachable,
    clippy::unwrap_used,
    clippy::get_unwrap,
    clippy::indexing_slicing,
    clippy::string_slice
)]

#[cfg(not(feature = "internals"))]
#[allow(unsafe_code)]
mod sys;
#[cfg(feature = "internals")]
#[allow(unsafe_code)]
pub mod sys;

#[cfg(not(feature = "internals"))]
mod kernel;
#[cfg(feature = "internals")]
pub mod kernel;

#[cfg(not(feature = "internals"))]
mod event;
#[cfg(feature = "internals")]
pub mod event;

#[cfg(not(feature = "internals"))]
mod lang;
#[cfg(feature = "internals")]
pub mod lang;

// `plan` and `code` work on values that earlier layers have checked, so their indices are trusted.
#[cfg(not(feature = "internals"))]
#[allow(clippy::indexing_slicing)]
mod plan;
#[cfg(feature = "internals")]
#[allow(clippy::indexing_slicing)]
pub mod plan;

#[cfg(not(feature = "internals"))]
#[allow(clippy::indexing_slicing)]
mod code;
#[cfg(feature = "internals")]
#[allow(clippy::indexing_slicing)]
pub mod code;

#[cfg(not(feature = "internals"))]
mod attach;
#[cfg(feature = "internals")]
pub mod attach;

#[cfg(not(feature = "internals"))]
mod ring;
#[cfg(feature = "internals")]
pub mod ring;

#[cfg(not(feature = "internals"))]
mod buffer;
#[cfg(feature = "internals")]
pub mod buffer;

#[cfg(not(feature = "internals"))]
mod render;
#[cfg(feature = "internals")]
pub mod render;

#[cfg(not(feature = "internals"))]
mod engine;
#[cfg(feature = "internals")]
pub mod engine;

pub mod api;

#[cfg(not(feature = "internals"))]
mod fs;
#[cfg(feature = "internals")]
pub mod fs;

#[doc(hidden)]
pub mod cli;
