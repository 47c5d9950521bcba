//! Snappy blocks and gzip bodies, with any declared length.

#![no_main]

firn_fuzz::fuzzer!(firn_server::fuzz::compression, base_bytes: 2 << 20, bytes_per_byte: 32);
