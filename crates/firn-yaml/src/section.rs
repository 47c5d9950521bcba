//! The declarations of sections and of words.

/// Declares a section: a struct with a key for each field. Fields that are marked `omit` are
/// printed only if they differ from null. The keys of inlined sections belong to the section too.
#[macro_export]
macro_rules! section {
    (
        $(#[$meta:meta])*
        $vis:vis struct $name:ident: $type_name:literal {
            $( $(#[$field_meta:meta])* $field:ident: $ty:ty = $key:literal $($omit:ident)?, )*
        }
        $( inline { $( $(#[$inline_meta:meta])* $inline:ident: $inline_ty:ty, )* } )?
    ) => {
        $(#[$meta])*
        #[derive(Clone, Debug, PartialEq)]
        $vis struct $name {
            $(
                #[doc = concat!("The key `", $key, "`.")]
                $(#[$field_meta])*
                $vis $field: $ty,
            )*
            $( $(
                #[doc = concat!("Keys of [`", stringify!($inline_ty), "`] in this section.")]
                $(#[$inline_meta])*
                $vis $inline: $inline_ty,
            )* )?
        }

        impl $crate::Section for $name {
            const TYPE: &'static str = $type_name;

            #[allow(unused_variables)]
            fn read_key(
                &mut self,
                key: &str,
                node: &$crate::Node,
                decoder: &mut $crate::Decoder,
            ) -> Result<Option<bool>, $crate::Failure> {
                match key {
                    $( $key => $crate::decode(&mut self.$field, node, decoder).map(Some), )*
                    _ => {
                        $( $(
                            let known = $crate::Section::read_key(
                                &mut self.$inline, key, node, decoder,
                            )?;
                            if known.is_some() {
                                return Ok(known);
                            }
                        )* )?
                        Ok(None)
                    }
                }
            }

            fn encode_keys(&self, keys: &mut Vec<(String, $crate::Encoded)>) {
                $(
                    let is_omitted = false $( || {
                        const { $crate::assert_omit(stringify!($omit)) };
                        $crate::Field::is_zero(&self.$field)
                    } )?;
                    if !is_omitted {
                        keys.push(($key.to_owned(), $crate::Field::encode(&self.$field)));
                    }
                )*
                $( $( $crate::Section::encode_keys(&self.$inline, keys); )* )?
            }
        }

        impl $crate::Field for $name {
            fn type_name() -> String {
                $type_name.to_owned()
            }

            fn zero() -> Self {
                $name {
                    $( $field: <$ty as $crate::Field>::zero(), )*
                    $( $( $inline: <$inline_ty as $crate::Field>::zero(), )* )?
                }
            }

            fn read(
                &mut self,
                node: &$crate::Node,
                decoder: &mut $crate::Decoder,
            ) -> Result<bool, $crate::Failure> {
                $crate::read_section(self, node, decoder)
            }

            fn encode(&self) -> $crate::Encoded {
                let mut keys = Vec::new();
                $crate::Section::encode_keys(self, &mut keys);
                $crate::Encoded::Map(keys)
            }

            fn is_zero(&self) -> bool {
                true
                    $( && $crate::Field::is_zero(&self.$field) )*
                    $( $( && $crate::Field::is_zero(&self.$inline) )* )?
            }

            fn secret_paths() -> Vec<String> {
                #[allow(unused_mut)]
                let mut paths = Vec::new();
                $( paths.extend($crate::paths_below::<$ty>($key)); )*
                $( $( paths.extend(<$inline_ty as $crate::Field>::secret_paths()); )* )?
                paths
            }

            fn each_path(&mut self, key: &'static str, visit: &mut $crate::PathVisitor<'_>) {
                $( $crate::Field::each_path(&mut self.$field, $key, visit); )*
                $( $( $crate::Field::each_path(&mut self.$inline, key, visit); )* )?
            }
        }
    };
}

/// The only mark of a field.
pub const fn assert_omit(mark: &str) {
    assert!(matches!(mark.as_bytes(), b"omit"), "fields may be marked `omit` only");
}

/// Declares an enum whose values are words. `Unset` is null. `fold` prepares the text, `unknown`
/// is the error for other words; an `empty` text may have a value.
#[macro_export]
macro_rules! words {
    (
        $(#[$meta:meta])*
        pub enum $name:ident: $type_name:literal {
            $( $(#[$variant_meta:meta])* $variant:ident = $word:literal, )*
        }
        fold $fold:expr;
        unknown $unknown:expr;
        $( empty $empty:ident; )?
    ) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
        pub enum $name {
            /// Neither set nor a default.
            #[default]
            Unset,
            $(
                #[doc = concat!("`", $word, "`.")]
                $(#[$variant_meta])*
                $variant,
            )*
        }

        impl $name {
            /// The word; empty for [`Self::Unset`].
            pub fn as_str(self) -> &'static str {
                match self {
                    $name::Unset => "",
                    $( $name::$variant => $word, )*
                }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.as_str())
            }
        }

        impl std::str::FromStr for $name {
            type Err = String;

            fn from_str(text: &str) -> Result<$name, String> {
                let fold: fn(&str) -> String = $fold;
                let unknown: fn(&str) -> String = $unknown;
                match fold(text).as_str() {
                    $( $word => Ok($name::$variant), )*
                    $( "" => Ok($name::$empty), )?
                    _ => Err(unknown(text)),
                }
            }
        }

        impl $crate::Field for $name {
            fn type_name() -> String {
                $type_name.to_owned()
            }

            fn zero() -> Self {
                $name::Unset
            }

            fn read(
                &mut self,
                node: &$crate::Node,
                decoder: &mut $crate::Decoder,
            ) -> Result<bool, $crate::Failure> {
                let text = $crate::text_of(node, decoder, "string")?;
                let Some(text) = text else { return Ok(false) };
                *self = text
                    .parse()
                    .map_err(|error: String| $crate::Failure::new(error).at(node.line))?;
                Ok(true)
            }

            fn encode(&self) -> $crate::Encoded {
                $crate::Encoded::Text(self.as_str().to_owned())
            }

            fn is_zero(&self) -> bool {
                *self == $name::Unset
            }
        }
    };
}
