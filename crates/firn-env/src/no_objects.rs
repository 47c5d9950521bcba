//! A bucket without objects, for tools that read a database whose slow tier is missing.

use std::sync::Arc;

use firn_model::{Error, Result};

use crate::{Bucket, ObjectInfo, PutMode, RangeRequest, check_key};

/// Stands for a missing folder of a slow tier. Nothing can be written to it.
#[derive(Clone, Copy, Debug)]
pub struct EmptyBucket;

impl Bucket for EmptyBucket {
    fn get_ranges(&self, requests: &[RangeRequest]) -> Vec<Result<Arc<[u8]>>> {
        requests.iter().map(|request| Err(no_object(&request.key))).collect()
    }

    fn put(&self, key: &str, _: Arc<[u8]>, _: PutMode) -> Result<ObjectInfo> {
        check_key(key)?;
        Err(Error::unavailable(format!("cannot write {key}: the slow tier is missing")))
    }

    fn head(&self, key: &str) -> Result<ObjectInfo> {
        Err(no_object(key))
    }

    fn list(&self, _: &str) -> Result<Vec<ObjectInfo>> {
        Ok(Vec::new())
    }

    fn delete(&self, _: &[String]) -> Result<()> {
        Ok(())
    }
}

fn no_object(key: &str) -> Error {
    check_key(key).err().unwrap_or_else(|| Error::not_found(format!("{key}: no such object")))
}
