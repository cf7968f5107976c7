//! Fuzzes the tree with requests in any order and with any arguments ([`tracer_fuzz::tree`]).
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| tracer_fuzz::tree::run(data));
