//! For the tree's benchmark: the samples ([`sets`]), what the same costs in a multi-level LSM tree ([`lsm`]), and in
//! Heracles' padded tuples ([`quantiles`]); and queries of history that is far away ([`cold`], [`metered`]).

pub mod cold;
pub mod lsm;
pub mod metered;
pub mod quantiles;
pub mod sets;
