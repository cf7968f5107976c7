//! The common fields at the start of each record: `common_type`, two bytes of flags, `common_pid`.

use tracer_abi::COMMON_SIZE;

/// The kind of a record; 0 if it is too short.
pub(crate) fn kind_of(record: &[u8]) -> u16 {
    record.first_chunk().map_or(0, |kind| u16::from_ne_bytes(*kind))
}

/// The thread of a record; 0 if it is too short.
pub(crate) fn pid_of(record: &[u8]) -> i32 {
    record.get(4..).and_then(<[u8]>::first_chunk).map_or(0, |pid| i32::from_ne_bytes(*pid))
}

/// The common fields of a record without flags.
pub(crate) fn common_fields(kind: u16, pid: u32) -> [u8; COMMON_SIZE] {
    let ([low, high], [a, b, c, d]) = (kind.to_ne_bytes(), pid.to_ne_bytes());
    [low, high, 0, 0, a, b, c, d]
}
