//! Linux event tracing with the semantics of tracefs, done by eBPF.
//!
//! Each module is a layer. Data flows one way: a module imports only from those listed before it
//! (`cargo xtask lint` checks it): `sys < kernel < event < lang < plan < code < attach < ring <
//! buffer < render < engine < api < fs < cli`. docs/design/architecture.md describes the layers.

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

#[allow(unsafe_code)]
pub mod sys;

pub mod kernel;

pub mod event;

pub mod lang;

// What `plan` and `code` work on is made here, of what the layers before have checked: an index is our own.
#[allow(clippy::indexing_slicing)]
pub mod plan;

#[allow(clippy::indexing_slicing)]
pub mod code;

pub mod attach;

pub mod ring;

pub mod buffer;

pub mod render;

pub mod engine;

pub mod api;

pub mod fs;

pub mod cli;
