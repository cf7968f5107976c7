//! Unknown kind.
tracer_events::trace_event! {
    wrong(pid: i32, name: &str),
    system = "demo",
    entry { feild(i32, pid) },
    assign {  },
    printk("%d", entry.pid),
}

fn main() {
    trace_wrong(1, "name");
}
