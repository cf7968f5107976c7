//! The kernel's preemption model, in the words of the header of `trace`.

use std::os::fd::AsRawFd;

use super::config::Config;
use super::version::Change;
use crate::sys::mount;

/// Modes, and the words of the header before [`Change::PreemptionWords`] and since then.
const MODES: [(&str, &str, &str); 5] = [
    ("none", "server", "NONE"),
    ("voluntary", "desktop", "VOLUNTARY"),
    ("full", "preempt", "PREEMPT"),
    ("lazy", "unknown", "PREEMPTLAZY"),
    ("rt", "preempt_rt", "PREEMPT_RT"),
];

/// The word that the kernel would write; `unknown`, which is one of its words, if no source states the model.
pub fn preemption(version: (u32, u32)) -> String {
    let build = rustix::system::uname().version().to_string_lossy().into_owned();
    let config = Config::running().ok().flatten();
    let setting = |name: &str| config.as_ref().is_some_and(|config| config.has(name));
    let built = [
        ("PREEMPT_NONE", "none"),
        ("PREEMPT_VOLUNTARY", "voluntary"),
        ("PREEMPT_LAZY", "lazy"),
        ("PREEMPT", "full"),
    ];
    let built = || built.iter().find(|(name, _)| setting(name)).map(|(_, mode)| (*mode).to_owned());
    let mode = if build.contains("PREEMPT_RT") {
        Some("rt".to_owned())
    } else if build.contains("PREEMPT_DYNAMIC") {
        dynamic().or_else(requested).or_else(built)
    } else {
        built().or_else(|| build.contains("PREEMPT").then(|| "full".to_owned()))
    };
    words(mode.as_deref(), &build, version)
}

fn words(mode: Option<&str>, build: &str, version: (u32, u32)) -> String {
    let is_new = Change::PreemptionWords.is_in(version);
    if is_new && build.contains("PREEMPT_DYNAMIC") {
        return format!("PREEMPT({})", mode.unwrap_or("undef"));
    }
    let found = MODES.iter().find(|(name, ..)| Some(*name) == mode);
    found.map_or("unknown", |(_, old, new)| if is_new { new } else { old }).to_owned()
}

/// The mode chosen at boot or later: debugfs lists all modes, with the current one in parentheses.
fn dynamic() -> Option<String> {
    let file = |root: &str| std::fs::read_to_string(format!("{root}/sched/preempt")).ok();
    let text = file("/sys/kernel/debug").or_else(|| {
        let root = mount::detached("debugfs").ok()?;
        file(&format!("/proc/self/fd/{}", root.as_raw_fd()))
    })?;
    Some(text.split_once('(')?.1.split_once(')')?.0.to_owned())
}

/// The mode that the kernel's command line requests.
fn requested() -> Option<String> {
    let line = std::fs::read_to_string("/proc/cmdline").ok()?;
    line.split_whitespace().filter_map(|word| word.strip_prefix("preempt=")).next_back().map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::words;

    #[test]
    fn both_formats_of_the_version_are_read() {
        let dynamic = "#1 SMP PREEMPT_DYNAMIC Tue";
        assert_eq!(words(Some("voluntary"), dynamic, (6, 12)), "desktop");
        assert_eq!(words(Some("none"), dynamic, (6, 18)), "PREEMPT(none)");
        assert_eq!(words(None, dynamic, (6, 18)), "PREEMPT(undef)");
        assert_eq!(words(Some("full"), "#1 SMP PREEMPT Tue", (6, 18)), "PREEMPT");
        assert_eq!(words(None, "#1 SMP", (6, 1)), "unknown");
    }
}
