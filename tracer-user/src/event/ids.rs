//! Numbers of events, systems, instances and slots. Each kind has its own type, so that the compiler rejects a
//! mix-up.
//!
//! The engine's registries assign them, and the inode numbers of the mirror contain them. Other code passes them on
//! unchanged.

use std::{fmt, ops::Range};

use tracer_abi::control;

/// The ids of events that the kernel does not know. A record begins with the id of its event. The kernel counts its own
/// ids from 1 and has some thousands.
pub const DEFINED_IDS: Range<u16> = 0x8000..control::FIRST;

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
    /// Number of an event.
    EventId
}

id! {
    /// Number of an instance.
    InstanceId
}

id! {
    /// Number of a system of events.
    SystemId
}

id! {
    /// Number of an attached event in its session: the row of its counters, its word in
    /// [`Switches::soft`](tracer_abi::Switches::soft), and its entry in a dispatch table.
    Slot
}

impl EventId {
    /// Its place in a table of all events.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

impl InstanceId {
    /// The top instance.
    pub const TOP: Self = Self(0);
}

impl Slot {
    /// Its place in a table by slot.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

impl SystemId {
    /// Its place in a table of all systems.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}
