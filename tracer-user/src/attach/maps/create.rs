//! Creation of maps.

use crate::{
    attach::Cause,
    sys::bpf::map::{Map, MapKind, MapSpec},
};

/// A map with keys of four bytes.
pub(crate) fn spec(kind: MapKind, value_size: usize, max_entries: u32, name: &str) -> MapSpec<'_> {
    MapSpec { kind, key_size: 4, value_size: value_size as u32, max_entries, flags: 0, inner: None, name }
}

pub(crate) fn create(spec: &MapSpec<'_>) -> Result<Map, Cause> {
    let kind = match spec.kind {
        MapKind::Hash | MapKind::PerCpuHash | MapKind::LruHash => "hash",
        MapKind::Array | MapKind::PerCpuArray => "array",
        MapKind::ProgArray => "program array",
        MapKind::ArrayOfMaps => "array of maps",
        MapKind::RingBuf => "ring buffer",
    };
    Map::create(spec).map_err(|errno| Cause::Map(kind, errno))
}

pub(crate) fn array(value_size: usize, max_entries: u32, name: &str) -> Result<Map, Cause> {
    create(&spec(MapKind::Array, value_size, max_entries, name))
}

/// An array with one value for each CPU.
pub(crate) fn per_cpu(value_size: usize, name: &str) -> Result<Map, Cause> {
    create(&spec(MapKind::PerCpuArray, value_size, 1, name))
}

pub(crate) fn ring_buffer(bytes: u32, name: &str) -> Result<Map, Cause> {
    create(&MapSpec { key_size: 0, ..spec(MapKind::RingBuf, 0, bytes, name) })
}
