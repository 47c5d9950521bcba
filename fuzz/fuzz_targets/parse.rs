//! Any text parses or returns an error with a reason, and prints as an equal expression.

#![no_main]

firn_fuzz::fuzzer!(firn_promqltest::check_text, base_bytes: 2 << 20, bytes_per_byte: 4096);
