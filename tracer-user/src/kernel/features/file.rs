//! Features that files reveal: the sources of facts, and the configuration of the kernel's own tracefs.

use super::feature::{Feature, Group, feature};
use crate::kernel::config::Config;
use crate::kernel::tracefs::Place;
use crate::kernel::{Answer, Btf, Symbols, Tracefs};

pub(super) fn features() -> Vec<Feature> {
    let config = Config::running();
    let tracefs = Tracefs::open();
    let mut features = facts(&tracefs);
    features.push(match &config {
        Ok(Some(found)) => {
            Feature { detail: Some(found.source().display().to_string()), ..kernel_config(Answer::Yes) }
        }
        Ok(None) => kernel_config(Answer::no("neither /proc/config.gz nor /boot/config-* of this release")),
        Err(error) => kernel_config(Answer::unknown(with_cause(error))),
    });
    let config = config.ok().flatten();
    features.extend(OWN.iter().map(|own| {
        let answer = match &tracefs {
            Ok(tracefs) => own.seen(tracefs, config.as_ref()),
            Err(_) => Answer::unknown("no tracefs"),
        };
        feature(Group::Tracefs, own.name, own.purpose, own.since, answer)
    }));
    features
}

fn facts(tracefs: &Result<Tracefs, crate::kernel::Error>) -> Vec<Feature> {
    let mut features = Vec::new();
    let mut push = |name, purpose, since, answer, detail: Option<String>| {
        features.push(Feature { detail, ..feature(Group::Facts, name, purpose, since, answer) });
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
        Ok(None) => Answer::no("no /sys/kernel/btf/vmlinux"),
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
    features
}

fn kernel_config(answer: Answer) -> Feature {
    feature(Group::Facts, "kernel_config", "listing what is not built", "CONFIG_IKCONFIG_PROC", answer)
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

/// A feature that the kernel's own tracefs may be built with.
struct Own {
    name: &'static str,
    purpose: &'static str,
    /// The setting that builds it, or the version that introduced it.
    since: &'static str,
    sign: Sign,
}

/// The sign of a feature of tracefs.
enum Sign {
    /// A file that exists exactly if the feature is built.
    File(&'static str),
    /// A word of the file `README`.
    Readme(&'static str),
    /// A setting without `CONFIG_`.
    Setting(&'static str),
}

impl Own {
    fn seen(&self, tracefs: &Tracefs, config: Option<&Config>) -> Answer {
        let answer = |is_there: bool| match is_there {
            true => Answer::Yes,
            false if self.since.starts_with("CONFIG_") => Answer::no(format!("not built ({})", self.since)),
            false => Answer::no(format!("older than {}", self.since)),
        };
        let found = match self.sign {
            Sign::File(file) => tracefs.open_file(file, rustix::fs::OFlags::PATH).map(|file| file.is_some()),
            Sign::Readme(word) => {
                tracefs.read("README").map(|text| text.is_some_and(|text| text.contains(word)))
            }
            Sign::Setting(setting) => match config {
                Some(config) => Ok(config.has(setting)),
                None => return Answer::unknown("the kernel's configuration is not available"),
            },
        };
        found.map_or_else(|error| Answer::unknown(with_cause(&error)), answer)
    }
}

const OWN: [Own; 11] = [
    Own {
        name: "own_hist",
        purpose: "hist triggers",
        since: "CONFIG_HIST_TRIGGERS",
        sign: Sign::File("events/sched/sched_switch/hist"),
    },
    Own {
        name: "own_hist_nohitcount",
        purpose: "hist triggers without hit counts",
        since: "6.3",
        sign: Sign::Readme("nohitcount"),
    },
    Own {
        name: "own_synthetic",
        purpose: "synthetic events",
        since: "CONFIG_SYNTH_EVENTS",
        sign: Sign::File("synthetic_events"),
    },
    Own {
        name: "own_snapshot",
        purpose: "snapshots",
        since: "CONFIG_TRACER_SNAPSHOT",
        sign: Sign::File("snapshot"),
    },
    Own {
        name: "own_user_events",
        purpose: "user events",
        since: "CONFIG_USER_EVENTS",
        sign: Sign::File("user_events_data"),
    },
    Own {
        name: "own_kprobe_events",
        purpose: "kprobe events",
        since: "CONFIG_KPROBE_EVENTS",
        sign: Sign::File("kprobe_events"),
    },
    Own {
        name: "own_uprobe_events",
        purpose: "uprobe events",
        since: "CONFIG_UPROBE_EVENTS",
        sign: Sign::File("uprobe_events"),
    },
    Own {
        name: "own_syscall_events",
        purpose: "an event for each system call",
        since: "CONFIG_FTRACE_SYSCALLS",
        sign: Sign::File("events/syscalls"),
    },
    Own {
        name: "own_fprobe_events",
        purpose: "function events",
        since: "CONFIG_FPROBE_EVENTS",
        sign: Sign::Readme("f[:[<group>/]"),
    },
    Own {
        name: "own_probe_types",
        purpose: "arguments of probes by name",
        since: "CONFIG_PROBE_EVENTS_BTF_ARGS",
        sign: Sign::Readme("<argname>"),
    },
    Own {
        name: "own_function_tracer",
        purpose: "fentry, kprobe.multi",
        since: "CONFIG_FUNCTION_TRACER",
        sign: Sign::Setting("FUNCTION_TRACER"),
    },
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
            OWN.iter().find(|own| own.name == name).unwrap().seen(&tracefs, config)
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
