//! The lock of the result cache, under a name that a model can put its own in place of.

pub(crate) use firn_model::Mutex;
