//! The seam between templates and generated code: symbols that a template leaves undefined and
//! `code::link` defines.

/// `fn tracer_filter(ctx: *mut c_void, scratch: *mut u8) -> u64`: not 0 when the hit is to be recorded.
/// `scratch` points to [`FILTER_AREA`](crate::FILTER_AREA) bytes of map memory for strings that a filter
/// fetches, and is null in a program whose filter fetches none.
pub const FILTER: &str = "tracer_filter";

/// `fn tracer_record(ctx: *mut c_void, payload: *mut u8) -> u64`: writes everything behind the common
/// fields to `payload` (which points at the payload's first byte, common fields included) and returns the
/// payload's whole length in bytes.
pub const RECORD: &str = "tracer_record";
