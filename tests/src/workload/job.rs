//! A run of the workload, from the side of a test: started and held before its first step, then let go.

use std::io::{Read, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use super::Site;
use crate::host;

/// A workload process. It is killed when dropped before it finished.
#[derive(Debug)]
pub struct Job {
    child: Child,
    input: Option<ChildStdin>,
    output: ChildStdout,
    site: Site,
}

/// How a workload ended.
#[derive(Debug)]
pub struct Finished {
    /// Exit status; the run failed when it is not success.
    pub status: ExitStatus,
}

impl Job {
    /// Starts the workload with these parts (`all` is one, too) and so many rounds, and returns once it
    /// waits for [`Job::go`]: from then on nothing but the parts runs in it.
    ///
    /// # Errors
    /// When the binary is missing or does not start.
    pub fn start(parts: &[&str], rounds: u32) -> Result<Self> {
        let binary = host::binary("tracer-workload", "TRACER_WORKLOAD")?;
        // Made and removed here, so that the process has no hits but those of its parts.
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

    /// Waits until the process sleeps, which after its byte it does only in the read of ours.
    fn until_asleep(&self) -> Result<()> {
        let path = format!("/proc/{}/stat", self.pid());
        for _ in 0..10_000 {
            let stat = std::fs::read_to_string(&path).with_context(|| path.clone())?;
            // The name in parentheses may hold anything.
            if stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('S')) {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        bail!("the workload does not come to rest");
    }

    /// Lets the workload run and waits for its end.
    ///
    /// # Errors
    /// When it cannot be let go or fails.
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
