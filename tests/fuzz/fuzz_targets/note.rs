//! Files of programs, and `.note.tracer` in them ([`tracer_fuzz::note`]).
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| tracer_fuzz::note::run(data));
