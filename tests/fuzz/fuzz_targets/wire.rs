//! Fuzzes records and values that come from programs ([`tracer_fuzz::wire`]).
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| tracer_fuzz::wire::run(data));
