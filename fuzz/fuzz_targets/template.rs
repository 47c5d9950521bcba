//! Templates of alerts, as rule files contain them.

#![no_main]

firn_fuzz::fuzzer!(firn_rules::fuzz::template, base_bytes: 96 << 20, bytes_per_byte: 4 << 10);
