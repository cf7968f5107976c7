//! Texts of clients in messages.

use std::fmt::{self, Write as _};

/// A text that is shown without control characters, so that it cannot begin another line of the log or change the
/// terminal. Quotes stay as they are.
#[derive(Clone, Copy, Debug)]
pub struct Escaped<'a>(pub &'a str);

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.chars().try_for_each(|one| match one {
            '"' | '\'' => f.write_char(one),
            _ => one.escape_debug().fmt(f),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_stays_in_its_line() {
        let text = Escaped("filter of a:b\nWARN \"x\" 'y' \u{1b}[2J \u{2028}ü\\").to_string();
        assert_eq!(text, "filter of a:b\\nWARN \"x\" 'y' \\u{1b}[2J \\u{2028}ü\\\\");
    }
}
