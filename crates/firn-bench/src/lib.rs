//! Bench: whole programs side by side in one run, because machines are noisy and ratios are not.
//!
//! **Owns** the load ([`load`]), the programs under test ([`server`]) and the report of aims
//! ([`report`]). **Never** is part of the product.

#![forbid(unsafe_code)]

pub mod load;
pub mod report;
pub mod server;
