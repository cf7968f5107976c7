//! `tracing_on`: whether records are taken. Any number but 0 means yes.

use rustix::io::Errno;

use crate::{
    engine::instance::{Command, words},
    fs::entry::{Entry, Shows, all},
};

pub(super) const FILE: Entry = Entry::write(
    "tracing_on",
    Shows::Text(|mirror, at| {
        let state = mirror.get(at.instance).ok_or(Errno::NODEV)?;
        Ok(if state.is_on() { b"1\n".to_vec() } else { b"0\n".to_vec() })
    }),
    |mirror, at, data| {
        let on = words::number(data)? != 0;
        all(data, mirror.apply(at.instance, &Command::Tracing(on)))
    },
);
