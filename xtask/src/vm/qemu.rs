//! One run of QEMU: its command line, the guest's output, and its exit.
//!
//! The guest writes to named virtio ports (see `xtask/guest/init.sh`). `stdout` and `stderr` are streamed through
//! QEMU's own. `report` collects the lines `up SECONDS` and `exit CODE SECONDS`. `files` receives a tar archive of the
//! files that the job keeps. A kernel that panics reboots, which ends QEMU without an `exit` line. The default is
//! single-threaded software emulation, because kernels otherwise race with their own text patching.

use std::io::Read;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};

use super::{Machine, Stream, tsc};
use crate::arch::Arch;
use crate::host;

/// Files of one run.
pub(super) struct Files<'a> {
    pub(super) vmlinuz: &'a Path,
    pub(super) initramfs: &'a Path,
    pub(super) root: &'a Path,
    pub(super) modules: &'a Path,
    pub(super) payload: &'a Path,
    /// The kernel's output.
    pub(super) console: &'a Path,
    /// The lines of the guest's init.
    pub(super) report: &'a Path,
    /// A tar archive.
    pub(super) kept: &'a Path,
}

/// The content of the report.
#[derive(Debug, Default, Clone, Copy, PartialEq)]
pub(super) struct Report {
    /// The guest's uptime at the start of the job.
    pub(super) up: Option<Duration>,
    /// The job's exit code and the uptime at its end.
    pub(super) exit: Option<(u8, Duration)>,
}

impl Report {
    pub(super) fn parse(text: &str) -> Self {
        let seconds = |s: &str| s.parse().ok().and_then(|s| Duration::try_from_secs_f64(s).ok());
        let mut report = Self::default();
        for line in text.lines() {
            match line.split(' ').collect::<Vec<_>>()[..] {
                ["up", at] => report.up = seconds(at),
                ["exit", code, at] => report.exit = code.parse().ok().zip(seconds(at)),
                _ => {}
            }
        }
        report
    }
}

/// QEMU's command line; `c` is the command that starts QEMU.
pub(super) fn command(mut c: Command, machine: &Machine, files: &Files) -> Command {
    let (model, console) = match machine.arch {
        Arch::X86_64 => ("q35", "ttyS0"),
        Arch::Aarch64 => ("virt", "ttyAMA0"),
    };
    let cpu = match machine.arch {
        _ if machine.kvm => "host",
        // Without these two features, guests copy and clear memory with instructions that emulation executes faster.
        Arch::X86_64 => "max,-erms,-fsrm",
        // The architected pointer authentication halves the speed of emulation.
        Arch::Aarch64 => "max,pauth-impdef=on",
    };
    let accel = if machine.kvm { "kvm" } else { "tcg,thread=single,tb-size=256" };
    // Stalls that occur only in emulation are not reported; a panic or an oops ends the machine. Pointers are unhashed from the
    // start, because the trace of 6.1 garbles text if its own option `hash-ptr` is off. Attaching and detaching wait
    // for grace periods, which are long in emulation, so RCU is expedited. Memory is not cleared before its use.
    let mut append = format!(
        "console={console} panic=-1 oops=panic mitigations=off no_timer_check nowatchdog init_on_alloc=0 rcupdate.rcu_cpu_stall_suppress=1 \
         rcupdate.rcu_expedited=1 random.trust_cpu=on tsc=reliable no_hash_pointers loglevel=6"
    );
    if machine.arch == Arch::X86_64 && !machine.kvm {
        // On a busy host the guest measures the rate of its time stamp counter wrongly, by up to a factor of four.
        // Its clock and its timer interrupts then run too fast. The HPET has a known rate, but a quarter of the guest's
        // time goes into reading it.
        // With `icount` the counter has a tick for each instruction.
        let rate = if machine.icount { Some(1_000_000) } else { tsc::ticks_per_millisecond() };
        append +=
            &rate.map_or_else(|| " clocksource=hpet".to_owned(), |rate| format!(" tsc_early_khz={rate}"));
    }
    c.args(["-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"]);
    c.args(["-machine", model, "-accel", accel, "-cpu", cpu]);
    if machine.icount {
        // Time that the guest sleeps passes at once.
        c.args(["-icount", "shift=0,sleep=off"]);
    }
    c.args(["-smp", &machine.cpus.to_string(), "-m", &format!("{}M", machine.memory)]);
    append.extend([" ", &machine.append]);
    c.arg("-kernel").arg(files.vmlinuz).arg("-initrd").arg(files.initramfs).args(["-append", &append]);
    for (serial, image) in [("root", files.root), ("modules", files.modules), ("payload", files.payload)] {
        // Writes go to a temporary file, so that machines can share the images.
        c.arg("-drive");
        c.arg(format!("if=none,id={serial},format=raw,snapshot=on,cache=unsafe,file={}", escape(image)));
        c.args(["-device", &format!("virtio-blk-pci,drive={serial},serial={serial}")]);
    }
    c.args(["-device", "virtio-rng-pci", "-device", "virtio-serial-pci"]);
    c.arg("-chardev").arg(format!("file,id=console,path={}", escape(files.console)));
    c.args(["-serial", "chardev:console"]);
    let ports = [
        ("stdout", "/dev/stdout".to_owned()),
        ("stderr", "/dev/stderr".to_owned()),
        ("report", escape(files.report)),
        ("files", escape(files.kept)),
    ];
    for (name, path) in ports {
        c.arg("-chardev").arg(format!("file,id={name},path={path}"));
        c.args(["-device", &format!("virtserialport,chardev={name},name={name}")]);
    }
    c
}

