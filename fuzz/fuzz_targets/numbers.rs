//! Numbers, times and durations.

#![no_main]

firn_fuzz::fuzzer!(firn_server::fuzz::numbers, base_bytes: 64 << 10, bytes_per_byte: 64);
