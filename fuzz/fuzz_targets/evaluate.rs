//! Any text as a query over small storage, at ordinary and absurd times.

#![no_main]

firn_fuzz::fuzzer!(firn_promqltest::check_evaluation, base_bytes: 64 << 20, bytes_per_byte: 4096);
