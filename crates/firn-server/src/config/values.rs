//! Types of settings. Each reads the text of a flag, variable or file key and writes text that
//! reads back to the same value.

#![cfg_attr(
    not(test),
    warn(
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects,
        clippy::cast_possible_truncation
    )
)]

mod amount;
mod label;
mod network;
mod storage;

use std::fmt::{self, Debug, Display};
use std::marker::PhantomData;
use std::str::FromStr;

pub use self::amount::{ByteSize, Count, ShardCount, Span, Switch};
pub use self::label::{GroupLabels, LabelPairs, LabelValue};
pub(super) use self::network::joined;
pub use self::network::{Addresses, HostNames, OriginPattern, OriginUrl, PathPatterns};
pub use self::storage::{Device, FilePath, Folder, LogSync, SlowTier};

/// The form that a refused text should have: a noun phrase that completes "expected ...".
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExpectedForm(pub String);

impl Display for ExpectedForm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

fn expected<T>(what: impl Into<String>) -> Result<T, ExpectedForm> {
    Err(ExpectedForm(what.into()))
}

/// A type that a setting can have.
pub trait SettingType: Debug + Display + FromStr<Err = ExpectedForm> {
    /// Placeholder of the value in the help.
    const VALUE_NAME: &'static str;
    /// Kind of value, as the reference page names it.
    const KIND: &'static str;
    /// The flag may be typed without a value, which then is `true`.
    const IS_SWITCH: bool = false;
    /// The text may contain a password: errors omit a text that may have one.
    const IS_SECRET: bool = false;
    /// The flag may be repeated: its values are elements of one list between commas.
    const IS_LIST: bool = false;
    /// A word that is a value beside those of the kind.
    const WORD: Option<&'static str> = None;

    /// The number that the bounds of the setting apply to, if there is one.
    fn amount(&self) -> Option<u64> {
        None
    }

    /// A bound, as it is written in this type.
    fn bound(amount: u64) -> String {
        amount.to_string()
    }

    /// Whether the value turns something on that other settings refine.
    fn is_on(&self) -> bool {
        true
    }

    /// The value without passwords, which `Display` hides too where there may be one.
    fn shown(&self) -> String {
        self.to_string()
    }
}

/// A value, or one word that means the absence of one: `forever`, `unlimited`, `never`, `0`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Or<W, T> {
    value: Option<T>,
    word: PhantomData<W>,
}

/// The word of an [`Or`].
pub trait Word: Debug {
    /// How it is typed.
    const TEXT: &'static str;
}

/// The word.
impl<W, T> Default for Or<W, T> {
    fn default() -> Or<W, T> {
        Or { value: None, word: PhantomData }
    }
}

impl<W: Word, T: Clone> Or<W, T> {
    /// The value; `None` for the word.
    pub fn get(&self) -> Option<T> {
        self.value.clone()
    }
}

impl<W: Word, T: SettingType> FromStr for Or<W, T> {
    type Err = ExpectedForm;

    fn from_str(text: &str) -> Result<Or<W, T>, ExpectedForm> {
        let value = match text {
            text if text == W::TEXT => None,
            text => match text.parse::<T>() {
                // `0MiB` is 0 as well.
                Ok(value) if W::TEXT == "0" && value.amount() == Some(0) => None,
                Ok(value) => Some(value),
                Err(ExpectedForm(what)) => return expected(format!("{what} or {:?}", W::TEXT)),
            },
        };
        Ok(Or { value, word: PhantomData })
    }
}

impl<W: Word, T: SettingType> Display for Or<W, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.value {
            Some(value) => Display::fmt(value, f),
            None => f.write_str(W::TEXT),
        }
    }
}

impl<W: Word, T: SettingType> SettingType for Or<W, T> {
    const VALUE_NAME: &'static str = T::VALUE_NAME;
    const KIND: &'static str = T::KIND;
    const IS_SECRET: bool = T::IS_SECRET;
    const IS_LIST: bool = T::IS_LIST;
    const WORD: Option<&'static str> = Some(W::TEXT);

    fn amount(&self) -> Option<u64> {
        self.value.as_ref().and_then(T::amount)
    }

    fn bound(amount: u64) -> String {
        T::bound(amount)
    }

    fn is_on(&self) -> bool {
        self.value.is_some()
    }

    fn shown(&self) -> String {
        self.value.as_ref().map_or_else(|| W::TEXT.to_owned(), T::shown)
    }
}

macro_rules! words {
    ($($(#[$doc:meta])* $word:ident = $text:literal;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct $word;

        impl Word for $word {
            const TEXT: &'static str = $text;
        }
    )*};
}

words! {
    /// No end of time.
    Forever = "forever";
    /// No limit of size.
    Unlimited = "unlimited";
    /// Switched off.
    Never = "never";
    /// Absent.
    Unset = "none";
    /// Measured at run time.
    Measured = "auto";
    /// No limit, or switched off.
    Zero = "0";
}
