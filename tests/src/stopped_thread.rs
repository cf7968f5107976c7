//! A thread of another process that does not run for a while, by ptrace(2). The other threads of its process run.

#![allow(unsafe_code)]

use std::{fs, io, marker::PhantomData, ptr};

use anyhow::{Context, Result};

/// A stopped thread. It continues when this is dropped, which the same thread must do.
#[derive(Debug)]
pub struct StoppedThread {
    thread: libc::pid_t,
    /// Only the thread that traces may end that.
    _own: PhantomData<*const ()>,
}

fn check(done: libc::c_long) -> io::Result<()> {
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

impl StoppedThread {
    /// Stops the thread of a process that has this name.
    ///
    /// # Errors
    /// There is no such thread, or it is traced already.
    pub fn named(process: u32, name: &str) -> Result<Self> {
        let threads = fs::read_dir(format!("/proc/{process}/task"))?;
        let is_it = |thread: &fs::DirEntry| {
            fs::read_to_string(thread.path().join("comm")).is_ok_and(|comm| comm.trim_end() == name)
        };
        let thread = threads.flatten().find(is_it).with_context(|| format!("no thread {name}"))?;
        let thread: libc::pid_t = thread.file_name().to_string_lossy().parse()?;
        let none = ptr::null_mut::<libc::c_void>();
        // SAFETY: These requests access no memory of this process.
        check(unsafe { libc::ptrace(libc::PTRACE_SEIZE, thread, none, none) })?;
        let stopped = Self { thread, _own: PhantomData };
        // SAFETY: As above.
        check(unsafe { libc::ptrace(libc::PTRACE_INTERRUPT, thread, none, none) })?;
        // SAFETY: The status is not asked for.
        check(unsafe { libc::waitpid(thread, ptr::null_mut(), libc::__WALL) }.into())?;
        Ok(stopped)
    }
}

impl Drop for StoppedThread {
    fn drop(&mut self) {
        let none = ptr::null_mut::<libc::c_void>();
        // SAFETY: The request accesses no memory of this process.
        unsafe { libc::ptrace(libc::PTRACE_DETACH, self.thread, none, none) };
    }
}
