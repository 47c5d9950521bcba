//! Bodies of the group API in protobuf.

#![no_main]

firn_fuzz::fuzzer!(firn_server::fuzz::groups_protobuf, base_bytes: 64 << 10, bytes_per_byte: 128);
