//! The table of a language's kinds of error.

/// Defines `ErrorKind` by a table of the kinds and their texts.
macro_rules! error_kinds {
    ($($kind:ident => $text:literal,)*) => {
        /// Kinds of error.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum ErrorKind {
            $(#[doc = concat!("`", $text, "`")] $kind,)*
        }

        impl ErrorKind {
            /// All kinds.
            #[cfg(any(test, feature = "internals"))]
            pub const ALL: &[Self] = &[$(Self::$kind,)*];

            /// The kernel's text, or our own if the kernel has none.
            pub fn text(self) -> &'static str {
                match self {
                    $(Self::$kind => $text,)*
                }
            }
        }
    };
}

pub(super) use error_kinds;
