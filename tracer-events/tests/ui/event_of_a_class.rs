//! Event of a class.
use tracer_events::{declare_event_class, define_event_print};

declare_event_class! {
    template(pid: i32),
    entry { field(i32, pid) },
    assign { entry.pid = pid },
    printk("%d", entry.pid),
}

define_event_print! { wrong, class = template, system = "demo", printk("%s", entry.pid) }

fn main() {
    trace_wrong(1);
}
