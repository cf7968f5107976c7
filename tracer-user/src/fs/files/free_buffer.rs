//! `free_buffer`: closing it gives the buffers' memory back, and stops recording under `disable_on_free`.

use crate::{
    engine::instance::Command,
    fs::entry::{Entry, Shows},
};

pub(super) const FILE: Entry = Entry::write("free_buffer", Shows::Nothing, |_, _, data| Ok(data.len()))
    .mode(0o200)
    .closes(|mirror, at| {
        let Some(state) = mirror.get(at.instance) else { return };
        if state.options.is("disable_on_free") {
            // The instance was there a moment ago.
            let _ = mirror.apply(at.instance, &Command::Tracing(false));
        }
        let _ = mirror.apply(at.instance, &Command::BufferSize { cpu: None, bytes: 0 });
    });
