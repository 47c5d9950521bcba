//! Any text: parses or says why not, and prints as what it is.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| firn_promql::testing::check_text(data));