/// A path, escaped for QEMU's comma-separated options.
fn escape(path: &Path) -> String {
    path.to_string_lossy().replace(',', ",,")
}

/// Kills the process on drop if it still runs.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        if matches!(self.0.try_wait(), Ok(None)) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }
}

/// Wraps the command so that the kernel kills it when the starting thread ends. A killed run then leaves no machine.
fn ended_with_us(command: &Command) -> Command {
    let mut bound = Command::new("setpriv");
    bound.args(["--pdeathsig", "KILL", "--"]).arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => bound.env(name, value),
            None => bound.env_remove(name),
        };
    }
    if let Some(dir) = command.get_current_dir() {
        bound.current_dir(dir);
    }
    bound
}

/// Runs the machine to its end and passes the job's output to `sink`.
pub(super) fn run(
    command: &Command,
    timeout: Duration,
    report: &Path,
    sink: &mut dyn FnMut(Stream, &[u8]),
) -> Result<Report> {
    let mut command = ended_with_us(command);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let shown = host::display(&command);
    let mut qemu = Running(command.spawn().with_context(|| format!("cannot start {shown}"))?);
    let (sender, receiver) = mpsc::channel();
    forward(qemu.0.stdout.take().expect("stdout is a pipe"), Stream::Out, sender.clone());
    forward(qemu.0.stderr.take().expect("stderr is a pipe"), Stream::Err, sender);
    let start = Instant::now();
    loop {
        let left = timeout.saturating_sub(start.elapsed());
        match receiver.recv_timeout(left) {
            Ok((stream, bytes)) => sink(stream, &bytes),
            // Both pipes are closed: QEMU has ended.
            Err(mpsc::RecvTimeoutError::Disconnected) => break,
            Err(mpsc::RecvTimeoutError::Timeout) => {
                bail!("the virtual machine did not end within {} s", timeout.as_secs())
            }
        }
    }
    let status = qemu.0.wait()?;
    if !status.success() {
        bail!("QEMU ended with {status}: {shown}");
    }
    let text = std::fs::read_to_string(report).unwrap_or_default();
    Ok(Report::parse(&text))
}

/// Reads a pipe in a separate thread.
fn forward(mut pipe: impl Read + Send + 'static, stream: Stream, sender: mpsc::Sender<(Stream, Vec<u8>)>) {
    std::thread::spawn(move || {
        let mut buffer = [0; 16384];
        while let Ok(n) = pipe.read(&mut buffer) {
            if n == 0 || sender.send((stream, buffer[..n].to_vec())).is_err() {
                break;
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_report_has_start_and_end() {
        let report = Report::parse("up 3.25\nexit 7 10.50\n");
        assert_eq!(report.up, Some(Duration::from_millis(3250)));
        assert_eq!(report.exit, Some((7, Duration::from_millis(10500))));
        assert_eq!(Report::parse("up 3.25\nexi"), Report { up: report.up, exit: None }, "it died");
        assert_eq!(Report::parse(""), Report::default());
    }

    #[test]
    fn a_machine_ends_with_the_thread_that_started_it() {
        let start = || {
            let machine = ended_with_us(Command::new("sleep").arg("1000")).spawn().unwrap();
            let comm = format!("/proc/{}/comm", machine.id());
            while std::fs::read_to_string(&comm).unwrap() != "sleep\n" {
                std::thread::sleep(Duration::from_millis(1));
            }
            machine
        };
        let mut machine = std::thread::spawn(start).join().unwrap();
        let status = machine.wait().unwrap();
        assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(9));
    }

    #[test]
    fn commas_in_paths_survive() {
        assert_eq!(escape(Path::new("/a,b")), "/a,,b");
    }
}
