//! Files about the buffers: their sizes, their layout and their counts.

use rustix::io::Errno;

use super::entry::{Entry, ReadKind, Update, lines};
use crate::{
    buffer::{
        HEAD, PageSize,
        clock::{Conversion, monotonic},
    },
    engine::{
        InstanceCommand,
        instances::{Size, words},
    },
};

/// `buffer_percent`: how full a buffer is when a reader of its pages is woken.
pub(super) const BUFFER_PERCENT: Entry = Entry::write(
    "buffer_percent",
    ReadKind::Text(|engine, at| Ok(lines([at.state(engine)?.percent]))),
    |engine, data| {
        let percent = words::number(data)?;
        if percent > 100 {
            return Err(Errno::INVAL);
        }
        engine.take(data, InstanceCommand::WakePercent(percent as u32))
    },
);

/// `buffer_size_kb`: the size of the buffer of each CPU, or of one CPU.
pub(super) const BUFFER_SIZE_KB: Entry = Entry::write(
    "buffer_size_kb",
    ReadKind::Text(|engine, at| Ok(size_text(at.state(engine)?.size(at.cpu())))),
    |engine, data| {
        let kib = words::number(data)?;
        if kib == 0 {
            return Err(Errno::INVAL);
        }
        let bytes =
            kib.checked_mul(1024).and_then(|bytes| usize::try_from(bytes).ok()).ok_or(Errno::NOMEM)?;
        engine.take(data, InstanceCommand::BufferSize { cpu: engine.at.cpu(), bytes })
    },
);

/// `buffer_total_size_kb`: the sum of the sizes of all buffers.
pub(super) const BUFFER_TOTAL_SIZE_KB: Entry = Entry::read(
    "buffer_total_size_kb",
    ReadKind::Text(|engine, at| Ok(size_text(at.state(engine)?.total_size()))),
);

fn size_text(size: Size) -> Vec<u8> {
    match size {
        Size::Kib(size) => format!("{size}\n"),
        Size::Expands(size, later) => format!("{size} (expanded: {later})\n"),
        Size::Mixed => "X\n".to_owned(),
    }
    .into_bytes()
}

/// `buffer_subbuf_size_kb`: the size of a page of the buffers.
pub(super) const BUFFER_SUBBUF_SIZE_KB: Entry = Entry::write(
    "buffer_subbuf_size_kb",
    ReadKind::Text(|engine, at| Ok(lines([at.state(engine)?.page().bytes() / 1024]))),
    |engine, data| {
        let bytes = words::number(data)?.checked_mul(1024).ok_or(Errno::INVAL)?;
        let page = PageSize::holding(bytes).ok_or(Errno::INVAL)?;
        engine.take(data, InstanceCommand::PageSize(page))
    },
);

/// `free_buffer`: a close frees the memory of the buffers, and stops recording under the option `disable_on_free`.
pub(super) const FREE_BUFFER: Entry =
    Entry::write("free_buffer", ReadKind::Nothing, |_, data| Ok(data.len())).mode(0o200).closes(|engine| {
        let Ok(state) = engine.at.state(engine.view()) else { return };
        if state.options.is("disable_on_free") {
            // The instance was there a moment ago.
            let _ = engine.execute(InstanceCommand::Tracing(false));
        }
        let _ = engine.execute(InstanceCommand::BufferSize { cpu: None, bytes: 0 });
    });

/// `events/header_page`: the layout of a page of a buffer.
pub(super) const HEADER_PAGE: Entry = Entry::read(
    "header_page",
    ReadKind::Once(|engine, at| {
        Ok(header_page(&engine.facts.later_files().header_page, at.state(engine)?.page().data()))
    }),
);

