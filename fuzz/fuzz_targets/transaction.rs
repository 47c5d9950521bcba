//! Operations of a transaction in JSON.

#![no_main]

firn_fuzz::fuzzer!(firn_server::fuzz::transaction, base_bytes: 128 << 20, bytes_per_byte: 512);
