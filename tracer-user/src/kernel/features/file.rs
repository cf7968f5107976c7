//! Features that files reveal: the sources of facts, and the configuration of the kernel's own tracefs.

use super::feature::{Feature, Group, feature};
use crate::kernel::config::Config;
use crate::kernel::tracefs::Place;
use crate::kernel::{Answer, Btf, Error, Symbols, Tracefs};

pub(super) fn features() -> Vec<Feature> {
    let (config, tracefs) = (Config::running(), Tracefs::open());
    let mut features = facts(&tracefs, &config);
    let config = config.ok().flatten();
    features.extend(OWN.map(|(name, purpose, since, sign)| {
        let answer = match &tracefs {
            Ok(tracefs) => sign.seen(since, tracefs, config.as_ref()),
            Err(_) => Answer::unknown("no tracefs"),
        };
        feature(Group::Tracefs, name, purpose, since, answer, None)
    }));
    features
}

fn facts(tracefs: &Result<Tracefs, Error>, config: &Result<Option<Config>, Error>) -> Vec<Feature> {
    let mut features = Vec::new();
    let mut push = |name, purpose, since, answer, detail| {
        features.push(feature(Group::Facts, name, purpose, since, answer, detail));
    };
    let place = tracefs.as_ref().ok().map(|tracefs| match tracefs.place() {
        Place::Mounted(path) | Place::Frozen(path) => path.display().to_string(),
        Place::Detached => "not mounted; a detached mount is used".to_owned(),
    });
    let answer = match tracefs {
        Ok(_) => Answer::Yes,
        Err(error) => Answer::no(with_cause(error)),
    };
    push("tracefs", "events, their formats and ids", "4.1 (CONFIG_TRACING)", answer, place);

    let (answer, detail) = match Symbols::running() {
        Ok(symbols) => (Answer::Yes, Some(format!("{} symbols", symbols.len()))),
        Err(error) => (Answer::no(with_cause(&error)), None),
    };
    push("kernel_symbols", "names of kernel addresses", "CONFIG_KALLSYMS", answer, detail);

    let answer = match Btf::running() {
        Ok(Some(_)) => Answer::Yes,
        Ok(None) => Answer::no("no /sys/kernel/btf/vmlinux (CONFIG_DEBUG_INFO_BTF)"),
        Err(error) => Answer::unknown(with_cause(&error)),
    };
    push("btf", "raw arguments, syscall numbers, fentry", "5.4 (CONFIG_DEBUG_INFO_BTF)", answer, None);

    for (name, purpose, since, path, setting) in DEVICES {
        let answer = match std::fs::metadata(path) {
            Ok(_) => Answer::Yes,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                Answer::no(format!("no {path} ({setting})"))
            }
            Err(error) => Answer::unknown(format!("{path}: {error}")),
        };
        push(name, purpose, since, answer, None);
    }

    let (answer, detail) = match config {
        Ok(Some(found)) => (Answer::Yes, Some(found.source().display().to_string())),
        Ok(None) => (Answer::no("neither /proc/config.gz nor /boot/config-* of this release"), None),
        Err(error) => (Answer::unknown(with_cause(error)), None),
    };
    push("kernel_config", "listing what is not built", "CONFIG_IKCONFIG_PROC", answer, detail);
    features
}

const DEVICES: [(&str, &str, &str, &str, &str); 4] = [
    (
        "perf_tracepoint",
        "trace events",
        "2.6.32",
        "/sys/bus/event_source/devices/tracepoint/type",
        "CONFIG_EVENT_TRACING",
    ),
    ("perf_kprobe", "kprobes", "4.17", "/sys/bus/event_source/devices/kprobe/type", "CONFIG_KPROBE_EVENTS"),
    ("perf_uprobe", "uprobes", "4.17", "/sys/bus/event_source/devices/uprobe/type", "CONFIG_UPROBE_EVENTS"),
    ("fuse", "showing the mirror of tracefs", "2.6.14", "/dev/fuse", "CONFIG_FUSE_FS"),
];

