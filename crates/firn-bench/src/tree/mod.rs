//! Inputs of the tree benchmark: samples ([`sets`]), the costs of a multi-level LSM tree ([`lsm`])
//! and of Heracles' padded tuples ([`quantiles`]), and queries of remote history ([`cold`],
//! [`metered`]).

pub mod cold;
pub mod lsm;
pub mod metered;
pub mod quantiles;
pub mod sets;
