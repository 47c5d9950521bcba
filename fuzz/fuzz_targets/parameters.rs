//! Parameters of URLs and forms.

#![no_main]

firn_fuzz::fuzzer!(firn_server::fuzz::parameters, base_bytes: 64 << 10, bytes_per_byte: 64);
