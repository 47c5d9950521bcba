//! Answers of a Prometheus behind the proxy.

#![no_main]

firn_fuzz::fuzzer!(firn_server::fuzz::prometheus_answer, base_bytes: 64 << 10, bytes_per_byte: 512);
