//! A program with two events of one class; trace it with
//! `tracer record --program target/debug/examples/demo -- target/debug/examples/demo 3`.

use tracer_events::{declare_event_class, define_event};

const QUICK: u32 = 1 << 0;
const CACHED: u32 = 1 << 1;

declare_event_class! {
    request_template(path: &str, flags: u32, bytes: usize),
    entry {
        field(u32, flags),
        field(usize, bytes),
        string(path, path),
    },
    assign {
        entry.flags = flags;
        entry.bytes = bytes;
    },
    printk("path=%s bytes=%zu flags=%s", entry.path, entry.bytes,
        __print_flags(entry.flags, "|", { QUICK, "quick" }, { CACHED, "cached" })),
}

define_event! {
    /// A request begins.
    request_begin, class = request_template, system = "demo"
}
define_event! {
    /// A request ends.
    request_end, class = request_template, system = "demo"
}

fn main() {
    // Registration is optional. With it, a mirror of tracefs or user_events show the events automatically.
    match tracer_events::register() {
        Ok(registered) => println!("{registered}"),
        Err(error) => println!("not registered: {error}"),
    }
    let rounds = std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(1);
    for round in 0..rounds {
        trace_request_begin("/index.html", QUICK, 0);
        trace_request_end("/index.html", QUICK | CACHED, 100 * round);
    }
}
