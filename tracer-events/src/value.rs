//! Types of fields.

use core::ffi::c_void;

/// A value that has the same bytes in a record and in memory. Every bit pattern may be read by tracers.
///
/// Sealed: implemented for the field types that the [crate documentation](crate#parts-of-an-event) lists.
pub trait Value: Copy + sealed::Plain {
    /// Whether a format file shows it as signed.
    const SIGNED: bool;
}

mod sealed {
    /// Types without padding for which all-zero bytes are a valid value.
    pub trait Plain {}
}
pub(crate) use sealed::Plain;

macro_rules! values {
    ($($ty:ty: $signed:literal),* $(,)?) => {$(
        impl Plain for $ty {}
        impl Value for $ty {
            const SIGNED: bool = $signed;
        }
    )*};
}

values! {
    u8: false, u16: false, u32: false, u64: false, usize: false, bool: false,
    i8: true, i16: true, i32: true, i64: true, isize: true,
}

impl<T> Plain for *const T {}
impl<T> Value for *const T {
    const SIGNED: bool = false;
}
impl<T> Plain for *mut T {}
impl<T> Value for *mut T {
    const SIGNED: bool = false;
}

const _: () = assert!(size_of::<*const c_void>() == 8, "tracer-events is for machines of 64 bits");

/// A word with the location of data of variable length (`__data_loc`): the length in the upper 16 bits, the offset in
/// the lower 16 bits. The offset counts from the record's start, common fields included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(transparent)]
pub struct DataLoc(pub(crate) u32);

impl DataLoc {
    /// Offset in bytes from the record's start.
    pub fn offset(self) -> usize {
        (self.0 & 0xffff) as usize
    }

    /// Length in bytes; for a string with its NUL.
    pub fn length(self) -> usize {
        (self.0 >> 16) as usize
    }
}

/// Assignment to character arrays.
pub trait Text {
    /// Copies as much of the text as fits before a NUL, and fills the rest with zeroes.
    fn set(&mut self, text: impl AsRef<[u8]>);
}

impl<const N: usize> Text for [u8; N] {
    fn set(&mut self, text: impl AsRef<[u8]>) {
        let text = text.as_ref();
        let end = text.iter().position(|byte| *byte == 0).unwrap_or(text.len()).min(N.saturating_sub(1));
        self[..end].copy_from_slice(&text[..end]);
        self[end..].fill(0);
    }
}