/// The sign of a feature that the kernel's own tracefs may be built with.
#[derive(Clone, Copy)]
enum Sign {
    /// A file that exists exactly if the feature is built.
    File(&'static str),
    /// A word of the file `README`.
    Readme(&'static str),
    /// A setting without `CONFIG_`.
    Setting(&'static str),
}

impl Sign {
    /// `since` is the setting that builds the feature, or the version that introduced it.
    fn seen(self, since: &str, tracefs: &Tracefs, config: Option<&Config>) -> Answer {
        let answer = |is_there: bool| match is_there {
            true => Answer::Yes,
            false if since.starts_with("CONFIG_") => Answer::no(format!("not built ({since})")),
            false => Answer::no(format!("older than {since}")),
        };
        let found = match self {
            Self::File(file) => tracefs.open_file(file, rustix::fs::OFlags::PATH).map(|file| file.is_some()),
            Self::Readme(word) => {
                tracefs.read("README").map(|text| text.is_some_and(|text| text.contains(word)))
            }
            Self::Setting(setting) => match config {
                Some(config) => Ok(config.has(setting)),
                None => return Answer::unknown("the kernel's configuration is not available"),
            },
        };
        found.map_or_else(|error| Answer::unknown(with_cause(&error)), answer)
    }
}

const OWN: [(&str, &str, &str, Sign); 12] = [
    ("own_hist", "hist triggers", "CONFIG_HIST_TRIGGERS", Sign::File("events/sched/sched_switch/hist")),
    ("own_hist_nohitcount", "hist triggers without hit counts", "6.3", Sign::Readme("nohitcount")),
    ("own_synthetic", "synthetic events", "CONFIG_SYNTH_EVENTS", Sign::File("synthetic_events")),
    ("own_snapshot", "snapshots", "CONFIG_TRACER_SNAPSHOT", Sign::File("snapshot")),
    ("own_user_events", "user events", "CONFIG_USER_EVENTS", Sign::File("user_events_data")),
    ("own_kprobe_events", "kprobe events", "CONFIG_KPROBE_EVENTS", Sign::File("kprobe_events")),
    ("own_uprobe_events", "uprobe events", "CONFIG_UPROBE_EVENTS", Sign::File("uprobe_events")),
    (
        "own_syscall_events",
        "an event for each system call",
        "CONFIG_FTRACE_SYSCALLS",
        Sign::File("events/syscalls"),
    ),
    (
        "own_syscall_data",
        "texts and buffers in events of system calls",
        "6.19",
        Sign::File("syscall_user_buf_size"),
    ),
    ("own_fprobe_events", "function events", "CONFIG_FPROBE_EVENTS", Sign::Readme("f[:[<group>/]")),
    (
        "own_probe_types",
        "arguments of probes by name",
        "CONFIG_PROBE_EVENTS_BTF_ARGS",
        Sign::Readme("<argname>"),
    ),
    (
        "own_function_tracer",
        "fentry, kprobe.multi",
        "CONFIG_FUNCTION_TRACER",
        Sign::Setting("FUNCTION_TRACER"),
    ),
];

/// An error and its cause in one line.
fn with_cause(error: &dyn std::error::Error) -> String {
    match error.source() {
        Some(cause) => format!("{error}: {cause}"),
        None => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_configuration_answers_where_no_file_does() {
        let dir = std::env::temp_dir().join(format!("tracer-own-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        std::fs::write(dir.join("snapshot"), "").unwrap();
        std::fs::write(dir.join("config"), "CONFIG_FUNCTION_TRACER=y\n").unwrap();
        let tracefs = Tracefs::frozen(&dir).unwrap();
        let config = Config::read(&dir.join("config")).unwrap();
        let seen = |name: &str, config: Option<&Config>| {
            let (_, _, since, sign) = OWN.into_iter().find(|own| own.0 == name).unwrap();
            sign.seen(since, &tracefs, config)
        };
        assert_eq!(seen("own_snapshot", None), Answer::Yes);
        assert_eq!(seen("own_hist", None), Answer::no("not built (CONFIG_HIST_TRIGGERS)"));
        assert_eq!(seen("own_function_tracer", config.as_ref()), Answer::Yes);
        assert!(matches!(seen("own_function_tracer", None), Answer::Unknown(_)));
        let no_fprobes = Answer::no("not built (CONFIG_FPROBE_EVENTS)");
        assert_eq!(seen("own_fprobe_events", None), no_fprobes, "no README");
        assert_eq!(seen("own_hist_nohitcount", None), Answer::no("older than 6.3"));
        std::fs::write(dir.join("README"), "[:nohitcount]\n f[:[<group>/][<event>]] <func-name>\n").unwrap();
        assert_eq!(seen("own_hist_nohitcount", None), Answer::Yes);
        assert_eq!(seen("own_fprobe_events", None), Answer::Yes);
        assert_eq!(seen("own_probe_types", None), Answer::no("not built (CONFIG_PROBE_EVENTS_BTF_ARGS)"));
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
