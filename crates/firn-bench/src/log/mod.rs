//! Inputs of the log benchmark: devices, a central log, the transactions of YCSB-TS, recordings.

pub mod central;
pub mod device;
pub mod recordings;
pub mod ycsb;
