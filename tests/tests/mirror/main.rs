//! The mounted mirror as a whole: control files and their effects, permissions, modules, the daemon's life, and the
//! documented commands.

mod control;
mod differential;
mod docs;
mod effects;
mod exec;
mod modules;
mod owner;
mod readers;
mod restore;
mod service;
mod soak;
mod tree;
mod unread;
