//! A record on the stack: the fixed part, and data of varying length behind it.
//!
//! It is laid out as the kernel lays out its own: room for the common fields, the fields as a C structure, then texts and arrays
//! one behind the other. Whoever takes it copies the bytes behind the common fields as they are.

use core::{marker::PhantomData, mem::MaybeUninit, slice};

use crate::{DataLoc, Event, Value};

/// Bytes of a record for what varies in length.
pub const ROOM: usize = 4096;

/// The fixed part of a record.
///
/// # Safety
/// A `repr(C)` structure of two `u32` and then of [`Value`]s, arrays of them and [`DataLoc`]s, whose last byte but padding is in
/// front of `END`.
pub unsafe trait Fields: Copy {
    /// Bytes up to the end of the last field.
    const END: usize;
}

/// A record of `N` bytes at most.
#[repr(C, align(8))]
pub struct Record<F, const N: usize> {
    bytes: [MaybeUninit<u8>; N],
    length: usize,
    fields: PhantomData<F>,
}

impl<F: Fields, const N: usize> Record<F, N> {
    const FITS: () = assert!(size_of::<F>() <= N && align_of::<F>() <= 8 && N < 1 << 16);

    /// All fields zero.
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
        // SAFETY: aligned, long enough (`FITS`), and initialised: zeroes are a value of every field.
        unsafe { &*self.bytes.as_ptr().cast::<F>() }
    }

    /// The fixed part, to be set.
    #[inline]
    pub fn fields(&mut self) -> &mut F {
        // SAFETY: as above; padding that is written is padding or data behind, which is never read through this.
        unsafe { &mut *self.bytes.as_mut_ptr().cast::<F>() }
    }

    /// Puts a text behind what there is, up to its first NUL and as far as there is room.
    #[inline]
    pub fn string(&mut self, text: &[u8]) -> DataLoc {
        let text = &text[..text.iter().position(|byte| *byte == 0).unwrap_or(text.len())];
        let start = self.length;
        // A text that has no room for its NUL is shown as one that could not be read.
        let Some(room) = (N - start).checked_sub(1) else { return DataLoc(start as u32) };
        let text = &text[..text.len().min(room)];
        let place = &mut self.bytes[start..=start + text.len()];
        for (to, from) in place.iter_mut().zip(text.iter().chain([&0])) {
            *to = MaybeUninit::new(*from);
        }
        self.length += text.len() + 1;
        DataLoc((text.len() as u32 + 1) << 16 | start as u32)
    }

    /// Makes room for values behind what there is, zeroes; as many as fit.
    #[inline]
    pub fn array<T: Value>(&mut self, count: usize) -> DataLoc {
        let start = self.length.next_multiple_of(align_of::<T>()).min(N);
        let size = count.min((N - start) / size_of::<T>()) * size_of::<T>();
        self.bytes[self.length..start + size].fill(MaybeUninit::new(0));
        self.length = start + size;
        DataLoc((size as u32) << 16 | start as u32)
    }

    /// The values that [`Record::array`] made room for.
    #[inline]
    pub fn slice<T: Value>(&mut self, place: DataLoc) -> &mut [T] {
        let bytes = &mut self.bytes[place.offset()..place.offset() + place.length()];
        assert!(bytes.as_ptr().cast::<T>().is_aligned());
        // SAFETY: aligned, in bounds, and initialised by `array`, which alone makes such words; zeroes are a value.
        unsafe { slice::from_raw_parts_mut(bytes.as_mut_ptr().cast::<T>(), bytes.len() / size_of::<T>()) }
    }

    /// Bytes of the whole record: of a fixed one the C structure's.
    #[inline]
    fn whole(&self) -> usize {
        self.length.max(size_of::<F>())
    }
}

/// Hands a record to whoever traces the event.
#[inline]
pub fn submit<F: Fields, const N: usize>(event: &'static Event, record: &Record<F, N>) {
    let length = record.whole();
    // SAFETY: everything up to there was written: the structure with its padding, and what was put behind it.
    let bytes = unsafe { slice::from_raw_parts(record.bytes.as_ptr().cast::<u8>(), length) };
    event.submit(bytes);
}
