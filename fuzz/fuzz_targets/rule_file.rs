//! Rule files.

#![no_main]

firn_fuzz::fuzzer!(firn_rules::fuzz::rule_file, base_bytes: 64 << 20, bytes_per_byte: 64 << 10);
