//! A command whose process waits before it executes the program.
//!
//! The process reports its thread id and waits for one byte. The caller can therefore set up everything that concerns
//! the process before the program's first instruction.

use std::{
    io::{self, PipeWriter, Read, Write},
    os::{fd::AsRawFd, unix::process::CommandExt},
    process::{Child, Command},
    thread::JoinHandle,
};

/// A command that waits. If it is dropped, the process ends without executing the program.
#[derive(Debug)]
pub struct HeldCommand {
    thread: u32,
    go: PipeWriter,
    spawning: JoinHandle<io::Result<Child>>,
}

impl HeldCommand {
    /// Starts the process. It calls `own_id` for the id that it reports. `own_id` runs between fork(2) and execve(2),
    /// so it must only make system calls.
    ///
    /// # Errors
    /// If no process, pipe or thread can be created, or `own_id` fails.
    pub fn start(
        mut command: Command,
        own_id: impl Fn() -> io::Result<u32> + Send + Sync + 'static,
    ) -> io::Result<Self> {
        let (mut reported, report) = io::pipe()?;
        let (wait, go) = io::pipe()?;
        let callers_end = go.as_raw_fd();
        let before_exec = move || {
            // SAFETY: The descriptor is the child's copy of `go`, which nothing in the child uses.
            unsafe { libc::close(callers_end) };
            (&report).write_all(&own_id()?.to_ne_bytes())?;
            match (&wait).read(&mut [0])? {
                0 => Err(io::ErrorKind::BrokenPipe.into()),
                _ => Ok(()),
            }
        };
        // SAFETY: The closure only makes system calls, which are async-signal-safe.
        unsafe { command.pre_exec(before_exec) };
        // `spawn` returns after execve(2).
        let spawning =
            std::thread::Builder::new().name("tracer-command".to_owned()).spawn(move || command.spawn())?;
        let mut thread = [0; 4];
        match reported.read_exact(&mut thread) {
            Ok(()) => Ok(Self { thread: u32::from_ne_bytes(thread), go, spawning }),
            Err(error) => Err(joined(spawning).err().unwrap_or(error)),
        }
    }

    /// The id that the process reported.
    pub fn thread(&self) -> u32 {
        self.thread
    }

    /// Lets the process execute the program.
    ///
    /// # Errors
    /// If the program cannot be executed.
    pub fn release(self) -> io::Result<Child> {
        let Self { mut go, spawning, .. } = self;
        go.write_all(b"\n")?;
        joined(spawning)
    }
}

fn joined(spawning: JoinHandle<io::Result<Child>>) -> io::Result<Child> {
    spawning.join().unwrap_or_else(|_| Err(io::Error::other("the thread that starts the command failed")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_program_runs_only_after_release() {
        let path = std::env::temp_dir().join(format!("tracer-held-{}", std::process::id()));
        let mut command = Command::new("touch");
        command.arg(&path);
        let id = || Ok(rustix::thread::gettid().as_raw_nonzero().get().cast_unsigned());
        let held = HeldCommand::start(command, id).unwrap();
        let thread = held.thread();
        assert!(!path.exists());
        let mut child = held.release().unwrap();
        assert_eq!(child.id(), thread);
        assert!(child.wait().unwrap().success());
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn a_missing_program_and_a_dropped_command_leave_nothing() {
        let held = HeldCommand::start(Command::new("/no/such/program"), || Ok(7)).unwrap();
        assert_eq!(held.thread(), 7);
        assert_eq!(held.release().unwrap_err().kind(), io::ErrorKind::NotFound);
        let failing = HeldCommand::start(Command::new("true"), || Err(io::ErrorKind::Unsupported.into()));
        assert!(failing.is_err());
        let HeldCommand { go, spawning, .. } = HeldCommand::start(Command::new("true"), || Ok(7)).unwrap();
        drop(go);
        assert!(joined(spawning).is_err());
    }
}
