//! Any text parses or returns an error with a reason, and prints as an equal expression.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| firn_promqltest::check_text(data));
