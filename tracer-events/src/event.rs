//! An event in the program's memory.

use core::sync::atomic::{AtomicU16, AtomicU32, Ordering};

use crate::user_events;

/// Bits of an event's word that count the probes at its site: the semaphore of the USDT note, which the kernel
/// increments.
const PROBES: u32 = 0xffff;
/// The bit that user_events sets while the event is traced there.
pub(crate) const USER_EVENTS_BIT: u8 = 31;

/// An event of the program: its word, its names and its class.
///
/// One word is nonzero while any transport traces the event, so the check is one load and one branch. Its lower half
/// is the semaphore of the probe at the event's site. Its highest bit belongs to user_events.
#[derive(Debug)]
#[repr(C, align(8))]
pub struct Event {
    /// The first member, which is never zero. The linker may leave gaps of zeroes between events, and a nonzero word
    /// marks an event.
    site: extern "C" fn(*const u8, usize),
    /// At offset 8: the notes contain this address as the address of the semaphore.
    word: AtomicU32,
    index: AtomicU32,
    name: &'static str,
    system: &'static str,
    class: &'static Class,
}

const _: () = assert!(core::mem::offset_of!(Event, site) == 0 && core::mem::offset_of!(Event, word) == 8);

/// The common properties of the events of a class.
#[derive(Debug)]
pub struct Class {
    fields: &'static [Field],
    layout: &'static [[usize; 4]],
    /// Ensures that the anchors are linked wherever there are events.
    _anchors: &'static Anchors,
}

/// Items that a program with events needs and that no other code refers to.
#[derive(Debug)]
struct Anchors {
    _page: &'static Page,
    _probes: &'static AtomicU16,
}

static ANCHORS: Anchors = Anchors { _page: &PAGE, _probes: &PROBES_SECTION };

/// Places the events at the start of a separate page.
///
/// The kernel finds a semaphore by its file offset, and takes the first writable mapping that contains it. Some linkers
/// create two writable segments (lld: memory that becomes read-only after relocation, and other data). Both map the
/// file page in which one ends and the other begins. The kernel would then increment the semaphore of a process that
/// starts later in the wrong mapping.
#[cfg_attr(target_arch = "x86_64", repr(C, align(4096)))]
#[cfg_attr(not(target_arch = "x86_64"), repr(C, align(65536)))]
#[derive(Debug)]
struct Page([AtomicU32; 0]);

#[unsafe(link_section = "tracer_events")]
static PAGE: Page = Page([]);

/// Creates a section `.probes`.
///
/// bcc (and thus bpftrace) and perf compute a semaphore's file offset from its address with the difference between
/// address and offset of this section. Without the section they increment no semaphore. The section is in the same
/// segment as the events, so the result is correct.
#[unsafe(link_section = ".probes")]
static PROBES_SECTION: AtomicU16 = AtomicU16::new(0);

/// A field of a class.
#[derive(Debug)]
pub struct Field {
    /// Name.
    pub name: &'static str,
    /// C type; of an element if there are several.
    pub ty: &'static str,
    /// The field's representation in the record.
    pub kind: Kind,
}

/// Representation of a field in the record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// One value.
    Value,
    /// A fixed number of values.
    Array,
    /// A [`DataLoc`](crate::DataLoc).
    Dynamic,
}

/// The location of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FieldLocation {
    /// Offset in bytes from the record's start.
    pub(crate) offset: usize,
    /// Size in bytes.
    pub(crate) size: usize,
    /// Whether it is signed.
    pub(crate) signed: bool,
    /// Number of elements.
    pub(crate) count: usize,
}

impl Class {
    /// For the macros.
    #[doc(hidden)]
    pub const fn new(fields: &'static [Field], layout: &'static [[usize; 4]]) -> Self {
        Self { fields, layout, _anchors: &ANCHORS }
    }

    /// The fields and their locations.
    pub(crate) fn fields(&self) -> impl Iterator<Item = (&'static Field, FieldLocation)> {
        let place = |[offset, size, signed, count]: &[usize; 4]| FieldLocation {
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

    /// Whether the event is traced.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "a load and a branch, also in a debug build of ours")]
    pub fn is_enabled(&self) -> bool {
        self.word.load(Ordering::Relaxed) != 0
    }

    /// The event's name.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// The event's system.
    pub fn system(&self) -> &'static str {
        self.system
    }

    pub(crate) fn class(&self) -> &'static Class {
        self.class
    }

    pub(crate) fn word(&self) -> &AtomicU32 {
        &self.word
    }

    /// Sets the index that user_events assigned.
    pub(crate) fn set_index(&self, index: u32) {
        self.index.store(index, Ordering::Release);
    }

    /// Passes a record to all tracers of the event.
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
