//! Headers that negotiate the form of a response.

#![no_main]

firn_fuzz::fuzzer!(firn_server::fuzz::headers, base_bytes: 64 << 10, bytes_per_byte: 128);
