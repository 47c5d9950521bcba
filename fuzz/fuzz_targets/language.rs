//! Queries, and the JSON tree and the lines that the API returns of them.

#![no_main]

firn_fuzz::fuzzer!(firn_server::fuzz::language, base_bytes: 2 << 20, bytes_per_byte: 4096);
