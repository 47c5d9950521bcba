//! Settings of `firn serve` and `firn cache`.
//!
//! Each setting is declared once, in the tables of `serve` and `cache`. Flags, environment
//! variables, keys of the configuration file, `firn config print`, `/api/v1/status/flags` and
//! `docs/settings.md` all come from there. Precedence: flag, environment, file, default.
//!
//! Reading order: `serve`, `cache` (the tables), `values` (their types), `setting` (a row),
//! `declare` (the macro), `source`, `file`, `reader`, `log_files`, `load`, `flags` (the command
//! line), `report` (lists and YAML), `page` (the reference page).

mod cache;
mod declare;
mod file;
mod flags;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz;
mod load;
mod log_files;
#[cfg(test)]
mod page;
mod reader;
mod report;
mod serve;
mod setting;
mod source;
#[cfg(test)]
mod tests;
mod values;

pub use cache::CacheConfig;
pub use declare::{SettingValue, Settings};
#[cfg(test)]
pub(crate) use flags::from_flags;
pub use flags::{DatabaseFlags, Flags};
pub use load::{EffectiveSetting, LoadedConfig};
pub use reader::SettingsReader;
pub use serve::ServeConfig;
pub use setting::{Condition, Setting};
pub use source::Source;
pub use values::{
    Addresses, ByteSize, Count, Device, ExpectedForm, FilePath, Folder, Forever, GroupLabels,
    HostNames, LabelPairs, LabelValue, LogSync, Measured, Never, Or, OriginPattern, OriginUrl,
    PathPatterns, SettingType, ShardCount, SlowTier, Span, Switch, Unlimited, Unset, Word, Zero,
};
