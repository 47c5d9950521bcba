//! Tests of the room through its public API: every implementation of a seam obeys the same rules.

#[path = "env/seams.rs"]
mod seams;

#[cfg(feature = "remote")]
#[path = "env/s3.rs"]
mod s3;
