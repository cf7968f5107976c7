//! `error_log`: the last errors of an instance, each with the text and a caret.

use std::collections::VecDeque;

/// Maximum number of stored errors (`TRACING_LOG_ERRS_MAX`).
const KEPT: usize = 8;

/// The errors, oldest first.
#[derive(Debug, Default)]
pub struct ErrorLog {
    entries: VecDeque<(u64, Vec<u8>)>,
}

impl ErrorLog {
    /// Adds an entry: the text after its time. `now` is in nanoseconds.
    pub fn push(&mut self, now: u64, entry: Vec<u8>) {
        if self.entries.len() == KEPT {
            self.entries.pop_front();
        }
        self.entries.push_back((now, entry));
    }

    /// The last entry, without its time.
    #[cfg(any(test, feature = "internals"))]
    pub fn last(&self) -> Option<&[u8]> {
        self.entries.back().map(|(_, entry)| &**entry)
    }

    /// Removes all entries.
    pub fn clear(&mut self) {
        self.entries.clear();
    }

    /// The file's text.
    pub fn text(&self) -> Vec<u8> {
        let mut text = Vec::new();
        for (time, entry) in &self.entries {
            let micros = time / 1000;
            text.extend(format!("[{:5}.{:06}] ", micros / 1_000_000, micros % 1_000_000).bytes());
            text.extend_from_slice(entry);
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_eight_are_kept() {
        let mut log = ErrorLog::default();
        for number in 0..9_u64 {
            log.push(number * 1_000_001_999, format!("e{number}\n").into_bytes());
        }
        let text = String::from_utf8(log.text()).unwrap();
        assert!(text.starts_with("[    1.000001] e1\n[    2.000003] e2\n"), "{text}");
        assert_eq!(text.lines().count(), 8);
        assert_eq!(log.last(), Some(&b"e8\n"[..]));
        log.clear();
        assert!(log.text().is_empty());
    }
}
