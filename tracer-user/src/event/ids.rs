//! Numbers of instances. A type of its own keeps other numbers out of their place.
//!
//! The mirror gives them out, and the number of a file in the tree contains one. Other code passes them on unchanged.

use std::fmt;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(u32);

        impl $name {
            /// The id of this number.
            pub const fn new(number: u32) -> Self {
                Self(number)
            }

            /// The number.
            pub const fn get(self) -> u32 {
                self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

id! {
    /// Number of an instance.
    InstanceId
}

impl InstanceId {
    /// The top instance.
    pub const TOP: Self = Self(0);
}
