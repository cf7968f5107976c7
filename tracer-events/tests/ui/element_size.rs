//! Element size.
tracer_events::trace_event! {
    wrong(pid: i32, name: &str),
    system = "demo",
    entry { field(i32, pid), field(u64, big), string(name, name), array(char, comm, 16), array(u32, words, 4) },
    assign { entry.pid = pid },
    printk("%s", __print_array(entry.words, 4, 8)),
}

fn main() {
    trace_wrong(1, "name");
}
