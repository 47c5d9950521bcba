//! Answers of Consul, Docker, Docker Swarm, EC2 and Kubernetes.

#![no_main]

firn_fuzz::fuzzer!(
    firn_collect::discovery::fuzz::discovery_answer,
    base_bytes: 3 << 20,
    bytes_per_byte: 64
);
