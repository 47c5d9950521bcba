//! Any bytes, sent by a client of `firn cache`.

#![no_main]

firn_fuzz::fuzzer!(firn_server::fuzz::cache_protocol, base_bytes: 16 << 10, bytes_per_byte: 64);
