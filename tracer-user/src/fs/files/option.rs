//! `options/NAME`

use rustix::io::Errno;

use crate::{
    engine::instance::{Command, words},
    fs::entry::{Entry, Shows, all},
};

pub(super) const FILE: Entry = Entry::write(
    "",
    Shows::Text(|mirror, at| {
        let state = mirror.get(at.instance).ok_or(Errno::NODEV)?;
        Ok(if state.options.get(at.option()?) { b"1\n".to_vec() } else { b"0\n".to_vec() })
    }),
    |mirror, at, data| {
        let on = words::flag(data)?;
        all(data, mirror.apply(at.instance, &Command::Option { option: at.option()?, on }))
    },
);
