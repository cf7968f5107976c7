//! `set_event`: the events that are on; words turn events on and off, one a write, and emptying it all off.

use rustix::io::Errno;

use crate::{
    engine::instance::{Command, Selector, words},
    fs::entry::{Entry, Shows},
};

pub(super) const FILE: Entry = Entry::write(
    "set_event",
    Shows::Seq(|mirror, at| {
        let state = mirror.get(at.instance).ok_or(Errno::NODEV)?;
        let on = mirror.events.ordinary().filter(|event| state.is_enabled(*event));
        let on = on.map(|event| mirror.events.full_name(event));
        Ok(on.chain(state.awaited()).map(|name| name + "\n").collect::<String>().into())
    }),
    |mirror, at, data| {
        if data.is_empty() {
            return Ok(0);
        }
        mirror.apply(at.instance, &Command::Expand)?;
        let (done, word) = words::word(data)?;
        if let Some(word) = word {
            let (on, which) = Selector::read(word).ok_or(Errno::INVAL)?;
            mirror.apply(at.instance, &Command::Events { which, on })?;
        }
        Ok(done)
    },
)
.truncates(|mirror, at| {
    mirror.apply(at.instance, &Command::Events { which: Selector::system(None), on: false })?;
    mirror.get_mut(at.instance).ok_or(Errno::NODEV)?.await_none();
    Ok(())
});
