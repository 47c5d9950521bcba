//! Samples in the chunks of remote read, decoded as readers do.

#![no_main]

firn_fuzz::fuzzer!(firn_server::fuzz::xor_chunk, base_bytes: 64 << 10, bytes_per_byte: 32);
