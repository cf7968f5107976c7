//! An event in the program's memory.

use core::sync::atomic::{AtomicU16, AtomicU32, Ordering};

use crate::user_events;

/// Bits of an event's word that count probes at its place: the semaphore of the USDT note, which the kernel raises.
const PROBES: u32 = 0xffff;
/// The bit that user_events set while somebody traces the event there.
pub(crate) const USER_EVENTS_BIT: u8 = 31;

/// What an event is: its word, and what can be done with it.
///
/// One word says whether anybody traces the event, and whatever the way, so that asking is one load and one branch: its lower
/// half is the semaphore of the probe at the event's place, its highest bit belongs to user_events.
#[derive(Debug)]
#[repr(C, align(8))]
pub struct Event {
    /// The first member, which is never zero: the linker may leave gaps of zeroes between events.
    site: extern "C" fn(*const u8, usize),
    /// Eight bytes on: notes give this place as that of the semaphore.
    word: AtomicU32,
    index: AtomicU32,
    name: &'static str,
    system: &'static str,
    class: &'static Class,
}

const _: () = assert!(core::mem::offset_of!(Event, site) == 0 && core::mem::offset_of!(Event, word) == 8);

/// What events of a class have in common.
#[derive(Debug)]
pub struct Class {
    fields: &'static [Field],
    layout: &'static [[usize; 4]],
    /// So that they are linked wherever there are events.
    _anchors: &'static Anchors,
}

/// What has to be in a program with events, and where nothing else refers to.
#[derive(Debug)]
struct Anchors {
    _page: &'static Page,
    _probes: &'static AtomicU16,
}

static ANCHORS: Anchors = Anchors { _page: &PAGE, _probes: &PROBES_SECTION };

/// Makes events begin on a page of their own.
///
/// Semaphores are found by their place in the file, and the kernel takes the first writable mapping that has it. Where a linker
/// makes two writable segments (lld: what is made read-only after relocation, and the rest), both map the page of the
/// file in which one ends and the other begins, and the semaphore of a process that starts later would be raised in the wrong
/// one.
#[cfg_attr(target_arch = "x86_64", repr(C, align(4096)))]
#[cfg_attr(not(target_arch = "x86_64"), repr(C, align(65536)))]
#[derive(Debug)]
struct Page([AtomicU32; 0]);

#[unsafe(link_section = "tracer_events")]
static PAGE: Page = Page([]);

/// Makes a section `.probes`.
///
/// bcc, and with it bpftrace, and perf take a semaphore's place in the file to be as far from its address as that section's is from
/// the section's; without one they raise none. The section is in the same segment as the events, so that they are right.
#[unsafe(link_section = ".probes")]
static PROBES_SECTION: AtomicU16 = AtomicU16::new(0);

/// A field of a class.
#[derive(Debug)]
pub struct Field {
    /// Name.
    pub name: &'static str,
    /// Type in C, of an element where there are several.
    pub ty: &'static str,
    /// How it lies in the record.
    pub kind: Kind,
}

/// How a field lies in the record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// One value.
    Value,
    /// So many.
    Array,
    /// A [`DataLoc`](crate::DataLoc).
    Dynamic,
}

/// Where a field lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// Bytes from the record's start.
    pub(crate) offset: usize,
    /// Bytes.
    pub(crate) size: usize,
    /// Whether it is signed.
    pub(crate) signed: bool,
    /// Elements.
    pub(crate) count: usize,
}

impl Class {
    /// For the macros.
    #[doc(hidden)]
    pub const fn new(fields: &'static [Field], layout: &'static [[usize; 4]]) -> Self {
        Self { fields, layout, _anchors: &ANCHORS }
    }

    /// The fields and where they lie.
    pub(crate) fn fields(&self) -> impl Iterator<Item = (&'static Field, Place)> {
        let place = |[offset, size, signed, count]: &[usize; 4]| Place {
            offset: *offset,
            size: *size,
            signed: *signed != 0,
            count: *count,
        };
        self.fields.iter().zip(self.layout.iter().map(place))
    }
}

impl Event {
    /// For the macros.
    #[doc(hidden)]
    pub const fn new(
        name: &'static str,
        system: &'static str,
        class: &'static Class,
        site: extern "C" fn(*const u8, usize),
    ) -> Self {
        Self { site, word: AtomicU32::new(0), index: AtomicU32::new(0), name, system, class }
    }

    /// Whether anybody traces the event.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "a load and a branch, also in a debug build of ours")]
    pub fn is_enabled(&self) -> bool {
        self.word.load(Ordering::Relaxed) != 0
    }

    /// Its name.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Its system.
    pub fn system(&self) -> &'static str {
        self.system
    }

    pub(crate) fn class(&self) -> &'static Class {
        self.class
    }

    pub(crate) fn word(&self) -> &AtomicU32 {
        &self.word
    }

    /// The index that user_events gave it.
    pub(crate) fn set_index(&self, index: u32) {
        self.index.store(index, Ordering::Release);
    }

    /// Hands a record to all that trace the event.
    pub(crate) fn submit(&self, record: &[u8]) {
        let word = self.word.load(Ordering::Relaxed);
        if word & PROBES != 0 {
            (self.site)(record.as_ptr(), record.len());
        }
        if word >> USER_EVENTS_BIT & 1 != 0 {
            user_events::write(self.index.load(Ordering::Acquire), self.class, record);
        }
    }
}
