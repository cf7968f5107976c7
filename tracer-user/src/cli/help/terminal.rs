//! Pages of help as text of a terminal.

use std::fmt::Write as _;

use super::page::{Block, Line, Page, PageEntry, Span, plain};

/// Columns of the text of a block, and of what explains a term.
const TEXT: usize = 4;
const EXPLANATION: usize = 28;
/// The fewest columns of an explanation. With less, it begins below its term.
const NARROW: usize = 30;

/// How a page is shown.
#[derive(Clone, Copy, Debug)]
pub(super) struct TextStyle {
    /// Columns of a line.
    pub(super) width: usize,
    /// Titles and terms are bold.
    pub(super) bold: bool,
}

impl TextStyle {
    fn paint(self, text: &str) -> String {
        if self.bold { format!("\x1b[1m{text}\x1b[0m") } else { text.to_owned() }
    }
}

/// The text of a page.
pub(super) fn render(page: &Page, style: TextStyle) -> String {
    let mut out = style.paint(&page.title.to_uppercase());
    out.push('\n');
    for block in &page.blocks {
        match block {
            Block::Heading(title) => {
                let _ = writeln!(out, "\n{}", style.paint(&title.to_uppercase()));
            }
            Block::Paragraph(line) => {
                let _ = writeln!(out, "\n{:TEXT$}{}", "", fold(line, style, TEXT));
            }
            Block::Code(text) => {
                out.push('\n');
                for line in text.lines() {
                    let _ = writeln!(out, "{:1$}{line}", "", 2 * TEXT);
                }
            }
            Block::Items(items) => {
                out.push('\n');
                for item in items {
                    let _ = writeln!(out, "{:TEXT$}- {}", "", fold(item, style, TEXT + 2));
                }
            }
            Block::Entries(entries) => {
                out.push('\n');
                let is_narrow = style.width < EXPLANATION + NARROW;
                for entry in entries {
                    explain(&mut out, entry, style, if is_narrow { 2 * TEXT } else { EXPLANATION });
                }
            }
        }
    }
    out
}

/// Appends a term, and its explanation from column `at` on: beside the term where that fits, below it otherwise.
fn explain(out: &mut String, entry: &PageEntry, style: TextStyle, at: usize) {
    let term = plain(&entry.term);
    let _ = write!(out, "{:TEXT$}{}", "", style.paint(&term));
    let used = TEXT + term.chars().count();
    if !entry.text.is_empty() {
        let gap = if used + 2 <= at { at - used } else { at };
        if used + 2 > at {
            out.push('\n');
        }
        let _ = write!(out, "{:gap$}{}", "", fold(&entry.text, style, at));
    }
    out.push('\n');
}

/// The words of a line, broken at the width. Lines after the first are indented, and the first begins at that column.
/// Code is never broken, so that it can be copied.
fn fold(line: &Line, style: TextStyle, indent: usize) -> String {
    // A space that does not end a word, and marks around code.
    const FIXED: &str = "\u{a0}";
    const BEGIN: char = '\u{1}';
    const END: char = '\u{2}';
    let text: String = line
        .iter()
        .map(|span| match span {
            Span::Plain(text) | Span::Strong(text) => text.clone(),
            Span::Code(text) => format!("{BEGIN}{}{END}", text.replace(' ', FIXED)),
        })
        .collect();
    let mut out = String::new();
    let mut column = indent;
    for word in text.split(' ').filter(|word| !word.is_empty()) {
        let length = word.chars().filter(|c| ![BEGIN, END].contains(c)).count();
        if !out.is_empty() && column + 1 + length > style.width {
            let _ = write!(out, "\n{:indent$}", "");
            column = indent;
        } else if !out.is_empty() {
            out.push(' ');
            column += 1;
        }
        out.push_str(&word.replace(FIXED, " "));
        column += length;
    }
    let (bold, normal) = if style.bold { ("\x1b[1m", "\x1b[0m") } else { ("", "") };
    out.replace(BEGIN, bold).replace(END, normal)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = "# Things\n\nOne two `a == b c` three.\n\n    keep  this\n\n## More\n\n- an item\n\n\
        | what | meaning |\n|---|---|\n| `a` | short |\n| `a term that is too long for it` | words that are broken |\n\
        | `c` | |\n";

    #[test]
    fn a_page_is_shown_in_the_columns_of_the_terminal() {
        let text = render(&Page::parse(PAGE), TextStyle { width: 62, bold: false });
        let expected = "\
THINGS

    One two a == b c three.

        keep  this

MORE

    - an item

    a                       short
    a term that is too long for it
                            words that are broken
    c
";
        assert_eq!(text, expected);
    }

    #[test]
    fn code_is_not_broken_and_narrow_terminals_have_explanations_below_their_terms() {
        let text = render(&Page::parse(PAGE), TextStyle { width: 20, bold: true });
        let expected = "\
<THINGS>

    One two <a == b c>
    three.

        keep  this

<MORE>

    - an item

    <a>   short
    <a term that is too long for it>
        words that
        are broken
    <c>
";
        assert_eq!(text.replace("\x1b[1m", "<").replace("\x1b[0m", ">"), expected);
    }
}
