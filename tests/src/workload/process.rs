//! Operations on processes, threads and signals: create, rename, schedule, signal and reap.

use std::io;
use std::process::{Command, Stdio};

use rustix::process::{Pid, Signal};

use super::provoked::Count::{AtLeast, Exactly};
use super::provoked::{Provoked, at_least, exactly, syscalls};
use super::raw::{block_and_deliver, handle, queue_signal};
use super::site::Site;

/// Exit code of the first child.
const CODE: i32 = 7;

/// One round: two children, a thread, two thread names, a few yields.
pub(super) fn run(_: &Site) -> io::Result<()> {
    let status = Command::new("/proc/self/exe").args(["--exit", &CODE.to_string()]).status()?;
    assert_eq!(status.code(), Some(CODE), "exit code of the child");
    let mut sleeper = Command::new("/proc/self/exe").arg("--wait").stdin(Stdio::piped()).spawn()?;
    let pid = Pid::from_child(&sleeper);
    rustix::process::test_kill_process(pid)?;
    rustix::process::kill_process(pid, Signal::TERM)?;
    sleeper.wait()?;

    let thread = std::thread::Builder::new().name("second".into());
    let handle = thread.spawn(|| {
        rustix::thread::sched_yield();
        rustix::thread::gettid()
    })?;
    assert!(handle.join().is_ok(), "the thread panicked");
    rename("renamed a lot")?;
    rename("tracer-workload")?;
    for _ in 0..5 {
        rustix::thread::sched_yield();
    }
    let set = rustix::thread::sched_getaffinity(None)?;
    rustix::thread::sched_setaffinity(None, &set)?;
    rustix::process::getrlimit(rustix::process::Resource::Nofile);
    std::fs::write("/proc/self/oom_score_adj", "10")?;
    std::fs::write("/proc/self/oom_score_adj", "0")
}

/// Names the calling thread.
fn rename(name: &str) -> io::Result<()> {
    let name = std::ffi::CString::new(name)?;
    Ok(rustix::thread::set_name(&name)?)
}

/// The events that [`run`] provokes.
pub(super) fn events() -> Vec<Provoked> {
    let mut events = syscalls(&[
        ("execve", AtLeast(2)),
        ("prctl", AtLeast(2)),
        ("sched_yield", AtLeast(6)),
        ("sched_getaffinity", AtLeast(1)),
        ("sched_setaffinity", Exactly(1)),
        ("kill", Exactly(2)),
        ("prlimit64", AtLeast(1)),
    ]);
    events.extend(exactly(&[
        ("sched:sched_process_fork", 3),
        ("sched:sched_process_exec", 2),
        ("task:task_newtask", 3),
        ("oom:oom_score_adj_update", 2),
    ]));
    events.extend(at_least(&[
        // The third exit is the workload's own, which happens once.
        ("sched:sched_process_exit", 3),
        ("syscalls:sys_enter_exit_group", 2),
        ("sched:sched_wakeup_new", 3),
        ("sched:sched_process_wait", 2),
        ("sched:sched_waking", 1),
        ("sched:sched_wakeup", 0),
        ("sched:sched_switch", 2),
        ("sched:sched_stat_runtime", 1),
        ("task:task_rename", 2),
        ("signal:signal_generate", 2),
        ("signal:signal_deliver", 1),
        ("mmap:exit_mmap", 2),
        ("vmalloc:alloc_vmap_area", 0),
        ("kmem:kmem_cache_alloc", 20),
        ("exceptions:page_fault_user", 20),
        ("exceptions:page_fault_kernel", 1),
        ("filemap:mm_filemap_map_pages", 1),
        ("percpu:percpu_alloc_percpu", 0),
        ("percpu:percpu_free_percpu", 0),
        ("rseq:rseq_update", 0),
    ]));
    events
}

/// One round of signals that this process sends to itself.
pub(super) fn signals(_: &Site) -> io::Result<()> {
    for signal in [libc::SIGUSR1, libc::SIGUSR2, libc::SIGRTMIN()] {
        handle(signal)?;
    }
    let own = rustix::process::getpid();
    rustix::process::kill_process(own, Signal::USR1)?;
    rustix::process::kill_process(own, Signal::USR2)?;
    block_and_deliver(libc::SIGUSR1);
    queue_signal(libc::SIGRTMIN(), 99);
    Ok(())
}

/// The events that [`signals`] provokes.
pub(super) fn signal_events() -> Vec<Provoked> {
    let mut events = syscalls(&[
        ("rt_sigaction", Exactly(3)),
        ("rt_sigprocmask", AtLeast(2)),
        ("rt_sigpending", Exactly(1)),
        ("rt_sigqueueinfo", Exactly(1)),
        ("kill", Exactly(3)),
    ]);
    events.extend(exactly(&[("syscalls:sys_enter_rt_sigreturn", 4), ("signal:signal_deliver", 4)]));
    // The exit also signals the parent.
    events.extend(at_least(&[("signal:signal_generate", 4)]));
    events
}
