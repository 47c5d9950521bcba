//! Bodies of remote write 1.0, decompressed.

#![no_main]

firn_fuzz::fuzzer!(firn_server::fuzz::remote_write, base_bytes: 64 << 10, bytes_per_byte: 64);
