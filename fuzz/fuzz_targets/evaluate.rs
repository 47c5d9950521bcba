//! Any text as a query over small storage, at ordinary and absurd times.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| firn_promqltest::check_evaluation(data));
