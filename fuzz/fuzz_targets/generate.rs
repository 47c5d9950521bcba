//! Queries made of the bytes: each step of a range query is the instant query at that time.

#![no_main]

firn_fuzz::fuzzer!(firn_promqltest::check_generated, base_bytes: 64 << 20, bytes_per_byte: 4096);
