//! Configuration files of `firn serve` and `firn cache`.

#![no_main]

firn_fuzz::fuzzer!(firn_server::fuzz::config_file, base_bytes: 8 << 20, bytes_per_byte: 512);
