//! Bodies of the group API in JSON.

#![no_main]

firn_fuzz::fuzzer!(firn_server::fuzz::groups_json, base_bytes: 64 << 10, bytes_per_byte: 128);
