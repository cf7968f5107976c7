//! Waiting for programs that run.

use std::os::fd::AsFd;

use super::map::{Map, MapKind, MapSpec};
use crate::sys::Errno;

/// Waits until every program that runs at this moment has ended, sleepable ones excepted. It takes a grace period of RCU,
/// 10 to 40 ms.
///
/// A map of maps is changed: the kernel then waits, because a program may still use the old inner map
/// (`maybe_wait_bpf_programs()`, kernel/bpf/syscall.c, 4.20).
///
/// # Errors
/// When the kernel refuses the maps.
pub fn wait_for_programs() -> Result<(), Errno> {
    let array = MapSpec {
        kind: MapKind::Array,
        key_size: 4,
        value_size: 8,
        max_entries: 1,
        flags: 0,
        inner: None,
        name: "tracer_wait",
    };
    let inner = [Map::create(&array)?];
    let outer =
        MapSpec { kind: MapKind::ArrayOfMaps, value_size: 4, inner: inner.first().map(AsFd::as_fd), ..array };
    Map::create(&outer)?.set_fds(&inner)
}
