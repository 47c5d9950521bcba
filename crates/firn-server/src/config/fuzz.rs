//! The fuzzer of configuration files; see `crate::fuzz`.

use std::collections::BTreeMap;

use firn_model::ErrorKind;

use super::declare::Settings;
use super::file::ConfigFile;
use super::load::load;
use super::reader::Sources;
use super::{CacheConfig, ServeConfig};

/// A configuration file of both commands. Settings that it sets are printed as a file that sets the
/// same.
pub fn config_file(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    check::<ServeConfig>(text);
    check::<CacheConfig>(text);
}

fn check<C: Settings>(text: &str) {
    let first = match loaded::<C>(text) {
        Ok(first) => first,
        // An operator reads it, not a stranger: it may repeat the file.
        Err(error) => return assert!(*error.kind() != ErrorKind::Internal, "{error}"),
    };
    let printed = first.print();
    let second = loaded::<C>(&printed)
        .unwrap_or_else(|error| panic!("{text:?} is printed as {printed:?}: {error}"));
    for (first, second) in first.effective.iter().zip(&second.effective) {
        assert_eq!(first.value, second.value, "{text:?}: {}", first.setting.name);
    }
}

fn loaded<C: Settings>(text: &str) -> firn_model::Result<super::LoadedConfig<C>> {
    let file = ConfigFile::parse("firn.yaml", text)?;
    let flags = BTreeMap::new();
    load(&Sources {
        flags: &flags,
        environment: &|_| None,
        variables: Vec::new(),
        file: Some(&file),
    })
}
