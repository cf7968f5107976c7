//! `trace_pipe` and `trace_pipe_raw`: what is being recorded, as text and as pages; it is gone once read.

use crate::fs::entry::{Entry, Shows};

pub(super) const FILE: Entry = Entry::read("trace_pipe", Shows::Pipe);

pub(super) const RAW: Entry = Entry::read("trace_pipe_raw", Shows::RawPipe);
