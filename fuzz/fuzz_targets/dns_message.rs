//! Answers of name servers.

#![no_main]

firn_fuzz::fuzzer!(firn_fetch::dns::fuzz::dns_message, base_bytes: 64 << 10, bytes_per_byte: 512);
