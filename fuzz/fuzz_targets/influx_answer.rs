//! Answers of an InfluxDB behind the proxy.

#![no_main]

firn_fuzz::fuzzer!(firn_server::fuzz::influx_answer, base_bytes: 64 << 10, bytes_per_byte: 512);
