//! Loading linked objects and attaching them to hooks.
