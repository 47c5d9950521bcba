//! What the log benchmark compares: devices, a centralised log, the transactions of YCSB-TS, recordings.

pub mod central;
pub mod device;
pub mod recordings;
pub mod ycsb;
