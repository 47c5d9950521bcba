//! For the tree's benchmark: the samples ([`sets`]), what the same costs in a multi-level LSM tree ([`lsm`]), and in
//! Heracles' padded tuples ([`quantiles`]).

pub mod lsm;
pub mod quantiles;
pub mod sets;
