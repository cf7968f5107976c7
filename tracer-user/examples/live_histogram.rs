//! Prints a histogram of the sizes of reads each second, until the command ends.
//!
//! Run as root:
//!
//! ```text
//! cargo run --release -p tracer-user --example live_histogram -- \
//!     dd if=/dev/zero of=/dev/null bs=4096 count=1000
//! ```

use std::{
    collections::BTreeMap,
    error::Error,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use tracer_user::api::{Received, Recording};

/// The time between two printed tables.
const PERIOD: Duration = Duration::from_secs(1);

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args_os().skip(1);
    let mut command = Command::new(arguments.next().ok_or("name a command")?);
    command.args(arguments).stderr(Stdio::null());

    // The filter drops failed reads in the kernel, before a record is made.
    let mut recording =
        Recording::builder().event("syscalls:sys_exit_read").filter("ret > 0").command(command).start()?;

    // Number of reads by the largest power of two that is not above their size in bytes.
    let mut buckets: BTreeMap<u64, u64> = BTreeMap::new();
    let mut next = Instant::now() + PERIOD;
    loop {
        match recording.next_timeout(next.saturating_duration_since(Instant::now())) {
            Received::Event(event) => {
                let size = event.field("ret").and_then(|ret| ret.as_u64()).unwrap_or(1);
                *buckets.entry(1 << size.ilog2()).or_default() += 1;
            }
            Received::Timeout => {}
            Received::Ended => break,
        }
        if Instant::now() >= next {
            print(&buckets);
            next += PERIOD;
        }
    }
    print(&buckets);
    for count in recording.finish().counts {
        println!("{}: recorded={} dropped={}", count.event, count.recorded, count.dropped);
    }
    Ok(())
}

fn print(buckets: &BTreeMap<u64, u64>) {
    let most = buckets.values().max().copied().unwrap_or(1);
    println!("{:>20} {:>8}", "bytes", "reads");
    for (low, reads) in buckets {
        let bar = "#".repeat((reads * 40).div_ceil(most) as usize);
        println!("{:>20} {reads:>8} {bar}", format!("{low}..{}", low * 2));
    }
}
