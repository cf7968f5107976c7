//! `tracer mount`: serves a mirror of tracefs.

use std::{
    fs::File,
    io::Write,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use anyhow::Context;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::{
    args::{Language, MountArgs},
    background, config, log, notify,
};
use crate::{
    engine::{
        self, Engine,
        confine::{self, Role},
        facts::Facts,
        saved::{Boot, ListedChange},
    },
    fs::{self, Heartbeat, Helpers, Options, Reload, StateLifetime},
};

pub(super) fn run(args: &MountArgs) -> anyhow::Result<()> {
    if args.check {
        return Ok(());
    }
    log::set_level(args.log_level);
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
    let dir = std::path::absolute(&args.state_dir)?;
    let state = match (&until, args.keep_state) {
        (Some(_), _) => StateLifetime::Daemon,
        (None, false) => StateLifetime::Crash(dir),
        (None, true) => StateLifetime::Restart(dir),
    };
    let helpers = Helpers::start(&state);
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
    let manager = notify::Manager::from_env().context("the service manager")?.map(Arc::new);
    let reload = args.config.is_some().then(|| reload(args, manager.clone()));
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
    let line = args.boot.then(|| std::fs::read_to_string("/proc/cmdline").context("/proc/cmdline"));
    let boot = line.transpose()?.map(|line| Boot::read(&line));
    let options = Options {
        at,
        owner,
        helpers,
        heartbeat,
        over: args.over,
        until,
        state,
        restore: args.restore,
        boot,
        listed: args.trace_event.clone(),
        reload,
    };
    fs::serve(mirror, options, ready)
        .with_context(|| format!("cannot serve a mirror at {}", args.dir.display()))
}

/// The arguments with those of the configuration file, if there is one.
pub(super) fn configured(args: MountArgs) -> anyhow::Result<MountArgs> {
    let Some(path) = &args.config else { return Ok(args) };
    // A daemon leaves the directory in which it was started.
    let path = std::path::absolute(path)?;
    let read = config::load(&path, std::env::args_os());
    let args = read.with_context(|| format!("the configuration {}", path.display()))?;
    Ok(MountArgs { config: Some(path), ..args })
}

/// What SIGHUP does in a daemon that was started with these arguments.
fn reload(args: &MountArgs, manager: Option<Arc<notify::Manager>>) -> Reload {
    let mut last = args.clone();
    // Several signals may arrive before the first is served. The service manager learns of the last one's end.
    let pending = Arc::new(AtomicUsize::new(0));
    Box::new(move || {
        if pending.fetch_add(1, Ordering::AcqRel) == 0
            && let Some(manager) = &manager
        {
            manager.reloading();
        }
        let (manager, pending) = (manager.clone(), Arc::clone(&pending));
        let done = Box::new(move || {
            if pending.fetch_sub(1, Ordering::AcqRel) == 1
                && let Some(manager) = &manager
                && let Err(error) = manager.ready()
            {
                tracing::warn!("cannot report to the service manager: {error}");
            }
        });
        let new = match configured(last.clone()) {
            Ok(new) => new,
            Err(error) => {
                tracing::error!("the configuration stays as it was: {error:#}");
                done();
                return None;
            }
        };
        let later = last.used_at_start(&new);
        if !later.is_empty() {
            tracing::warn!("not changed before the next start: {}", later.join(", "));
        }
        log::set_level(new.log_level);
        last.log_level = new.log_level;
        let old = std::mem::replace(&mut last.trace_event, new.trace_event);
        Some((ListedChange { old, new: last.trace_event.clone() }, done))
    })
}
