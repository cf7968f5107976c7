//! The blocks of a page of help, read from its Markdown.
//!
//! A table becomes a list of terms: its first column is the term, and the others are the explanation. Links keep their
//! text only, as their targets are files of the documentation.

use pulldown_cmark::{CodeBlockKind, Event, HeadingLevel, Options, Parser, Tag, TagEnd};

/// A piece of a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Span {
    /// Words.
    Plain(String),
    /// What is typed or printed as it stands.
    Code(String),
    /// Words that stand out.
    Strong(String),
}

/// A paragraph, or a part of another block.
pub(super) type Line = Vec<Span>;

/// A term and its explanation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PageEntry {
    pub(super) term: Line,
    pub(super) text: Line,
}

/// A block of a page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Block {
    /// A title below that of the page.
    Heading(String),
    /// Words.
    Paragraph(Line),
    /// Lines that stay as they are.
    Code(String),
    /// Items of a list.
    Items(Vec<Line>),
    /// Rows of a table.
    Entries(Vec<PageEntry>),
}

/// A page: its title and its blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Page {
    pub(super) title: String,
    pub(super) blocks: Vec<Block>,
}

impl Page {
    /// Reads a page. Its first heading is its title.
    pub(super) fn parse(markdown: &str) -> Self {
        let mut reader = Reader::default();
        for event in Parser::new_ext(markdown, Options::ENABLE_TABLES) {
            reader.take(event);
        }
        Self { title: reader.title, blocks: reader.blocks }
    }
}

/// What has been read so far.
#[derive(Default)]
struct Reader {
    title: String,
    blocks: Vec<Block>,
    /// The line that is being read.
    line: Line,
    /// The cells of the row that is being read.
    row: Vec<Line>,
    /// The titles of the table's columns.
    columns: Vec<Line>,
    items: Vec<Line>,
    entries: Vec<PageEntry>,
    /// The words being read stand out, or are code between HTML tags.
    strong: bool,
    code: bool,
    /// A block of code is being read, whose lines are kept.
    verbatim: bool,
}

impl Reader {
    fn take(&mut self, event: Event<'_>) {
        match event {
            Event::Start(tag) => self.start(&tag),
            Event::End(tag) => self.end(tag),
            Event::Text(text) => self.push(&text),
            Event::Code(text) => self.line.push(Span::Code(text.into_string())),
            Event::SoftBreak | Event::HardBreak => self.push(" "),
            Event::InlineHtml(tag) => self.code = &*tag == "<code>",
            // The pages have none of these; a test of the topics checks it.
            Event::Html(_)
            | Event::FootnoteReference(_)
            | Event::Rule
            | Event::TaskListMarker(_)
            | Event::InlineMath(_)
            | Event::DisplayMath(_) => {}
        }
    }

    fn start(&mut self, tag: &Tag<'_>) {
        match tag {
            Tag::Strong => self.strong = true,
            Tag::CodeBlock(CodeBlockKind::Indented | CodeBlockKind::Fenced(_)) => self.verbatim = true,
            _ => {}
        }
    }

    fn end(&mut self, tag: TagEnd) {
        match tag {
            TagEnd::Strong => self.strong = false,
            TagEnd::Heading(HeadingLevel::H1) => self.title = plain(&std::mem::take(&mut self.line)),
            TagEnd::Heading(_) => {
                let title = plain(&std::mem::take(&mut self.line));
                self.blocks.push(Block::Heading(title));
            }
            TagEnd::Paragraph => {
                let line = std::mem::take(&mut self.line);
                self.blocks.push(Block::Paragraph(line));
            }
            TagEnd::CodeBlock => {
                self.verbatim = false;
                let text = plain(&std::mem::take(&mut self.line));
                self.blocks.push(Block::Code(text));
            }
            TagEnd::Item => self.items.push(std::mem::take(&mut self.line)),
            TagEnd::List(_) => self.blocks.push(Block::Items(std::mem::take(&mut self.items))),
            TagEnd::TableCell => self.row.push(std::mem::take(&mut self.line)),
            TagEnd::TableHead => self.columns = std::mem::take(&mut self.row),
            TagEnd::TableRow => {
                let entry = self.entry();
                self.entries.push(entry);
            }
            TagEnd::Table => self.blocks.push(Block::Entries(std::mem::take(&mut self.entries))),
            _ => {}
        }
    }

    fn push(&mut self, text: &str) {
        if self.verbatim {
            self.line.push(Span::Code(text.to_owned()));
            return;
        }
        // A break between two words is one space.
        match self.line.last_mut() {
            Some(Span::Plain(last)) if !self.strong && !self.code => last.push_str(text),
            _ if self.code => self.line.push(Span::Code(text.to_owned())),
            _ if self.strong => self.line.push(Span::Strong(text.to_owned())),
            _ => self.line.push(Span::Plain(text.to_owned())),
        }
    }

    /// The row that was read: the first cell is the term, the second its explanation, and others follow with their
    /// column's title in parentheses.
    fn entry(&mut self) -> PageEntry {
        let mut cells = std::mem::take(&mut self.row).into_iter();
        let term = cells.next().unwrap_or_default();
        let mut text = cells.next().unwrap_or_default();
        for (column, cell) in self.columns.iter().skip(2).zip(cells).filter(|(_, cell)| !cell.is_empty()) {
            text.push(Span::Plain(format!(" ({}: ", plain(column))));
            text.extend(cell);
            text.push(Span::Plain(")".to_owned()));
        }
        PageEntry { term, text }
    }
}

/// The text of a line without marks.
pub(super) fn plain(line: &[Span]) -> String {
    line.iter()
        .map(|span| match span {
            Span::Plain(text) | Span::Code(text) | Span::Strong(text) => text.as_str(),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(text: &str) -> Span {
        Span::Code(text.to_owned())
    }

    fn words(text: &str) -> Span {
        Span::Plain(text.to_owned())
    }

    #[test]
    fn blocks_are_read_in_their_order() {
        let page = Page::parse(
            "# Filters\n\nOne `a == 1`\nand a [link](x.md).\n\n    b  ~ \"c*\"\n    d\n\n## More\n\n- **First**: x\n- y\n",
        );
        assert_eq!(page.title, "Filters");
        let expected = [
            Block::Paragraph(vec![words("One "), code("a == 1"), words(" and a link.")]),
            Block::Code("b  ~ \"c*\"\nd\n".to_owned()),
            Block::Heading("More".to_owned()),
            Block::Items(vec![vec![Span::Strong("First".to_owned()), words(": x")], vec![words("y")]]),
        ];
        assert_eq!(page.blocks, expected);
    }

    #[test]
    fn rows_become_entries_with_further_columns_in_parentheses() {
        let page = Page::parse(
            "| kind | operators | value |\n|---|---|---|\n| text | `~` | a glob |\n\
             | <code>a &#124;&#124; b</code> | either | |\n",
        );
        let Block::Entries(entries) = &page.blocks[0] else { panic!("{page:?}") };
        assert_eq!(entries[0].term, [words("text")]);
        assert_eq!(plain(&entries[0].text), "~ (value: a glob)");
        assert_eq!(plain(&entries[1].term), "a || b");
        assert_eq!(plain(&entries[1].text), "either");
        assert!(matches!(&entries[1].term[0], Span::Code(_)), "{:?}", entries[1]);
    }
}
