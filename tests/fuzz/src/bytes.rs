//! Splits a fuzz input into numbers, choices and texts, from its front.

/// The unread part of an input.
#[derive(Debug)]
pub struct Bytes<'a>(pub &'a [u8]);

impl<'a> Bytes<'a> {
    /// The next byte; `None` at the end.
    pub fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    /// A number of up to eight bytes. The first byte chooses the length, so that small numbers are as likely as large
    /// ones.
    pub fn number(&mut self) -> u64 {
        let size = usize::from(self.byte().unwrap_or(0)) % 9;
        self.take(size).iter().fold(0, |number, byte| number << 8 | u64::from(*byte))
    }

    /// The next `count` bytes, or all that are left.
    pub fn take(&mut self, count: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(count.min(self.0.len()));
        self.0 = rest;
        taken
    }

    /// Bytes with a one-byte length in front.
    pub fn short(&mut self) -> &'a [u8] {
        let length = self.byte().unwrap_or(0);
        self.take(usize::from(length))
    }

    /// One element of the slice; `None` when the slice is empty.
    pub fn choose<T: Copy>(&mut self, all: &[T]) -> Option<T> {
        let number = self.number();
        let count = u64::try_from(all.len()).ok().filter(|count| *count > 0)?;
        all.get(usize::try_from(number % count).ok()?).copied()
    }
}
