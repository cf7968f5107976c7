//! Linux event tracing with the semantics of tracefs, done by eBPF.
//!
//! [`api`] is the public library: record events as an iterator, and make, enable and trace events. Everything else is private.
//!
//! The feature `internals` makes the layers below public for the tests, benchmarks and fuzz targets of this workspace. It is
//! unstable: any version may change anything of it.
//!
//! Each module is a layer. A module imports only from those listed before it (`cargo xtask lint` checks it): `sys < kernel <
//! event < lang < plan < code < attach < ring < buffer < render < engine < api < fs < cli`. docs/design/architecture.md
//! describes the layers.

// `pub` and `pub use` in a layer are for the feature `internals`; with it both lints are on.
#![cfg_attr(not(feature = "internals"), allow(unreachable_pub, unused_imports))]
// Documentation of the layers is read with `--document-private-items`.
#![cfg_attr(feature = "internals", allow(rustdoc::private_intra_doc_links))]
// The daemon of a release build ends at a panic: what comes from outside makes an error, and what stands must say why it holds.
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

// What `plan` and `code` work on is made here, of what the layers before have checked: an index is our own.
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
