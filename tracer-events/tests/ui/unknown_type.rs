//! Unknown type.
tracer_events::trace_event! {
    wrong(pid: i32, name: &str),
    system = "demo",
    entry { field(Pid, pid) },
    assign {  },
    printk("%d", entry.pid),
}

fn main() {
    trace_wrong(1, "name");
}
