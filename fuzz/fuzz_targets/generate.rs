//! Queries made of the bytes: each step of a range query is the instant query at that time.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| firn_promqltest::check_generated(data));
