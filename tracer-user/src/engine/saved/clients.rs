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

impl Saved {
    /// Removes the entries of clients that cannot be restored, and logs them.
    pub(super) fn skip_bad_entries_of_clients(&mut self) {
        // The files of the definitions have the same places; old state files have fewer.
        let mut files = take(&mut self.definition_files).into_iter();
        let all = take(&mut self.definitions).into_iter().map(|line| (line, files.next()));
        // `u:` begins the definition of a user event.
        let kept = all.filter(|(line, _)| keep("a definition", line, line.starts_with("u:"), is_text(line)));
        let (lines, files): (_, Vec<_>) = kept.unzip();
        self.definitions = lines;
        self.definition_files = files.into_iter().flatten().collect();
        self.instances.iter_mut().for_each(SavedInstance::skip_bad_entries_of_clients);
        self.hists.retain(|SavedHist { system, event, command, .. }| {
            keep_named("a histogram", system, event, is_text(command))
        });
    }
}

impl SavedInstance {
    fn skip_bad_entries_of_clients(&mut self) {
        self.filters.retain(|(system, event, text)| keep_named("a filter", system, event, is_text(text)));
        self.events.retain(|(system, event)| keep_named("an enabled event", system, event, true));
        self.triggers.retain(|(system, event, lines)| {
            keep_named("a trigger", system, event, lines.iter().all(|line| is_text(line)))
        });
    }
}

/// Whether an entry stays: its event is not a user event, or the event's name and the entry's texts are valid.
fn keep_named(what: &str, system: &str, event: &str, is_valid: bool) -> bool {
    let is_of_client = matches!(system, SYSTEM | MULTI_SYSTEM);
    keep(what, event, is_of_client, is_event_name(event) && is_valid)
}

/// Whether an entry stays. Logs one that does not by the start of its text, which can have any length.
fn keep(what: &str, text: &str, is_of_client: bool, is_valid: bool) -> bool {
    let keeps = is_valid || !is_of_client;
    if !keeps {
        let start: String = text.chars().take(64).collect();
        tracing::warn!("{what} of a client is not restored, because it is not valid: {}", Escaped(&start));
    }
    keeps
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
