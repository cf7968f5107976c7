//! Records that user space writes: `trace_marker` and `trace_marker_raw`.
//!
//! They are the kernel's `ftrace:print` and `ftrace:raw_data`. Their print fmts differ from the text in `trace`
//! (`trace_print_print()` and `trace_raw_data()`, kernel/trace/trace_output.c).

use std::{fs::File, os::unix::fs::FileExt};

use crate::{
    buffer::{Page, PageSize},
    engine::{
        command::error::{CommandError, ErrorKind},
        facts::MARK_WRITER,
        records::common::{common_fields, kind_of},
        registry::catalogue::Events,
    },
    event::EventId,
    render::{
        RenderEnv,
        line::{self, Stamp, Tasks},
        stack,
    },
};

/// Maximum length of a mark's text in bytes (`TRACE_MARKER_MAX_SIZE`).
const TEXT_MAX: usize = 4096;
/// Offsets of text and raw data in a record: after the common fields and `ip`, or `id`.
pub(crate) const TEXT_AT: usize = 16;
const DATA_AT: usize = 12;

/// The option of an instance that copies marks of the top instance.
pub(crate) const COPY: &str = "copy_trace_marker";

/// Maximum bytes to read of a thread's `stat` file, which has some fifty numbers.
const STAT_MAX: usize = 1536;

/// The kind of a mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mark {
    /// Text.
    Text,
    /// A number and bytes.
    Raw,
}

/// The writer of a mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Writer {
    /// Thread.
    pub pid: u32,
    /// The CPU that it runs on.
    pub cpu: u32,
    /// Its name, padded with NULs.
    pub comm: [u8; 16],
}

impl Writer {
    /// The writer for a thread that waits for its write: its name, and the CPU on which it last ran.
    ///
    /// `stat` takes a reference to the thread's address space. It is never the last one, because FUSE does not end the
    /// thread's wait before the answer; requests of `io_submit(2)` wait too, as the mirror has no `FUSE_ASYNC_DIO`.
    pub fn of(pid: u32) -> Self {
        Self::again(pid, &mut None)
    }

    /// Like [`Self::of`], using the file of the last writer if it is the same thread. The file of an ended task
    /// returns nothing.
    pub fn again(pid: u32, last: &mut Option<(u32, File)>) -> Self {
        let mut stat = [0; STAT_MAX];
        let mut read = |file: &File| file.read_at(&mut stat, 0).ok().filter(|length| *length > 0);
        let mut length = last.as_ref().filter(|(whose, _)| *whose == pid).and_then(|(_, file)| read(file));
        if length.is_none() {
            *last = File::open(format!("/proc/{pid}/stat")).ok().map(|file| (pid, file));
            length = last.as_ref().and_then(|(_, file)| read(file));
        }
        let (comm, cpu) = stat.get(..length.unwrap_or(0)).and_then(from_stat).unwrap_or_default();
        Self { pid, cpu, comm }
    }
}

/// Name and CPU in a `stat` file (proc(5)): the second word, in parentheses and with any content, and the 39th.
fn from_stat(stat: &[u8]) -> Option<([u8; 16], u32)> {
    let begin = stat.iter().position(|byte| *byte == b'(')? + 1;
    let end = stat.iter().rposition(|byte| *byte == b')')?;
    let mut comm = [0; 16];
    comm.iter_mut().take(15).zip(stat.get(begin..end)?).for_each(|(to, byte)| *to = *byte);
    let behind = std::str::from_utf8(stat.get(end + 1..)?).ok()?;
    Some((comm, behind.split_whitespace().nth(36)?.parse().ok()?))
}

/// The record of a mark.
#[derive(Debug)]
pub(crate) struct Written {
    pub(crate) record: Vec<u8>,
    /// Number of written bytes that it contains.
    pub(crate) taken: usize,
}

impl Mark {
    /// Makes the record of a write, for buffers with pages of this many bytes.
    ///
    /// # Errors
    /// `EINVAL` if raw data has no number or is too long.
    pub(crate) fn record(
        self,
        written: &[u8],
        kind: u16,
        ip: u64,
        pid: u32,
        page: PageSize,
    ) -> Result<Written, CommandError> {
        let longest = Page::longest(page);
        let mut record = common_fields(kind, pid).to_vec();
        let taken = match self {
            Self::Text => {
                // A newline and a NUL are added.
                let length = written.len().min(TEXT_MAX).min(longest.saturating_sub(TEXT_AT + 2));
                let text = written.get(..length).unwrap_or_default();
                record.extend(ip.to_ne_bytes());
                record.extend_from_slice(text);
                if text.last() != Some(&b'\n') {
                    record.push(b'\n');
                }
                record.push(0);
                length
            }
            Self::Raw => {
                if written.len() < 4 || written.len() + 8 > longest {
                    return Err(ErrorKind::Invalid.into());
                }
                record.extend_from_slice(written);
                written.len()
            }
        };
        Ok(Written { record, taken })
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Text => "print",
            Self::Raw => "raw_data",
        }
    }

    /// The kind of mark that an event records.
    pub(crate) fn of(events: &Events, event: EventId) -> Option<Self> {
        let known = events.get(event)?;
        if !events.is_special(known.system) {
            return None;
        }
        [Self::Text, Self::Raw].into_iter().find(|mark| mark.name() == known.name)
    }

    /// Writes a record as `trace` shows it.
    pub(crate) fn line(
        self,
        out: &mut Vec<u8>,
        options: &line::Options,
        record: &[u8],
        stamp: Stamp,
        tasks: &dyn Tasks,
        env: &dyn RenderEnv,
    ) {
        if options.hex || options.bin {
            return line::plain(out, options, record, stamp);
        }
        line::lead(out, options, record, stamp, tasks);
        if options.fields && !options.raw {
            // The kernel looks for the common fields at the place of other events' fields.
            return out.extend(format!("UNKNOWN TYPE {}\n", kind_of(record)).bytes());
        }
        match self {
            Self::Text => {
                let ip = record.get(8..16).and_then(|ip| ip.try_into().ok()).map_or(0, u64::from_ne_bytes);
                let text = record.get(TEXT_AT..).unwrap_or_default();
                let text = text.split(|byte| *byte == 0).next().unwrap_or_default();
                if options.raw {
                    out.extend(format!("# {ip:x} ").bytes());
                } else {
                    if env.symbol(ip).is_some() {
                        stack::symbol(out, ip, options, env);
                    } else {
                        out.extend_from_slice(MARK_WRITER.as_bytes());
                    }
                    out.extend_from_slice(b": ");
                }
                out.extend_from_slice(text);
            }
            Self::Raw => {
                let id = record.get(8..12).and_then(|id| id.try_into().ok()).map_or(0, u32::from_ne_bytes);
                out.extend(format!("# {id:x} buf:").bytes());
                for byte in record.get(DATA_AT..).unwrap_or_default() {
                    out.extend(format!(" {byte:02x}").bytes());
                }
                out.push(b'\n');
            }
        }
    }
}
