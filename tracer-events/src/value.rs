//! Types that fields may have.

use core::ffi::c_void;

/// A value that lies in a record as it lies in memory: every pattern of its bits may be read by anybody.
///
/// Sealed: the types of [`trace_event!`](crate::trace_event!)'s table.
pub trait Value: Copy + sealed::Plain {
    /// Whether a format file shows it as signed.
    const SIGNED: bool;
}

mod sealed {
    /// Types without padding for which all zeroes are a value.
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

/// A word that says where data of varying length lies: its length in the upper 16 bits, in the lower ones the offset from the
/// record's start, the common fields included (`__data_loc`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(transparent)]
pub struct DataLoc(pub(crate) u32);

impl DataLoc {
    /// Bytes from the record's start.
    pub fn offset(self) -> usize {
        (self.0 & 0xffff) as usize
    }

    /// Bytes of it; of a text with its NUL.
    pub fn length(self) -> usize {
        (self.0 >> 16) as usize
    }
}

/// Setting arrays of characters.
pub trait Text {
    /// Sets the text, as much of it as has room with a NUL behind it, and zeroes behind that.
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
