//! Fuzzes program files and their `.note.tracer` sections ([`tracer_fuzz::note`]).
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| tracer_fuzz::note::run(data));
