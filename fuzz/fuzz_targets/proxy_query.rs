//! Queries that the proxy parses: PromQL and InfluxQL.

#![no_main]

firn_fuzz::fuzzer!(firn_server::fuzz::proxy_query, base_bytes: 2 << 20, bytes_per_byte: 4096);
