//! What the kernel's own parser of event filters takes, asked of it: neither types nor versions tell.
//!
//! The filter goes to a perf event of our own (`PERF_EVENT_IOC_SET_FILTER`), which has the parser that a `filter` file
//! has, and nobody else sees it. Costs some milliseconds, because the first perf event of a tracepoint patches the
//! kernel's text: ask when it matters.

use std::ffi::CString;
use std::os::fd::AsFd as _;

use super::{Answer, Tracefs, tracefs::Place};
use crate::sys::{Errno, perf};

/// Events whose parser may be asked, the first one there is: all have the same.
const EVENTS: [(&str, &str); 3] =
    [("sched", "sched_process_exit"), ("task", "task_rename"), ("sched", "sched_switch")];

/// Whether the parser takes a filter, which should be one that only the feature in question can make it refuse.
pub fn takes(tracefs: &Tracefs, filter: &str) -> Answer {
    if let Place::Frozen(_) = tracefs.place() {
        return Answer::unknown("frozen facts have no parser");
    }
    let id = EVENTS.iter().find_map(|(system, name)| tracefs.id(system, name).ok().flatten());
    let Some(id) = id else { return Answer::unknown("no event to ask with") };
    let Ok(text) = CString::new(filter) else { return Answer::no("a filter ends at its first NUL") };
    let event = match perf::open_tracepoint(id) {
        Ok(event) => event,
        Err(errno) => return Answer::unknown(format!("perf event of a tracepoint: {errno}")),
    };
    match perf::set_filter(event.as_fd(), &text) {
        Ok(()) => Answer::Yes,
        Err(Errno::INVAL) => Answer::no(format!("the kernel's parser refuses `{filter}`")),
        Err(errno) => Answer::unknown(format!("filter of a perf event: {errno}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_asked_is_not_known() {
        let nowhere = Tracefs::frozen(env!("CARGO_MANIFEST_DIR")).unwrap();
        assert_eq!(takes(&nowhere, "CPU == 0"), Answer::unknown("frozen facts have no parser"));
    }
}
