//! Files of users and TLS.

#![no_main]

firn_fuzz::fuzzer!(firn_server::fuzz::web_config, base_bytes: 8 << 20, bytes_per_byte: 512);
