//! `buffer_percent`: how full a buffer is to be before a reader of its pages is woken.

use rustix::io::Errno;

use crate::{
    engine::instance::words,
    fs::entry::{Entry, Shows},
};

pub(super) const FILE: Entry = Entry::write(
    "buffer_percent",
    Shows::Text(|mirror, at| {
        let state = mirror.get(at.instance).ok_or(Errno::NODEV)?;
        Ok(format!("{}\n", state.percent).into_bytes())
    }),
    |mirror, at, data| {
        let percent = words::number(data)?;
        if percent > 100 {
            return Err(Errno::INVAL);
        }
        mirror.get_mut(at.instance).ok_or(Errno::NODEV)?.percent = percent as u32;
        mirror.touch();
        Ok(data.len())
    },
);
