//! A record on the stack: the fixed part, followed by data of variable length.
//!
//! The layout is that of the kernel's records: space for the common fields, the fields as a C structure, then strings
//! and arrays one after the other. A tracer copies the bytes after the common fields unchanged.

use core::{marker::PhantomData, mem::MaybeUninit, slice};

use crate::{DataLoc, Event, Value};

/// Bytes of a record for data of variable length.
pub const DATA_MAX: usize = 4096;

/// The fixed part of a record.
///
/// # Safety
/// The type is a `repr(C)` structure of two `u32`, followed by [`Value`]s, arrays of them and [`DataLoc`]s. Only
/// padding follows the byte offset `END`.
pub unsafe trait Fields: Copy {
    /// Byte offset of the end of the last field.
    const END: usize;
}

/// A record of at most `N` bytes.
#[repr(C, align(8))]
pub struct Record<F, const N: usize> {
    bytes: [MaybeUninit<u8>; N],
    length: usize,
    fields: PhantomData<F>,
}

impl<F: Fields, const N: usize> Record<F, N> {
    const FITS: () = assert!(size_of::<F>() <= N && align_of::<F>() <= 8 && N < 1 << 16);

    /// Creates a record with all fields zero.
    #[expect(clippy::new_without_default, reason = "for the macros alone")]
    #[inline]
    pub fn new() -> Self {
        let () = Self::FITS;
        let mut record = Self { bytes: [MaybeUninit::uninit(); N], length: F::END, fields: PhantomData };
        record.bytes[..size_of::<F>()].fill(MaybeUninit::new(0));
        record
    }

    /// The fixed part.
    #[inline]
    pub fn read(&self) -> &F {
        // SAFETY: aligned, long enough (`FITS`), and initialised: zeroes are a valid value of every field.
        unsafe { &*self.bytes.as_ptr().cast::<F>() }
    }

    /// The fixed part, writable.
    #[inline]
    pub fn fields(&mut self) -> &mut F {
        // SAFETY: as above. A write to padding may change padding or the data after it, which is never read through
        // this reference.
        unsafe { &mut *self.bytes.as_mut_ptr().cast::<F>() }
    }

    /// Appends a string up to its first NUL, as far as there is space.
    #[inline]
    pub fn string(&mut self, text: &[u8]) -> DataLoc {
        let text = &text[..text.iter().position(|byte| *byte == 0).unwrap_or(text.len())];
        let start = self.length;
        // A string without space for its NUL is shown as unreadable.
        let Some(space) = (N - start).checked_sub(1) else { return DataLoc(start as u32) };
        let text = &text[..text.len().min(space)];
        let place = &mut self.bytes[start..=start + text.len()];
        for (to, from) in place.iter_mut().zip(text.iter().chain([&0])) {
            *to = MaybeUninit::new(*from);
        }
        self.length += text.len() + 1;
        DataLoc((text.len() as u32 + 1) << 16 | start as u32)
    }

    /// Appends zeroed space for `count` values, or for as many as fit.
    #[inline]
    pub fn array<T: Value>(&mut self, count: usize) -> DataLoc {
        let start = self.length.next_multiple_of(align_of::<T>()).min(N);
        let size = count.min((N - start) / size_of::<T>()) * size_of::<T>();
        self.bytes[self.length..start + size].fill(MaybeUninit::new(0));
        self.length = start + size;
        DataLoc((size as u32) << 16 | start as u32)
    }

    /// The values that [`Record::array`] appended.
    #[inline]
    pub fn slice<T: Value>(&mut self, place: DataLoc) -> &mut [T] {
        let bytes = &mut self.bytes[place.offset()..place.offset() + place.length()];
        assert!(bytes.as_ptr().cast::<T>().is_aligned());
        // SAFETY: aligned, in bounds, and initialised by `array`, the only source of such words; zeroes are a valid
        // value.
        unsafe { slice::from_raw_parts_mut(bytes.as_mut_ptr().cast::<T>(), bytes.len() / size_of::<T>()) }
    }

    /// Size of the whole record in bytes; for a fixed record the size of the C structure.
    #[inline]
    fn whole(&self) -> usize {
        self.length.max(size_of::<F>())
    }
}

/// Passes a record to the tracers of the event.
#[inline]
pub fn submit<F: Fields, const N: usize>(event: &'static Event, record: &Record<F, N>) {
    let length = record.whole();
    // SAFETY: all bytes up to `length` were written: the structure with its padding, and the data appended to it.
    let bytes = unsafe { slice::from_raw_parts(record.bytes.as_ptr().cast::<u8>(), length) };
    event.submit(bytes);
}
