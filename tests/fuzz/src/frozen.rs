//! A mirror over a frozen kernel: the formats of a few of its events, in a directory that looks like a tracefs.

use std::fs;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock};

use tracer_user::engine::Engine;
use tracer_user::engine::facts::Facts;
use tracer_user::fs::{Owner, Tree};
use tracer_user::kernel::Tracefs;

/// Number of CPUs of the frozen kernel.
pub const CPUS: u32 = 3;

/// The event systems of the frozen kernel.
const SYSTEMS: [&str; 7] = ["sched", "irq", "task", "signal", "kmem", "syscalls", "ftrace"];
/// Largest number of events of one system; `ftrace` has no limit.
const MOST: usize = 24;

static FACTS: LazyLock<Arc<Facts>> = LazyLock::new(|| {
    let packed = include_bytes!("../../facts/6.18-x86_64.txt.zst");
    let mut hash = DefaultHasher::new();
    (packed, SYSTEMS, MOST).hash(&mut hash);
    let dir = build_dir().join(format!("frozen-{:x}", hash.finish()));
    if !dir.is_dir() {
        let text = zstd::decode_all(packed.as_slice()).expect("frozen facts");
        let new = dir.with_extension(std::process::id().to_string());
        lay_out(&new, std::str::from_utf8(&text).expect("text"));
        // Another process that does the same at this moment makes the same directory.
        if fs::rename(&new, &dir).is_err() {
            fs::remove_dir_all(&new).expect("one of two goes");
        }
    }
    Arc::new(Facts::frozen(Tracefs::frozen(&dir).expect("a directory"), CPUS, (6, 18)))
});

/// The directory beside the running program, or the temporary directory where that one is not writable.
fn build_dir() -> PathBuf {
    let own = std::env::current_exe().ok().and_then(|program| Some(program.parent()?.join("frozen")));
    own.filter(|dir| fs::create_dir_all(dir).is_ok()).unwrap_or_else(std::env::temp_dir)
}

/// Writes the formats of a facts file as the files of a tracefs.
fn lay_out(dir: &Path, text: &str) {
    let mut names = String::new();
    let mut counts = std::collections::BTreeMap::new();
    for part in text.split("\n# event ").skip(1) {
        let Some((system, format)) = part.split_once('\n') else { continue };
        let count: &mut usize = counts.entry(system.to_owned()).or_default();
        let wanted = SYSTEMS.contains(&system) && (*count < MOST || system == "ftrace");
        let (Some(name), true) = (format.lines().find_map(|line| line.strip_prefix("name: ")), wanted) else {
            continue;
        };
        *count += 1;
        let event: PathBuf = dir.join("events").join(system).join(name);
        fs::create_dir_all(&event).expect("a directory for an event");
        fs::write(event.join("format"), format!("{}\n", format.trim_end())).expect("a format");
        if let Some(id) = format.lines().find_map(|line| line.strip_prefix("ID: ")) {
            fs::write(event.join("id"), format!("{id}\n")).expect("an id");
        }
        if system != "ftrace" {
            names.push_str(&format!("{system}:{name}\n"));
        }
    }
    fs::write(dir.join("available_events"), names).expect("the list of events");
}

/// Facts of the frozen kernel.
pub fn facts() -> Arc<Facts> {
    Arc::clone(&FACTS)
}

/// A mirror over the frozen kernel.
pub fn mirror() -> Engine {
    Engine::new(Arc::clone(&FACTS)).expect("a mirror")
}

/// The tree of a mirror over the frozen kernel.
pub fn tree() -> Tree {
    Tree::new(mirror(), Owner::default())
}
