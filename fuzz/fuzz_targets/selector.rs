//! Selectors of `match[]`, and matching with them.

#![no_main]

firn_fuzz::fuzzer!(firn_server::fuzz::selector, base_bytes: 128 << 20, bytes_per_byte: 4096);
