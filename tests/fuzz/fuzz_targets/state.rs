//! Fuzzes state files ([`tracer_fuzz::state`]).
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| tracer_fuzz::state::run(data));
