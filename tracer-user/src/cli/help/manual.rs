//! Manual pages and completions, as files of a package.
//!
//! The pages of commands and the completions come from the definitions of the command line, and the pages of the
//! languages from the texts of `tracer help`.

use std::{fs::File, io, path::Path};

use clap::CommandFactory as _;
use clap_complete::Shell;
use clap_mangen::roff::{Inline, Roff, bold, roman};

use super::{
    page::{Block, Line, Page, Span, plain},
    topics::TOPICS,
};
use crate::cli::{
    args::Args,
    config::{self, DIR},
};

/// The program's name, which its pages begin with.
const PROGRAM: &str = "tracer";
/// The section of the manual with languages and conventions.
const LANGUAGES: &str = "7";
/// The section with formats of files.
const FILES: &str = "5";
/// The configuration file.
const CONFIGURATION: &str = "tracer.toml";

/// Writes all pages below `man`, each into the directory of its section, and the completions of each shell, into
/// `completions`, by the names that the shells look for.
///
/// # Errors
/// A directory or a file cannot be written.
pub fn write_pages(dir: &Path) -> io::Result<()> {
    let commands = dir.join("man/man1");
    std::fs::create_dir_all(&commands)?;
    // The long version has several lines, and a title is one.
    clap_mangen::generate_to(Args::command().long_version(env!("CARGO_PKG_VERSION")), &commands)?;
    let languages = dir.join("man").join(format!("man{LANGUAGES}"));
    std::fs::create_dir_all(&languages)?;
    for topic in &TOPICS {
        let file = languages.join(format!("{PROGRAM}-{}.{LANGUAGES}", topic.name));
        std::fs::write(file, manual(topic.name, topic.about, &Page::parse(topic.markdown)).render())?;
    }
    let files = dir.join("man").join(format!("man{FILES}"));
    std::fs::create_dir_all(&files)?;
    let file = files.join(format!("{CONFIGURATION}.{FILES}"));
    std::fs::write(file, configuration().render())?;
    for section in [&commands, &languages, &files] {
        for page in std::fs::read_dir(section)? {
            let page = page?.path();
            let text = std::fs::read_to_string(&page)?;
            std::fs::write(page, with_version(&text))?;
        }
    }
    let completions = dir.join("completions");
    for (shell, name) in [(Shell::Bash, "tracer"), (Shell::Zsh, "_tracer"), (Shell::Fish, "tracer.fish")] {
        let dir = completions.join(shell.to_string());
        std::fs::create_dir_all(&dir)?;
        let mut command = visible(&Args::command());
        clap_complete::generate(shell, &mut command, PROGRAM, &mut File::create(dir.join(name))?);
    }
    Ok(())
}

/// The same commands without the hidden ones and without hidden options, which `clap_complete` would offer.
fn visible(command: &clap::Command) -> clap::Command {
    let options = command.get_arguments().filter(|option| !option.is_hide_set());
    let commands = command.get_subcommands().filter(|command| !command.is_hide_set());
    clap::Command::new(command.get_name().to_owned())
        .about(command.get_about().cloned().unwrap_or_default())
        .version(env!("CARGO_PKG_VERSION"))
        .propagate_version(true)
        .disable_help_subcommand(true)
        .args(options.cloned())
        .subcommands(commands.map(visible))
}

/// The same page with the program's version in its title, and an empty date before it: `roff` writes nothing for an empty
/// word, so what follows would be taken for the date.
fn with_version(text: &str) -> String {
    let Some((before, after)) = text.split_once("  \"") else { return text.to_owned() };
    let rest = after.split_once('"').map_or("", |(_, rest)| rest);
    format!("{before} \"\" \"{PROGRAM} {}\"{rest}", env!("CARGO_PKG_VERSION"))
}

/// The begin of a manual page, up to its description.
fn page(title: &str, section: &str, about: &str, manual: &str) -> Roff {
    let version = format!("{PROGRAM} {}", env!("CARGO_PKG_VERSION"));
    let mut roff = Roff::new();
    roff.control("TH", [title.to_uppercase().as_str(), section, "", version.as_str(), manual]);
    roff.control("SH", ["NAME"]).text([roman(format!("{title} - {about}"))]);
    roff.control("SH", ["DESCRIPTION"]);
    roff
}

