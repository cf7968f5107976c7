//! `tracer mount`.

use std::{fs::File, io::Write, sync::Arc};

use anyhow::Context;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::{args::MountArgs, background, notify};
use crate::{
    control::{
        facts::Facts,
        instance::{Boot, Mirror},
    },
    tree::{self, Options},
};

pub(super) fn run(args: &MountArgs) -> anyhow::Result<()> {
    if args.background {
        return background::become_parent();
    }
    // The list of mounts has absolute paths.
    let at = std::path::absolute(&args.dir)?;
    if args.detached {
        background::leave_terminal()?;
    }
    let until = args
        .until
        .map(|pid| {
            let pid = Pid::from_raw(pid).context("no process id")?;
            pidfd_open(pid, PidfdFlags::empty()).context("the process to watch")
        })
        .transpose()?;
    tree::allow_descriptors();
    let facts = Arc::new(Facts::running()?);
    let mut mirror = Mirror::new(facts)?;
    if let Some(dir) = &args.pin {
        let failed = || format!("{} for maps: is it on a BPF file system?", dir.display());
        mirror.publish_at(dir).with_context(failed)?;
    }
    let ready = || {
        if args.detached {
            background::tell()?;
        }
        notify::ready()?;
        match args.ready_fd {
            Some(fd) => File::options().write(true).open(format!("/proc/self/fd/{fd}"))?.write_all(b"\n"),
            None => Ok(()),
        }
    };
    let owner = args.serving.owner();
    let mut boot = Vec::new();
    if args.boot {
        boot.push(Boot::read(&std::fs::read_to_string("/proc/cmdline").context("/proc/cmdline")?));
    }
    boot.extend(args.trace_event.iter().map(|list| Boot::events(list)));
    // A mirror that ends with a process has nothing to outlive it.
    let keep = until.is_none();
    let options = Options { at, owner, over: args.over, until, keep, restore: args.restore, boot };
    tree::serve(mirror, options, ready)
        .with_context(|| format!("cannot serve a mirror at {}", args.dir.display()))
}
