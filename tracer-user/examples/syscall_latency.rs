//! The latency of one system call, from entry to exit, for each thread of a command.
//!
//! Run as root:
//!
//! ```text
//! cargo run --release -p tracer-user --example syscall_latency -- \
//!     read dd if=/dev/zero of=/dev/null bs=4096 count=1000
//! ```

use std::{collections::BTreeMap, error::Error, process::Command};

use tracer_user::api::Recording;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args_os().skip(1);
    let call = arguments.next().and_then(|call| call.into_string().ok()).ok_or("name a system call")?;
    let mut command = Command::new(arguments.next().ok_or("name a command")?);
    command.args(arguments).stderr(std::process::Stdio::null());

    let enter = format!("sys_enter_{call}");
    let mut recording = Recording::builder()
        .event(format!("syscalls:{enter}"))
        .event(format!("syscalls:sys_exit_{call}"))
        .command(command)
        .start()?;

    // A thread is in one system call at a time, so its id pairs entry and exit.
    let mut entered = BTreeMap::new();
    let mut latencies: BTreeMap<(String, i32), Vec<u64>> = BTreeMap::new();
    for event in recording.events() {
        if event.name() == enter {
            entered.insert(event.pid(), event.time_ns());
        } else if let Some(start) = entered.remove(&event.pid()) {
            let thread = (event.comm().into_owned(), event.pid());
            latencies.entry(thread).or_default().push(event.time_ns() - start);
        }
    }

    println!(
        "{:16} {:>8} {:>8} {:>10} {:>10} {:>10}",
        "comm", "thread", "calls", "min ns", "p50 ns", "max ns"
    );
    for ((comm, thread), mut times) in latencies {
        times.sort_unstable();
        let (calls, median) = (times.len(), times[times.len() / 2]);
        println!("{comm:16} {thread:>8} {calls:>8} {:>10} {median:>10} {:>10}", times[0], times[calls - 1]);
    }
    // A lost record can pair an entry with a later exit. The counts show whether records were lost.
    let dropped: u64 = recording.finish().counts.iter().map(|count| count.dropped).sum();
    println!("dropped: {dropped}");
    Ok(())
}
