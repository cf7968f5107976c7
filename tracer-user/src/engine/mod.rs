//! What is traced: the typed commands that every front end uses.
//!
//! [`facts`] gathers what is known of the kernel, [`selection`] reads what the user names, [`hooks`] decides where a
//! program hangs, [`recorder`] runs a recording, [`instance`] is the state
//! behind a mounted mirror, [`tasks`] remembers the names of threads, [`quota`] counts what each uid's clients have,
//! [`client_memory`] reaches memory of theirs, and [`confine`] drops what a process needs no more.

pub mod client_memory;
pub mod confine;
pub mod facts;
pub mod hist;
pub mod hooks;
pub mod instance;
pub mod pages;
pub mod probes;
pub mod programs;
pub mod quota;
pub mod recorder;
pub mod selection;
pub mod tasks;
mod verify;
