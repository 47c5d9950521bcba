//! Tests of the room through its public API: every implementation of a seam obeys the same rules.

#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

#[path = "env/seams.rs"]
mod seams;

#[cfg(feature = "remote")]
#[path = "env/s3.rs"]
mod s3;
