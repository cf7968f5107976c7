//! Saved entries that belong to clients: user events, and the settings of user events.
//!
//! Clients choose their names and texts. An entry of theirs that cannot be restored is skipped, while any other entry
//! like it makes the whole file invalid.

use std::mem::take;

use super::{
    Saved, SavedHist, SavedInstance,
    check::{is_event_name, is_text},
    escaped::Escaped,
};
use crate::event::user::{MULTI_SYSTEM, SYSTEM};

/// The start of a user event's definition.
const DEFINES: &str = "u:";

impl Saved {
    /// Removes the entries of clients that cannot be restored, and logs them.
    pub(super) fn skip_bad_entries_of_clients(&mut self) {
        // The files of the definitions have the same places; old state files have fewer.
        let mut files = take(&mut self.definition_files).into_iter();
        let all = take(&mut self.definitions).into_iter().map(|line| (line, files.next()));
        let (lines, files): (_, Vec<_>) = all.filter(|(line, _)| keep_definition(line)).unzip();
        self.definitions = lines;
        self.definition_files = files.into_iter().flatten().collect();
        self.instances.iter_mut().for_each(SavedInstance::skip_bad_entries_of_clients);
        self.hists.retain(|SavedHist { system, event, command, .. }| {
            keep("a histogram", system, event, is_text(command))
        });
    }
}

impl SavedInstance {
    fn skip_bad_entries_of_clients(&mut self) {
        self.filters.retain(|(system, event, text)| keep("a filter", system, event, is_text(text)));
        self.events.retain(|(system, event)| keep("an enabled event", system, event, true));
        self.triggers.retain(|(system, event, lines)| {
            keep("a trigger", system, event, lines.iter().all(|line| is_text(line)))
        });
    }
}

/// Whether a definition stays: it is not of a user event, or it is valid.
fn keep_definition(line: &str) -> bool {
    let keeps = !line.starts_with(DEFINES) || is_text(line);
    if !keeps {
        skipped("a definition", line);
    }
    keeps
}

/// Whether an entry stays: it is not of a user event, or its name and its texts are valid.
fn keep(what: &str, system: &str, event: &str, is_valid: bool) -> bool {
    let keeps = !matches!(system, SYSTEM | MULTI_SYSTEM) || is_event_name(event) && is_valid;
    if !keeps {
        skipped(what, event);
    }
    keeps
}

/// Logs a skipped entry by the start of its text, which can have any length.
fn skipped(what: &str, text: &str) {
    let start: String = text.chars().take(64).collect();
    tracing::warn!("{what} of a client is not restored, because it is not valid: {}", Escaped(&start));
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn invalid_entries_of_clients_are_skipped_and_the_rest_stays() {
        let (long, text) = ("e".repeat(1 << 16), "x".repeat((1 << 16) + 1));
        let file = json!({"device": 1, "inode": 2, "size": 3, "modified": [4, 5]});
        let one = json!({
            "name": "", "clock": "mono", "percent": 50,
            "filters": [["user_events", "a", text], ["user_events", "b", "x > 1"], ["sched", "c", "pid == 1"]],
            "events": [["user_events", long], ["user_events_multi", "a/b"], ["sched", "c"], ["user_events", "b"]],
            "triggers": [["user_events", "a", [text]], ["user_events", "b", ["traceoff"]]],
        });
        let state = json!({
            "definitions": [format!("u:a u8 {text}"), "p:a/b vfs_read", "u:z\0", "u:b u8 x"],
            "definition_files": [null, file],
            "instances": [one],
            "hists": [
                {"instance": "", "system": "user_events", "event": "..", "command": "keys=x", "paused": false},
                {"instance": "", "system": "user_events", "event": "b", "command": "keys=x", "paused": false},
            ],
        });
        let saved = Saved::parse(&serde_json::to_vec(&state).unwrap()).unwrap();
        assert_eq!(saved.definitions, ["p:a/b vfs_read", "u:b u8 x"]);
        assert_eq!(saved.definition_files.iter().map(Option::is_some).collect::<Vec<_>>(), [true]);
        let one = &saved.instances[0];
        let names = |all: Vec<&String>| all.into_iter().cloned().collect::<Vec<_>>();
        assert_eq!(names(one.filters.iter().map(|(_, name, _)| name).collect()), ["b", "c"]);
        assert_eq!(names(one.events.iter().map(|(_, name)| name).collect()), ["c", "b"]);
        assert_eq!(names(one.triggers.iter().map(|(_, name, _)| name).collect()), ["b"]);
        assert_eq!(names(saved.hists.iter().map(|hist| &hist.event).collect()), ["b"]);
    }

    #[test]
    fn the_longest_names_of_user_events_are_accepted() {
        let state = json!({
            "instances": [{"name": "", "events": [["user_events", "e".repeat(511)]]}],
        });
        let saved = Saved::parse(&serde_json::to_vec(&state).unwrap()).unwrap();
        assert_eq!(saved.instances[0].events.len(), 1);
    }
}
