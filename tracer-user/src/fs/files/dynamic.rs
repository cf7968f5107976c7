//! Files that define events: probes, synthetic events, and the events of programs. Lines add and delete definitions.

use super::entry::{Entry, Names, Shows, all};
use crate::{
    engine::registry::program_files,
    event::dynamic::Kind,
    lang::{
        define::{File, files},
        facts::Files,
    },
};

/// `dynamic_events`: all definitions of dynamic events.
pub(super) const DYNAMIC_EVENTS: Entry = Entry::names(
    "dynamic_events",
    Shows::Seq(|mirror, _| Ok(mirror.definitions(File::Dynamic))),
    Names {
        wanted: |data| files(File::Dynamic, data),
        takes: |mirror, _, data, found| all(data, mirror.define(File::Dynamic, data, found)),
    },
)
.truncates(|mirror, _| mirror.undefine(File::Dynamic))
.top();

/// `kprobe_events`: probes of the kernel's code.
pub(super) const KPROBE_EVENTS: Entry = Entry::write(
    "kprobe_events",
    Shows::Seq(|mirror, _| Ok(mirror.definitions(File::Kprobe))),
    |mirror, _, data| all(data, mirror.define(File::Kprobe, data, &Files::at_once())),
)
.truncates(|mirror, _| mirror.undefine(File::Kprobe))
.top();

/// `kprobe_profile`: the hits of each kprobe, and the hits that found the probe busy.
pub(super) const KPROBE_PROFILE: Entry =
    Entry::read("kprobe_profile", Shows::Seq(|mirror, _| Ok(mirror.profile(Kind::Kprobe)))).top();

/// `uprobe_events`: probes of user files.
pub(super) const UPROBE_EVENTS: Entry = Entry::names(
    "uprobe_events",
    Shows::Seq(|mirror, _| Ok(mirror.definitions(File::Uprobe))),
    Names {
        wanted: |data| files(File::Uprobe, data),
        takes: |mirror, _, data, found| all(data, mirror.define(File::Uprobe, data, found)),
    },
)
.truncates(|mirror, _| mirror.undefine(File::Uprobe))
.top();

/// `uprobe_profile`: the hits of each uprobe.
pub(super) const UPROBE_PROFILE: Entry =
    Entry::read("uprobe_profile", Shows::Seq(|mirror, _| Ok(mirror.profile(Kind::Uprobe)))).top();

/// `synthetic_events`: synthetic events; `!NAME` deletes one.
pub(super) const SYNTHETIC_EVENTS: Entry = Entry::write(
    "synthetic_events",
    Shows::Seq(|mirror, _| Ok(mirror.registry().synthetic().listing())),
    |mirror, _, data| all(data, mirror.define_synthetic(data)),
)
.truncates(|mirror, _| mirror.undefine_synthetic())
.top();

/// `program_events`, which tracefs does not have: the program files that bring events along.
pub(super) const PROGRAM_EVENTS: Entry = Entry::names(
    "program_events",
    Shows::Seq(|mirror, _| Ok(mirror.registry().programs().listing())),
    Names {
        wanted: program_files,
        takes: |mirror, _, data, found| all(data, mirror.define_programs(Some((data, found)))),
    },
)
.truncates(|mirror, _| mirror.define_programs(None))
.top();

/// `user_events_data`: programs register user events by ioctl(2) and write records.
pub(super) const USER_EVENTS_DATA: Entry =
    Entry::read("user_events_data", Shows::UserEvents).mode(0o640).top();

/// `user_events_status`: a read returns text, a mapping shows a page of bits. It cannot be opened for writing, because a
/// shared mapping would change the bits that other programs see.
pub(super) const USER_EVENTS_STATUS: Entry = Entry::read(
    "user_events_status",
    Shows::Page(|mirror| Ok(mirror.user_status()), |mirror| mirror.user().page().to_vec()),
)
.mode(0o640)
.top();
