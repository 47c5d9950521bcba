//! Responses of a cache server, as its client reads them.

#![no_main]

firn_fuzz::fuzzer!(firn_cache_client::fuzz::reply, base_bytes: 64 << 10, bytes_per_byte: 16);
