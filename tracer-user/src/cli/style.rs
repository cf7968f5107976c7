//! Style of the command line's messages: colour on terminals, and errors with their causes.

use std::io::IsTerminal;

pub(super) fn error(text: &str) -> String {
    paint("1;31", text)
}

pub(super) fn strong(text: &str) -> String {
    paint("1", text)
}

fn paint(code: &str, text: &str) -> String {
    if std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none() {
        format!("\x1b[{code}m{text}\x1b[0m")
    } else {
        text.to_owned()
    }
}

/// The error and its causes, separated by colons. A cause of several lines (with a caret) keeps its lines.
pub(super) fn chain(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain() {
        let one = cause.to_string();
        // Some errors repeat the text of their source.
        if text.ends_with(&one) {
            continue;
        }
        if !text.is_empty() {
            text.push_str(": ");
        }
        text.push_str(&one);
    }
    text
}
