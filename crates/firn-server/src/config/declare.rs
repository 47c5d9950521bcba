//! The declaration of settings: [`settings!`] turns the rows of a command into a struct of checked
//! values.

use std::fmt::Debug;

use firn_model::Result;

use super::reader::SettingsReader;
use super::setting::Setting;
use super::values::SettingType;

/// The settings of a command, made from its rows by the macro `settings!`.
pub trait Settings: Sized + Debug {
    /// The command: `serve`.
    const COMMAND: &'static str;
    /// Prefix of the environment variables.
    const PREFIX: &'static str;
    /// The rows, in the order of the help.
    const TABLE: &'static [Setting];

    /// Reads every setting.
    ///
    /// # Errors
    /// `Invalid`, naming the setting, the expected form and the text.
    fn read(reader: &SettingsReader<'_>) -> Result<Self>;

    /// Every value, in the order of the table.
    fn values(&self) -> Vec<SettingValue>;

    /// Checks that concern several settings.
    ///
    /// # Errors
    /// `Invalid`, as [`Settings::read`].
    fn check(&self, reader: &SettingsReader<'_>) -> Result<()>;

    /// Settings that take effect otherwise than they are typed, one sentence each.
    fn warnings(&self) -> Vec<String>;
}

/// The value of a setting, whatever its type is.
#[derive(Clone, Debug)]
pub struct SettingValue {
    /// Reads back to the same value, unless it contains a password, which is hidden.
    pub shown: String,
    /// See [`SettingType::is_on`].
    pub is_on: bool,
}

impl<T: SettingType> From<&T> for SettingValue {
    fn from(value: &T) -> SettingValue {
        SettingValue { shown: value.shown(), is_on: value.is_on() }
    }
}

/// Declares the settings of a command, each once:
///
/// ```text
/// section "Storage";
/// /// Help: a short paragraph.
/// field_name: Type = "default", bounds(1, 32), not_with(&["read-only"]);
/// other_name: Type = auto(expression of settings above), unit("series");
/// ```
///
/// From it come a field of the struct, a flag, a variable, a key and a row of every list. The rules
/// behind the default are the methods of [`Setting`].
macro_rules! settings {
    (
        $(#[$about:meta])*
        pub struct $Config:ident($command:literal, $prefix:literal);
        $(
            section $section:literal;
            $(
                $(#[doc = $help:literal])+
                $field:ident: $type:ty = $($default:literal)? $(auto($auto:expr))?
                    $(, $rule:ident($($arg:tt)*))*;
            )+
        )+
    ) => {
        $(#[$about])*
        #[derive(Clone, Debug)]
        pub struct $Config {
            $($( $(#[doc = $help])+ pub $field: $type, )+)+
        }

        impl Settings for $Config {
            const COMMAND: &'static str = $command;
            const PREFIX: &'static str = $prefix;
            const TABLE: &'static [Setting] = &[$($(
                Setting::new::<$type>(
                    settings!(@name $field),
                    $section,
                    concat!($($help),+),
                    settings!(@default $($default)?),
                )$(.$rule($($arg)*))*,
            )+)+];

            fn read(reader: &SettingsReader<'_>) -> Result<$Config> {
                $($(
                    let $field: $type =
                        settings!(@read reader, settings!(@name $field), $($auto)?);
                )+)+
                Ok($Config { $($($field,)+)+ })
            }

            fn values(&self) -> Vec<SettingValue> {
                vec![$($( SettingValue::from(&self.$field), )+)+]
            }

            fn check(&self, reader: &SettingsReader<'_>) -> Result<()> {
                self.check_together(reader)
            }

            fn warnings(&self) -> Vec<String> {
                $Config::warnings(self)
            }
        }
    };
    (@name $field:ident) => {{
        const NAME: [u8; stringify!($field).len()] = kebab_case(stringify!($field));
        match std::str::from_utf8(&NAME) {
            Ok(name) => name,
            Err(_) => "",
        }
    }};
    (@default $default:literal) => { Some($default) };
    (@default) => { None };
    (@read $reader:ident, $name:expr,) => { $reader.value($name)? };
    (@read $reader:ident, $name:expr, $auto:expr) => {
        match $reader.value_unless_auto($name)? {
            Some(value) => value,
            None => $auto,
        }
    };
}
pub(super) use settings;

/// `slow_tier` as `slow-tier`.
pub(super) const fn kebab_case<const LEN: usize>(field: &str) -> [u8; LEN] {
    let mut name = [0; LEN];
    let mut idx = 0;
    while idx < LEN {
        let byte = field.as_bytes()[idx];
        name[idx] = if byte == b'_' { b'-' } else { byte };
        idx += 1;
    }
    name
}
