//! Bodies in the text exposition format.

#![no_main]

firn_fuzz::fuzzer!(firn_server::fuzz::exposition, base_bytes: 64 << 10, bytes_per_byte: 64);
