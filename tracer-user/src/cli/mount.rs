//! `tracer mount`.

use std::{fs::File, io::Write, sync::Arc};

use anyhow::Context;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::args::MountArgs;
use crate::{
    control::{facts::Facts, instance::Mirror},
    tree::{self, Options},
};

pub(super) fn run(args: &MountArgs) -> anyhow::Result<()> {
    raise_limit();
    let facts = Arc::new(Facts::running()?);
    let mirror = Mirror::new(facts)?;
    // The list of mounts has absolute paths.
    let at = std::path::absolute(&args.dir)?;
    let ready = || match args.ready_fd {
        Some(fd) => File::options().write(true).open(format!("/proc/self/fd/{fd}"))?.write_all(b"\n"),
        None => Ok(()),
    };
    tree::serve(mirror, &Options { at, gid: args.gid }, ready)
        .with_context(|| format!("cannot serve a mirror at {}", args.dir.display()))
}

/// Every event that is on has two descriptors.
fn raise_limit() {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    if let Err(error) = setrlimit(Resource::Nofile, raised) {
        tracing::warn!("the limit on open files stays at {:?}: {error}", limit.current);
    }
}
