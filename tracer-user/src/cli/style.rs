//! How the command line talks: colour on terminals only, causes one after the other.

use std::io::IsTerminal;

/// Red and bold on a terminal.
pub(super) fn error(text: &str) -> String {
    paint("1;31", text)
}

/// Bold on a terminal.
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

/// An error with its causes, each behind a colon; a cause of several lines (a caret) keeps them.
pub(super) fn chain(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain() {
        let one = cause.to_string();
        // An error that repeats its source in its own text shall not say it twice.
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
