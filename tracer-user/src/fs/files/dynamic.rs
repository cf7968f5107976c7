//! Files that define events: probes, synthetic events, and the events of programs. Lines add and delete definitions.

use super::entry::{ClientEngine, Entry, FileNames, ReadKind, Result};
use crate::{
    engine::{Command, definitions, profile, registry::program_files, user},
    event::dynamic::Kind,
    lang::{
        define::{File, files},
        facts::Files,
    },
};

/// `dynamic_events`: all definitions of dynamic events.
pub(super) const DYNAMIC_EVENTS: Entry = Entry::names(
    "dynamic_events",
    ReadKind::Seq(|engine, _| Ok(definitions(engine, File::Dynamic))),
    FileNames {
        wanted: |data| files(File::Dynamic, data),
        write: |engine, data, found| define(engine, File::Dynamic, data, found),
    },
)
.truncates(|_| Ok(Command::Undefine(File::Dynamic)))
.top();

/// `kprobe_events`: probes of the kernel's code.
pub(super) const KPROBE_EVENTS: Entry = Entry::write(
    "kprobe_events",
    ReadKind::Seq(|engine, _| Ok(definitions(engine, File::Kprobe))),
    |engine, data| define(engine, File::Kprobe, data, &Files::at_once()),
)
.truncates(|_| Ok(Command::Undefine(File::Kprobe)))
.top();

/// `kprobe_profile`: the hits of each kprobe, and the hits that found the probe busy.
pub(super) const KPROBE_PROFILE: Entry =
    Entry::read("kprobe_profile", ReadKind::Seq(|engine, _| Ok(profile(engine, Kind::Kprobe)))).top();

/// `uprobe_events`: probes of user files.
pub(super) const UPROBE_EVENTS: Entry = Entry::names(
    "uprobe_events",
    ReadKind::Seq(|engine, _| Ok(definitions(engine, File::Uprobe))),
    FileNames {
        wanted: |data| files(File::Uprobe, data),
        write: |engine, data, found| define(engine, File::Uprobe, data, found),
    },
)
.truncates(|_| Ok(Command::Undefine(File::Uprobe)))
.top();

/// `uprobe_profile`: the hits of each uprobe.
pub(super) const UPROBE_PROFILE: Entry =
    Entry::read("uprobe_profile", ReadKind::Seq(|engine, _| Ok(profile(engine, Kind::Uprobe)))).top();

/// `synthetic_events`: synthetic events; `!NAME` deletes one.
pub(super) const SYNTHETIC_EVENTS: Entry = Entry::write(
    "synthetic_events",
    ReadKind::Seq(|engine, _| Ok(engine.registry.synthetic().listing())),
    |engine, data| engine.take(data, Command::DefineSynthetic(data)),
)
.truncates(|_| Ok(Command::UndefineSynthetic))
.top();

/// `program_events`, which tracefs does not have: the program files that bring events along.
pub(super) const PROGRAM_EVENTS: Entry = Entry::names(
    "program_events",
    ReadKind::Seq(|engine, _| Ok(engine.registry.programs().listing())),
    FileNames {
        wanted: program_files,
        write: |engine, data, files| engine.take(data, Command::DefinePrograms { text: data, files }),
    },
)
.truncates(|_| Ok(Command::UndefinePrograms))
.top();

/// `user_events_data`: programs register user events by ioctl(2) and write records.
pub(super) const USER_EVENTS_DATA: Entry =
    Entry::read("user_events_data", ReadKind::UserEvents).mode(0o640).top();

/// `user_events_status`: a read returns text, a mapping shows a page of bits. It cannot be opened for writing,
/// because a shared mapping would change the bits that other programs see.
pub(super) const USER_EVENTS_STATUS: Entry = Entry::read(
    "user_events_status",
    ReadKind::Page(
        |engine| Ok(user::status(&engine.user, &engine.instances)),
        |engine| engine.user.page().to_vec(),
    ),
)
.mode(0o640)
.top();

fn define(engine: &mut ClientEngine<'_>, file: File, text: &[u8], files: &Files) -> Result<usize> {
    engine.take(text, Command::Define { file, text, files })
}
