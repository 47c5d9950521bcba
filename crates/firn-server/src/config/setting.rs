//! A row of the table of settings.

use super::values::{ExpectedForm, SettingType};

/// One setting: a row of the table.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    /// Name of the flag, and key in a configuration file: `slow-tier`.
    pub name: &'static str,
    /// Heading under which the help lists it.
    pub section: &'static str,
    /// A short paragraph without line breaks. It starts with a space.
    pub help: &'static str,
    /// Placeholder of the value: `SIZE`.
    pub value_name: &'static str,
    /// Kind of value, in words.
    pub kind: &'static str,
    /// The thing that a number counts: `series`. Empty where the kind suffices.
    pub unit: &'static str,
    /// Text of the default. `auto` is computed from the machine and from other settings.
    pub default: &'static str,
    /// `auto` is a value that is computed, not a text of the type.
    pub has_auto: bool,
    /// The flag may be typed without a value.
    pub is_switch: bool,
    /// The flag may be repeated.
    pub is_list: bool,
    /// The value may contain a password.
    pub is_secret: bool,
    /// Least and greatest amount, both allowed: bytes, a number, or milliseconds.
    pub bounds: Option<(u64, u64)>,
    /// Another setting that must be on for this one to have an effect.
    pub only_with: Option<Condition>,
    /// Other settings that disable this one when they are on.
    pub not_with: &'static [&'static str],
    /// A running server applies a new value.
    pub is_reloadable: bool,
    /// Reads a text and writes it again, bounds included.
    pub canonical: fn(&Setting, &str) -> Result<String, ExpectedForm>,
}

/// A setting that another one depends on.
#[derive(Clone, Copy, Debug)]
pub struct Condition {
    /// Name of the setting.
    pub name: &'static str,
    /// Its value in messages: `--proxy`, `a remote --slow-tier`.
    pub phrase: &'static str,
}

/// The upper bound of settings without one: sums of a few of them fit into 64 bits. Messages name
/// it only where it is exceeded.
pub(super) const UNBOUNDED: u64 = 1 << 62;

impl Setting {
    /// A setting without conditions, and without bounds below [`UNBOUNDED`]. A default of `None`
    /// is computed.
    pub(super) const fn new<T: SettingType>(
        name: &'static str,
        section: &'static str,
        help: &'static str,
        default: Option<&'static str>,
    ) -> Setting {
        Setting {
            name,
            section,
            help,
            value_name: T::VALUE_NAME,
            kind: T::KIND,
            unit: "",
            default: match default {
                Some(text) => text,
                None => "auto",
            },
            has_auto: default.is_none(),
            is_switch: T::IS_SWITCH,
            is_list: T::IS_LIST,
            is_secret: T::IS_SECRET,
            bounds: None,
            only_with: None,
            not_with: &[],
            is_reloadable: false,
            canonical: |setting, text| setting.parse::<T>(text).map(|value| value.to_string()),
        }
    }

    /// Numbers count `unit`.
    pub(super) const fn unit(mut self, unit: &'static str) -> Setting {
        self.unit = unit;
        self
    }

    /// Amounts are `least` to `most`. The word of an `Or` is allowed beside them.
    pub(super) const fn bounds(mut self, least: u64, most: u64) -> Setting {
        self.bounds = Some((least, most));
        self
    }

    /// It has no effect unless the setting `name` is on, which messages name `phrase`.
    pub(super) const fn only_with(mut self, name: &'static str, phrase: &'static str) -> Setting {
        self.only_with = Some(Condition { name, phrase });
        self
    }

    /// It has no effect while one of the settings `names` is on.
    pub(super) const fn not_with(mut self, names: &'static [&'static str]) -> Setting {
        self.not_with = names;
        self
    }

    /// A running server applies a new value.
    pub const fn reloadable(mut self) -> Setting {
        self.is_reloadable = true;
        self
    }

    /// Name of the environment variable: `FIRN_SLOW_TIER`.
    pub fn variable(&self, prefix: &str) -> String {
        format!("{prefix}{}", self.name.replace('-', "_").to_uppercase())
    }

    /// Reads `text` and checks the bounds.
    pub(super) fn parse<T: SettingType>(&self, text: &str) -> Result<T, ExpectedForm> {
        let or_auto = |ExpectedForm(what)| match self.has_auto {
            true => ExpectedForm(format!("{what} or \"auto\"")),
            false => ExpectedForm(what),
        };
        let value: T = text.parse().map_err(or_auto)?;
        let (least, most) = self.bounds.unwrap_or((0, UNBOUNDED));
        match value.amount() {
            Some(amount) if amount < least || amount > most => {
                let bounds = match (least, most) {
                    (0, _) => format!("at most {}", T::bound(most)),
                    (_, UNBOUNDED..) if amount < least => format!("at least {}", T::bound(least)),
                    _ => format!("{} to {}", T::bound(least), T::bound(most)),
                };
                let or_word = T::WORD.map_or_else(String::new, |word| format!(" or {word:?}"));
                Err(or_auto(ExpectedForm(bounds + &or_word)))
            }
            _ => Ok(value),
        }
    }
}
