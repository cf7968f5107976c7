//! What can be explained: the pages of the languages, and the commands.

use clap::builder::PossibleValue;

/// A page about a language.
#[derive(Debug)]
pub(super) struct Topic {
    /// Its name for `tracer help`, and after `tracer-` the name of its manual page.
    pub(super) name: &'static str,
    /// What it is about, for lists.
    pub(super) about: &'static str,
    /// Its text.
    pub(super) markdown: &'static str,
}

/// All pages.
pub(super) const TOPICS: [Topic; 4] = [
    Topic {
        name: "filter",
        about: "the language of filters",
        markdown: include_str!("../../../help/filter.md"),
    },
    Topic {
        name: "hist",
        about: "histograms and synthetic events",
        markdown: include_str!("../../../help/hist.md"),
    },
    Topic {
        name: "probe",
        about: "definitions of dynamic events, and fetch arguments",
        markdown: include_str!("../../../help/probe.md"),
    },
    Topic {
        name: "trigger",
        about: "actions of the mirror's trigger files",
        markdown: include_str!("../../../help/trigger.md"),
    },
];

/// The commands that no topic has the name of.
pub(super) const COMMANDS: [&str; 6] = ["record", "list", "explain", "doctor", "mount", "exec"];

/// What `tracer help` takes: the topics, then the commands. `hist` is the language; `tracer hist --help` has the options.
pub(crate) fn names() -> impl Iterator<Item = PossibleValue> {
    let topics = TOPICS.iter().map(|topic| PossibleValue::new(topic.name).help(topic.about));
    topics.chain(COMMANDS.map(|name| PossibleValue::new(name).help("options and examples of the command")))
}
