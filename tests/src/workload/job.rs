//! A run of the workload, controlled by a test: it starts, waits before its first step, and continues on request.

use std::io::{Read, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use super::site::Site;
use crate::host;

/// A workload process. Dropping it before it finished kills it.
#[derive(Debug)]
pub struct Job {
    child: Child,
    input: Option<ChildStdin>,
    output: ChildStdout,
    site: Site,
}

/// The result of a workload.
#[derive(Debug)]
pub struct Finished {
    /// Exit status; a failed run has no success status.
    pub status: ExitStatus,
}

impl Job {
    /// Starts the workload with these parts (`all` is also a part) and this many rounds. It returns once the process
    /// waits for [`Job::go`]. From then on the process runs only the parts.
    ///
    /// # Errors
    /// When the binary is missing or does not start.
    pub fn start(parts: &[&str], rounds: u32) -> Result<Self> {
        let binary = host::binary("tracer-workload", "TRACER_WORKLOAD")?;
        // The test creates and removes the directories, so that the process has only the hits of its parts.
        let site = Site::create().context("no scratch directory")?;
        let mut child = Command::new(&binary)
            .args(parts)
            .args(["--rounds", &rounds.to_string()])
            .arg("--disk")
            .arg(&site.dir)
            .arg("--shm")
            .arg(&site.shm)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot start {}", binary.display()))?;
        let input = child.stdin.take();
        let mut output = child.stdout.take().context("no output of the workload")?;
        let mut ready = [0_u8; 1];
        if output.read(&mut ready)? != 1 {
            bail!("the workload ended before it was ready: {}", child.wait()?);
        }
        let job = Self { child, input, output, site };
        job.until_asleep()?;
        Ok(job)
    }

    /// Process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits until the process sleeps. After its ready byte it sleeps only in the read of the start byte.
    fn until_asleep(&self) -> Result<()> {
        let path = format!("/proc/{}/stat", self.pid());
        for _ in 0..10_000 {
            let stat = std::fs::read_to_string(&path).with_context(|| path.clone())?;
            // The name in parentheses may contain any character.
            if stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('S')) {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        bail!("the workload does not come to rest");
    }

    /// Starts the parts and waits for the end of the workload.
    ///
    /// # Errors
    /// When the workload cannot be started or fails.
    pub fn go(mut self) -> Result<Finished> {
        let mut input = self.input.take().context("the workload was let go already")?;
        input.write_all(b"\n")?;
        let status = self.child.wait()?;
        let mut rest = String::new();
        self.output.read_to_string(&mut rest)?;
        ensure!(status.success(), "the workload failed: {status} {rest}");
        Ok(Finished { status })
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
        self.site.remove();
    }
}
