//! Scraped bodies of all formats, from the cache and without it.

#![no_main]

firn_fuzz::fuzzer!(firn_collect::scrape::fuzz::scrape, base_bytes: 1 << 20, bytes_per_byte: 2048);