/// The layout of a page with this many bytes of data. Types and signs are those of the kernel's own text, which have
/// changed twice.
fn header_page(kernels: &str, data: usize) -> Vec<u8> {
    let usual = [
        ("u64 timestamp", 0, 8, 0),
        ("local_t commit", 8, 8, 1),
        ("int overwrite", 8, 1, 1),
        ("char data", HEAD, data, 0),
    ];
    let line = |field: &str, offset: usize, size: usize, signed: &str| {
        format!("\tfield: {field};\toffset:{offset};\tsize:{size};\tsigned:{signed};\n")
    };
    let row = |(field, offset, size, signed): (&str, usize, usize, i32)| {
        let name = field.split(' ').next_back().unwrap_or_default();
        let found = kernels.lines().find_map(|line| {
            let (found, rest) = line.trim_start().strip_prefix("field: ")?.split_once(';')?;
            let signed = rest.split_once("signed:")?.1.strip_suffix(';')?;
            (found.split(' ').next_back() == Some(name)).then_some((found, signed))
        });
        match found {
            Some((field, signed)) => line(field, offset, size, signed),
            None => line(field, offset, size, &signed.to_string()),
        }
    };
    usual.map(row).concat().into_bytes()
}

/// `events/header_event`: the layout of a record's header.
pub(super) const HEADER_EVENT: Entry =
    Entry::read("header_event", ReadKind::Once(|_, _| Ok(HEADER_EVENT_TEXT.as_bytes().to_vec())));

/// The output of `ring_buffer_print_entry_header()`, which tools parse.
const HEADER_EVENT_TEXT: &str = "# compressed entry header\n\
    \ttype_len    :    5 bits\n\
    \ttime_delta  :   27 bits\n\
    \tarray       :   32 bits\n\n\
    \tpadding     : type == 29\n\
    \ttime_extend : type == 30\n\
    \ttime_stamp : type == 31\n\
    \tdata max type_len  == 28\n";

/// `per_cpu/cpuN/stats`: the counts of a CPU's buffer. tracefs does not have the last three lines: the hits of the
/// events' programs, the hits that filters dropped, and the hits for which no program ran.
pub(super) const STATS: Entry = Entry::read(
    "stats",
    ReadKind::Text(|engine, at| {
        let cpu = at.cpu().ok_or(Errno::NODEV)?;
        let state = at.state(engine)?;
        let buffer = state.buffer.cpu(cpu).ok_or(Errno::NODEV)?;
        let stats = buffer.stats();
        let time = |time: u64| {
            if state.clock.in_ns() {
                let micros = time.saturating_add(500) / 1000;
                format!("{:5}.{:06}", micros / 1_000_000, micros % 1_000_000)
            } else {
                time.to_string()
            }
        };
        let status = at.status(engine)?;
        let counts = status.counts(cpu);
        let now = Conversion::now(state.clock).time(monotonic(), state.counted());
        Ok(format!(
            "entries: {}\noverrun: {}\ncommit overrun: 0\nbytes: {}\noldest event ts: {}\nnow ts: {}\n\
             dropped events: {}\nread events: {}\nhits: {}\nfiltered: {}\nmissed events on all CPUs: {}\n",
            stats.entries,
            stats.overrun,
            stats.bytes,
            time(buffer.first_time().unwrap_or(0)),
            time(now),
            stats.dropped,
            stats.read,
            counts.hits(),
            counts.filtered,
            status.missed()
        )
        .into_bytes())
    }),
)
.updates(Update::Records);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_layout_of_a_page_has_the_kernels_types() {
        let text = |kernels: &str| String::from_utf8(header_page(kernels, 8176)).unwrap();
        let usual = "\tfield: u64 timestamp;\toffset:0;\tsize:8;\tsigned:0;\n\
            \tfield: local_t commit;\toffset:8;\tsize:8;\tsigned:1;\n\
            \tfield: int overwrite;\toffset:8;\tsize:1;\tsigned:1;\n\
            \tfield: char data;\toffset:16;\tsize:8176;\tsigned:0;\n";
        assert_eq!(text(""), usual);
        assert_eq!(text(&usual.replace("8176", "4080")), usual);
        let signed = usual.replace("size:8176;\tsigned:0", "size:8176;\tsigned:1");
        assert_eq!(text(&signed.replace("8176", "4080")), signed);
        let new = usual.replace(
            "int overwrite;\toffset:8;\tsize:1;\tsigned:1",
            "char overwrite;\toffset:8;\tsize:1;\tsigned:0",
        );
        assert_eq!(text(&new), new);
    }
}
