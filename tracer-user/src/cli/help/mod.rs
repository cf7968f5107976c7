//! `tracer help`: the pages of the languages, and the help of the commands.
//!
//! The pages are the reference pages of the documentation. The manual pages of the same names have the same text.

#[cfg(feature = "pages")]
pub(super) mod manual;
mod page;
mod terminal;
pub(super) mod topics;

use std::io::{self, IsTerminal as _, Write as _};

use anyhow::Context as _;
use clap::CommandFactory as _;

use super::args::{Args, HelpArgs};
use page::Page;
use terminal::TextStyle;
use topics::TOPICS;

/// Columns of a page where the terminal's are not known, and at most.
const WIDTH: usize = 100;

/// Prints a page, the help of a command, or without a name the help of the program.
pub(super) fn run(args: &HelpArgs) -> anyhow::Result<()> {
    let mut command = Args::command();
    let Some(name) = &args.topic else {
        return Ok(command.print_long_help()?);
    };
    if let Some(topic) = TOPICS.iter().find(|topic| topic.name == name) {
        let out = io::stdout();
        let bold = out.is_terminal() && std::env::var_os("NO_COLOR").is_none();
        let text = terminal::render(&Page::parse(topic.markdown), TextStyle { width: width(), bold });
        return Ok(out.lock().write_all(text.as_bytes())?);
    }
    // The usage line of a command names the program too.
    command.build();
    Ok(command.find_subcommand_mut(name).context("no such command")?.print_long_help()?)
}

/// Columns of the terminal, up to a limit.
fn width() -> usize {
    let columns = rustix::termios::tcgetwinsize(io::stdout()).map_or(0, |size| usize::from(size.ws_col));
    if columns == 0 { WIDTH } else { columns.min(WIDTH) }
}

#[cfg(test)]
mod tests {
    use pulldown_cmark::{Event, Options, Parser, Tag, TagEnd};

    use super::{topics::COMMANDS, *};

    #[test]
    fn the_pages_have_only_what_is_shown() {
        for topic in &TOPICS {
            let mut items = 0;
            for event in Parser::new_ext(topic.markdown, Options::all()) {
                match &event {
                    Event::Start(Tag::Item) => items += 1,
                    Event::End(TagEnd::Item) => items -= 1,
                    _ => {}
                }
                let is_shown = match &event {
                    Event::InlineHtml(tag) => ["<code>", "</code>"].contains(&&**tag),
                    // Items are single lines.
                    Event::Start(Tag::Paragraph | Tag::List(_)) => items == 0,
                    Event::Start(tag) => matches!(
                        tag,
                        Tag::Heading { .. }
                            | Tag::CodeBlock(_)
                            | Tag::Item
                            | Tag::Table(_)
                            | Tag::TableHead
                            | Tag::TableRow
                            | Tag::TableCell
                            | Tag::Strong
                            | Tag::Link { .. }
                    ),
                    Event::Html(_)
                    | Event::FootnoteReference(_)
                    | Event::Rule
                    | Event::TaskListMarker(_)
                    | Event::InlineMath(_)
                    | Event::DisplayMath(_) => false,
                    _ => true,
                };
                assert!(is_shown, "{}: {event:?}", topic.name);
            }
            let page = Page::parse(topic.markdown);
            assert!(!page.title.is_empty() && page.blocks.len() > 5, "{}", topic.name);
        }
    }

    #[test]
    fn each_visible_command_has_help() {
        let command = Args::command();
        let visible = command.get_subcommands().filter(|command| !command.is_hide_set());
        let mut visible: Vec<_> = visible.map(clap::Command::get_name).collect();
        let is_topic = |name: &str| TOPICS.iter().any(|topic| topic.name == name);
        visible.retain(|name| *name != "help" && !is_topic(name));
        assert_eq!(visible, COMMANDS);
    }
}