/// The manual page of the configuration file: its keys are the options of `tracer mount`.
fn configuration() -> Roff {
    let mut roff = page(CONFIGURATION, FILES, "configuration of tracer mount", "Configuration of tracer");
    roff.text([
        roman("The file that "),
        bold("tracer mount --config"),
        roman(
            " reads, in TOML. The service reads /etc/tracer/tracer.toml. Each key is the name of a long option of \
             tracer-mount(1). An option without a value is true or false, and one that can be repeated is a list. The options of \
             the command line replace those of the file. A key or a value that is not known is an error, and then the \
             daemon does not start.",
        ),
    ]);
    roff.control("PP", []).text([
        roman("SIGHUP ("),
        bold("systemctl reload tracer"),
        roman(
            ") reads the file again. log-level and trace-event are used at once: events that are new in the list are \
             enabled, and those that are no longer in it are disabled. The others are used at the next start.",
        ),
    ]);
    roff.control("SH", ["KEYS"]);
    roff.control("TP", []).text([bold(DIR)]).text([roman("Directory to mount on.")]);
    for option in config::mount_command().get_arguments().filter(|option| config::is_key(option)) {
        let help = option.get_long_help().or(option.get_help()).map(ToString::to_string).unwrap_or_default();
        let name = option.get_long().unwrap_or_default();
        roff.control("TP", []).text([bold(name)]).text([roman(help.replace('\n', " "))]);
        let values = option.get_possible_values();
        if !values.is_empty() && option.get_action().takes_values() {
            let names: Vec<_> = values.iter().map(|value| value.get_name().to_owned()).collect();
            roff.text([roman(format!("One of {}.", names.join(", ")))]);
        }
    }
    roff.control("SH", ["EXAMPLE"]).control("nf", []);
    for line in [
        "gid = 1000",
        "mode = \"750\"",
        "trace-event = [\"sched:sched_switch\", \"irq\"]",
        "log-level = \"info\"",
    ] {
        roff.text([roman(line)]);
    }
    roff.control("fi", []);
    roff.control("SH", ["SEE ALSO"]).text([roman("tracer-mount(1)")]);
    roff
}

/// The manual page of a topic.
fn manual(name: &str, about: &str, text: &Page) -> Roff {
    let title = format!("{PROGRAM}-{name}");
    let mut roff = page(&title, LANGUAGES, about, &text.title);
    for block in &text.blocks {
        match block {
            Block::Heading(title) => {
                roff.control("SH", [title.to_uppercase().as_str()]);
            }
            Block::Paragraph(line) => {
                roff.control("PP", []).text(inlines(line));
            }
            Block::Code(text) => {
                roff.control("PP", []).control("RS", ["4"]).control("nf", []);
                for line in text.lines() {
                    roff.text([roman(line)]);
                }
                roff.control("fi", []).control("RE", []);
            }
            Block::Items(items) => {
                for item in items {
                    roff.control("IP", ["\\-", "2"]).text(inlines(item));
                }
            }
            Block::Entries(entries) => {
                for entry in entries {
                    roff.control("TP", []).text([bold(plain(&entry.term))]).text(inlines(&entry.text));
                }
            }
        }
    }
    roff.control("SH", ["SEE ALSO"]);
    let others = TOPICS.iter().filter(|topic| topic.name != name);
    let others: Vec<_> = others.map(|topic| format!("{PROGRAM}-{}({LANGUAGES})", topic.name)).collect();
    roff.text([roman(format!("{PROGRAM}(1), {}", others.join(", ")))]);
    roff
}

/// A line of words: code is bold, as in pages of commands.
fn inlines(line: &Line) -> Vec<Inline> {
    line.iter()
        .map(|span| match span {
            Span::Plain(text) => roman(text),
            Span::Code(text) | Span::Strong(text) => bold(text),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_topic_becomes_a_manual_page() {
        let page = Page::parse(
            "# Filters\n\nA `x == 1`.\n\n    .dots\n\n| a | b |\n|---|---|\n| `-c` | d |\n\n- e\n",
        );
        let text = manual("filter", "the language of filters", &page).to_roff();
        for part in [
            "\n.SH NAME\ntracer\\-filter \\- the language of filters\n.SH DESCRIPTION\n",
            "\n.PP\nA \\fBx == 1\\fR.\n.PP\n.RS 4\n.nf\n\\&.dots\n.fi\n.RE\n",
            "\n.TP\n\\fB\\-c\\fR\nd\n.IP \\- 2\ne\n.SH \"SEE ALSO\"\ntracer(1), tracer\\-hist(7), ",
        ] {
            assert!(text.contains(part), "{part:?} is not in {text:?}");
        }
    }

    #[test]
    fn all_pages_and_completions_are_written() {
        let dir = std::env::temp_dir().join(format!("tracer-pages-{}", std::process::id()));
        write_pages(&dir).unwrap();
        let mut names = Vec::new();
        for place in
            ["man/man1", "man/man5", "man/man7", "completions/bash", "completions/zsh", "completions/fish"]
        {
            for entry in std::fs::read_dir(dir.join(place)).unwrap() {
                let path = entry.unwrap().path();
                let text = std::fs::read_to_string(&path).unwrap();
                let title = text.lines().find(|line| line.starts_with(".TH "));
                let version = format!(" \"\" \"tracer {}\"", env!("CARGO_PKG_VERSION"));
                assert!(title.is_none_or(|title| title.contains(&version)), "{title:?}");
                assert!(text.len() > 500, "{}", path.display());
                for hidden in ["detached", "ready-fd", "close-events", "write-state"] {
                    assert!(!text.contains(hidden), "{}: {hidden}", path.display());
                }
                names.push(path.file_name().unwrap().to_string_lossy().into_owned());
            }
        }
        std::fs::remove_dir_all(dir).unwrap();
        let visible = Args::command().get_subcommands().filter(|command| !command.is_hide_set()).count();
        assert_eq!(names.iter().filter(|name| name.ends_with(".1")).count(), 1 + visible);
        for name in [
            "tracer.1",
            "tracer-record.1",
            "tracer.toml.5",
            "tracer-filter.7",
            "tracer",
            "_tracer",
            "tracer.fish",
        ] {
            assert!(names.iter().any(|found| found == name), "{name} is not in {names:?}");
        }
    }
}
