//! `user_events_data`: programs register events by ioctl(2) and write records.

use crate::fs::entry::{Entry, Shows};

pub(super) const FILE: Entry = Entry::read("user_events_data", Shows::UserEvents).mode(0o640).top();
