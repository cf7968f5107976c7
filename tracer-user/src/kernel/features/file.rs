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
        feature(Group::Tracefs, own.name, own.purpose, own.setting, answer)
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
    setting: &'static str,
    /// A file of tracefs that exists exactly if the feature is built.
    file: Option<&'static str>,
    /// The setting without `CONFIG_`, checked if `file` is None.
    config: &'static str,
}

impl Own {
    fn seen(&self, tracefs: &Tracefs, config: Option<&Config>) -> Answer {
        if let Some(file) = self.file {
            return match tracefs.open_file(file, rustix::fs::OFlags::PATH) {
                Ok(Some(_)) => Answer::Yes,
                Ok(None) => Answer::no(format!("not built ({})", self.setting)),
                Err(error) => Answer::unknown(with_cause(&error)),
            };
        }
        match config {
            Some(config) if config.has(self.config) => Answer::Yes,
            Some(_) => Answer::no(format!("not built ({})", self.setting)),
            None => Answer::unknown("the kernel's configuration is not available"),
        }
    }
}

const OWN: [Own; 9] = [
    Own {
        name: "own_hist",
        purpose: "hist triggers",
        setting: "CONFIG_HIST_TRIGGERS",
        file: Some("events/sched/sched_switch/hist"),
        config: "HIST_TRIGGERS",
    },
    Own {
        name: "own_synthetic",
        purpose: "synthetic events",
        setting: "CONFIG_SYNTH_EVENTS",
        file: Some("synthetic_events"),
        config: "SYNTH_EVENTS",
    },
    Own {
        name: "own_snapshot",
        purpose: "snapshots",
        setting: "CONFIG_TRACER_SNAPSHOT",
        file: Some("snapshot"),
        config: "TRACER_SNAPSHOT",
    },
    Own {
        name: "own_user_events",
        purpose: "user events",
        setting: "CONFIG_USER_EVENTS",
        file: Some("user_events_data"),
        config: "USER_EVENTS",
    },
    Own {
        name: "own_kprobe_events",
        purpose: "kprobe events",
        setting: "CONFIG_KPROBE_EVENTS",
        file: Some("kprobe_events"),
        config: "KPROBE_EVENTS",
    },
    Own {
        name: "own_uprobe_events",
        purpose: "uprobe events",
        setting: "CONFIG_UPROBE_EVENTS",
        file: Some("uprobe_events"),
        config: "UPROBE_EVENTS",
    },
    Own {
        name: "own_syscall_events",
        purpose: "an event for each system call",
        setting: "CONFIG_FTRACE_SYSCALLS",
        file: Some("events/syscalls"),
        config: "FTRACE_SYSCALLS",
    },
    Own {
        name: "own_fprobe_events",
        purpose: "function events",
        setting: "CONFIG_FPROBE_EVENTS",
        file: None,
        config: "FPROBE_EVENTS",
    },
    Own {
        name: "own_function_tracer",
        purpose: "fentry, kprobe.multi",
        setting: "CONFIG_FUNCTION_TRACER",
        file: None,
        config: "FUNCTION_TRACER",
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
        assert_eq!(
            seen("own_fprobe_events", config.as_ref()),
            Answer::no("not built (CONFIG_FPROBE_EVENTS)")
        );
        assert!(matches!(seen("own_fprobe_events", None), Answer::Unknown(_)));
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
