//! What is traced: the typed commands that every front end uses.
//!
//! [`facts`] gathers what is known of the kernel, [`selection`] reads what the user names, [`hooks`] decides where a
//! program hangs, [`recorder`] runs a recording, [`instance`] is the state
//! behind a mounted mirror, and [`tasks`] remembers the names of threads.

pub mod facts;
pub mod hist;
pub mod hooks;
pub mod instance;
pub mod pages;
pub mod probes;
pub mod programs;
pub mod recorder;
pub mod selection;
pub mod tasks;
mod verify;
