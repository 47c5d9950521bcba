//! Remote read requests.

#![no_main]

firn_fuzz::fuzzer!(firn_server::fuzz::remote_read, base_bytes: 128 << 20, bytes_per_byte: 512);
