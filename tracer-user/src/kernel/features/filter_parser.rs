//! Tests which filters the kernel's own parser of event filters accepts. Types and versions do not reveal it.
//!
//! The filter is set on a private perf event (`PERF_EVENT_IOC_SET_FILTER`), which uses the same parser as a `filter`
//! file. The test takes some milliseconds, because the first perf event of a tracepoint patches the kernel's text.
//! Use it only if the answer matters.

use std::ffi::CString;
use std::os::fd::AsFd as _;

use crate::kernel::{Answer, Tracefs, tracefs::Place};
use crate::sys::{Errno, perf};

/// Candidate events; the first one that exists is used, as all have the same parser.
const EVENTS: [(&str, &str); 3] =
    [("sched", "sched_process_exit"), ("task", "task_rename"), ("sched", "sched_switch")];

/// Whether the parser accepts a filter. The filter should be valid except for the feature in question.
pub fn accepts_filter(tracefs: &Tracefs, filter: &str) -> Answer {
    if let Place::Frozen(_) = tracefs.place() {
        return Answer::unknown("frozen facts have no parser");
    }
    let id = EVENTS.iter().find_map(|(system, name)| tracefs.id(system, name).ok().flatten());
    let Some(id) = id else { return Answer::unknown("no event for the test") };
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
    fn without_a_perf_event_the_answer_is_unknown() {
        let nowhere = Tracefs::frozen(".").unwrap();
        assert_eq!(accepts_filter(&nowhere, "CPU == 0"), Answer::unknown("frozen facts have no parser"));
    }
}
