//! `tracer record` and its parts on the running kernel: the workload, plans and programs, rendering, facts, and the
//! command line.

mod cli;
mod differential;
mod filters;
mod inject;
mod kernel_facts;
mod layouts;
mod raw;
mod render_frozen;
mod render_host;
mod ring;
mod verifier;
mod workload;
