//! `tracer mount`: serves a mirror of tracefs.

use std::{fs::File, io::Write, path::PathBuf, rc::Rc, sync::Arc};

use anyhow::Context;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::{
    args::{Language, MountArgs},
    background, log, notify,
};
use crate::{
    engine::{
        self, Engine,
        confine::{self, Role},
        facts::Facts,
        saved::Boot,
    },
    fs::{self, Heartbeat, Helpers, Options},
};

pub(super) fn run(args: &MountArgs) -> anyhow::Result<()> {
    if args.background {
        return background::become_parent();
    }
    crate::sys::memory::heap::share();
    // The list of mounts has absolute paths.
    let at = std::path::absolute(&args.dir)?;
    let open_log = |path: &PathBuf| log::open(path).with_context(|| format!("the log {}", path.display()));
    let mut log = args.log.as_ref().map(open_log).transpose()?;
    if args.detached {
        background::leave_terminal()?;
    }
    let watch = |pid| {
        let pid = Pid::from_raw(pid).context("no process id")?;
        pidfd_open(pid, PidfdFlags::empty()).context("the process to watch")
    };
    let until = args.until.map(watch).transpose()?;
    fs::allow_descriptors();
    // Before privileges are dropped: the directory may belong to another user, and no process can be started later.
    // (If a dead mirror is in the way, `serve` creates the directory and reports errors.)
    let _ = std::fs::create_dir_all(&at);
    crate::sys::process::descriptors::close_on_exec().context("descriptors that were inherited")?;
    // A mirror that ends with a process has no state to restore.
    let keep = until.is_none();
    let helpers = Helpers::start(keep);
    confine::drop_capabilities(Role::Daemon);
    confine::hide_memory();
    let facts = Arc::new(Facts::running()?);
    match args.serving.language {
        Language::Kernel => facts.take_kernels_language(),
        Language::Newest => facts.take_newest_language(),
    }
    let mut mirror = Engine::new(facts)?;
    if let Some(dir) = &args.pin {
        engine::publish_at(&mut mirror, dir).with_context(|| format!("{} for maps", dir.display()))?;
    }
    let manager = notify::Manager::from_env().context("the service manager")?.map(Rc::new);
    let heartbeat = manager
        .clone()
        .zip(notify::interval())
        .map(|(manager, every)| Heartbeat { every, beat: Box::new(move || manager.alive()) });
    // A daemon that serves opens no file for writing.
    let null = args.detached.then(background::open_null).transpose().context("/dev/null")?;
    let report = args.ready_fd.map(|fd| File::options().write(true).open(format!("/proc/self/fd/{fd}")));
    let report = report.transpose().context("the descriptor of --ready-fd")?;
    let ready = move || {
        if let Some(null) = &null {
            background::report_ready(null, log.take())?;
        } else if let Some(file) = log.take() {
            log::leave_stderr(Some(file));
        }
        manager.as_ref().map_or(Ok(()), |manager| manager.ready())?;
        report.map_or(Ok(()), |mut file| file.write_all(b"\n"))
    };
    let owner = args.serving.owner();
    let mut boot = Vec::new();
    if args.boot {
        boot.push(Boot::read(&std::fs::read_to_string("/proc/cmdline").context("/proc/cmdline")?));
    }
    boot.extend(args.trace_event.iter().map(|list| Boot::events(list)));
    let options =
        Options { at, owner, helpers, heartbeat, over: args.over, until, keep, restore: args.restore, boot };
    fs::serve(mirror, options, ready)
        .with_context(|| format!("cannot serve a mirror at {}", args.dir.display()))
}
