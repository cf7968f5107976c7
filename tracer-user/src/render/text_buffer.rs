//! A text under construction, for the pieces that almost every line has: short literals, numbers and short strings.
//!
//! A variable number of bytes is a call of a copy routine. A fixed number is one or two stores. So pieces are copied
//! in blocks of fixed size, and the bytes after a piece's end are overwritten by the next piece.

use super::printf::hex::hex_pair;

pub(super) const BLOCK: usize = 16;
/// Bytes by which the space after the text grows.
const SPACE: usize = 256;

/// 1 in each byte of a block.
const ONES: u128 = u128::from_le_bytes([1; BLOCK]);

/// A digit 0 in each byte of a word.
const ZEROS: u64 = u64::from_ne_bytes([b'0'; 8]);

/// The eight decimal digits of a number below 10^8, with leading zeros. The first digit is the lowest byte.
#[inline]
fn eight_digits(value: u64) -> u64 {
    // The quotients by multiplication are exact for numbers of this size.
    let fours = (value / 10_000) | (value % 10_000) << 32;
    let hundreds = fours.wrapping_mul(10_486) >> 20 & 0x0000_007f_0000_007f;
    let pairs = hundreds | fours.wrapping_sub(hundreds.wrapping_mul(100)) << 16;
    let tens = pairs.wrapping_mul(103) >> 10 & 0x000f_000f_000f_000f;
    let digits = tens | pairs.wrapping_sub(tens.wrapping_mul(10)) << 8;
    digits | ZEROS
}

/// Text under construction.
#[derive(Clone, Debug, Default)]
pub struct TextBuffer {
    /// The text, and initialised space after it.
    bytes: Vec<u8>,
    /// The end of the text.
    at: usize,
    /// Memory for text that is made in a vector.
    made: Vec<u8>,
}

impl TextBuffer {
    /// Continues a text.
    #[inline]
    pub fn after(text: Vec<u8>) -> Self {
        Self { at: text.len(), bytes: text, made: Vec::new() }
    }

    /// The text.
    #[inline]
    pub fn into_text(mut self) -> Vec<u8> {
        self.bytes.truncate(self.at);
        self.bytes
    }

    /// The text.
    pub fn text(&self) -> &[u8] {
        self.bytes.get(..self.at).unwrap_or_default()
    }

    /// The length of the text.
    #[inline]
    pub fn length(&self) -> usize {
        self.at
    }

    /// Removes the text after a length.
    #[inline]
    pub fn truncate(&mut self, length: usize) {
        self.at = self.at.min(length);
    }

    /// Appends the first `length` bytes of an array.
    #[inline]
    pub(super) fn put<const N: usize>(&mut self, bytes: &[u8; N], length: usize) {
        self.fill(length, |place| *place = *bytes);
    }

    /// Appends the first `length` bytes of an array that a function fills.
    #[inline]
    fn fill<const N: usize>(&mut self, length: usize, fill: impl FnOnce(&mut [u8; N])) {
        if let Some(place) = self.bytes.get_mut(self.at..).and_then(<[u8]>::first_chunk_mut) {
            fill(place);
            // The length of a slice has no such numbers.
            self.at = self.at.wrapping_add(length.min(N));
        } else {
            let mut bytes = [0; N];
            fill(&mut bytes);
            self.grow(bytes.get(..length).unwrap_or(&bytes));
        }
    }

    #[cold]
    fn grow(&mut self, bytes: &[u8]) {
        self.bytes.truncate(self.at);
        self.bytes.extend_from_slice(bytes);
        self.at = self.bytes.len();
        self.bytes.resize(self.at + SPACE.max(self.at / 2), 0);
    }

    /// Appends bytes.
    #[inline]
    pub fn bytes(&mut self, bytes: &[u8]) {
        let end = self.at.saturating_add(bytes.len());
        if let Some(place) = self.bytes.get_mut(self.at..end) {
            place.copy_from_slice(bytes);
            self.at = end;
        } else {
            self.grow(bytes);
        }
    }

    /// Appends the first `length` bytes of longer memory. They are copied as a block if they fit into one.
    #[inline]
    pub(super) fn start_of(&mut self, memory: &[u8], length: usize) {
        match memory.first_chunk::<BLOCK>() {
            Some(block) if length <= BLOCK => self.put(block, length),
            _ => self.bytes(memory.get(..length).unwrap_or(memory)),
        }
    }

    #[inline]
    pub(super) fn byte(&mut self, byte: u8) {
        self.put(&[byte], 1);
    }

    /// Appends what a function writes to an empty vector.
    #[inline]
    pub fn with<T>(&mut self, write: impl FnOnce(&mut Vec<u8>) -> T) -> T {
        let mut made = std::mem::take(&mut self.made);
        made.clear();
        let done = write(&mut made);
        self.bytes(&made);
        self.made = made;
        done
    }

    #[inline]
    pub(super) fn decimal(&mut self, value: u64) {
        if value < 100_000_000 {
            let digits = eight_digits(value);
            // A last digit 0 is shown.
            let zeros = ((digits ^ ZEROS) | 1 << 56).trailing_zeros() / 8;
            return self.put(&(digits >> (8 * zeros)).to_le_bytes(), 8 - zeros as usize);
        }
        self.long_decimal(value);
    }

    #[inline(never)]
    fn long_decimal(&mut self, value: u64) {
        self.decimal(value / 100_000_000);
        self.put(&eight_digits(value % 100_000_000).to_le_bytes(), 8);
    }

    /// Appends six decimal digits of a number below 10^6, a colon and a space.
    #[inline]
    pub(super) fn micros(&mut self, value: u64) {
        let digits = eight_digits(value) >> 16;
        self.put(&(digits | u64::from(u16::from_le_bytes(*b": ")) << 48).to_le_bytes(), 8);
    }

    /// Appends a number in lower-case hexadecimal.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "a call would cost as much as the digits")]
    pub(super) fn hex(&mut self, value: u64) {
        // A last digit 0 is shown.
        let zeros = (value | 1).leading_zeros() / 4;
        let bytes = (value << (4 * zeros)).to_be_bytes();
        self.fill(16 - zeros as usize, |place: &mut [u8; 16]| {
            for (pair, byte) in place.as_chunks_mut().0.iter_mut().zip(bytes) {
                *pair = hex_pair(byte);
            }
        });
    }

    /// Appends the bytes up to the first NUL.
    #[inline]
    pub(super) fn until_nul(&mut self, bytes: &[u8]) {
        if let Some(block) = bytes.first_chunk::<BLOCK>() {
            let word = u128::from_le_bytes(*block);
            // The lowest bit 7 that is set here belongs to the first NUL. Bits above it may be wrong.
            let nul = word.wrapping_sub(ONES) & !word & ONES << 7;
            if nul != 0 {
                return self.put(block, nul.trailing_zeros() as usize / 8);
            }
        }
        let length = memchr::memchr(0, bytes).unwrap_or(bytes.len());
        self.bytes(bytes.get(..length).unwrap_or(bytes));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Text that a buffer appends to `before`.
    fn appended(before: &[u8], write: impl FnOnce(&mut TextBuffer)) -> Vec<u8> {
        let mut out = TextBuffer::after(before.to_vec());
        write(&mut out);
        out.into_text()
    }

    fn until_nul(bytes: &[u8]) -> &[u8] {
        bytes.split(|byte| *byte == 0).next().unwrap()
    }

    /// Numbers with each number of digits.
    fn number() -> impl Strategy<Value = u64> {
        (any::<u64>(), 0..64_u32).prop_map(|(value, shift)| value >> shift)
    }

    proptest! {
        #[test]
        fn numbers_are_those_of_format(values in prop::collection::vec(number(), 0..60)) {
            let written = appended(b"x", |out| {
                for value in &values {
                    out.decimal(*value);
                    out.byte(b' ');
                    out.hex(*value);
                    out.byte(b',');
                }
            });
            let expected = values.iter().map(|value| format!("{value} {value:x},")).collect::<Vec<_>>().concat();
            prop_assert_eq!(written, format!("x{expected}").into_bytes());
        }

        #[test]
        fn texts_end_at_their_nul(
            texts in prop::collection::vec(prop::collection::vec(prop_oneof![Just(0), any::<u8>()], 0..600), 0..8),
        ) {
            let written = appended(b"", |out| texts.iter().for_each(|text| out.until_nul(text)));
            prop_assert_eq!(written, texts.iter().flat_map(|text| until_nul(text).to_vec()).collect::<Vec<_>>());
            let starts = appended(b"", |out| texts.iter().for_each(|text| out.start_of(text, text.len() / 20)));
            let expected = texts.iter().map(|text| &text[..text.len() / 20]).collect::<Vec<_>>().concat();
            prop_assert_eq!(starts, expected);
        }
    }

    #[test]
    fn limits_of_numbers() {
        for value in [0, 9, 10, 99, 100, 999, 1000, 9_999_999_999, u64::MAX] {
            assert_eq!(appended(b"", |out| out.decimal(value)), value.to_string().into_bytes());
            assert_eq!(appended(b"", |out| out.hex(value)), format!("{value:x}").into_bytes());
        }
    }

    #[test]
    fn what_a_function_appends_is_part_of_the_text() {
        let written = appended(b"a", |out| {
            out.byte(b'b');
            out.with(|out| out.extend_from_slice(&[b'c'; 300]));
            let length = out.length();
            out.bytes(b"dropped");
            out.truncate(length);
            out.byte(b'e');
        });
        assert_eq!(written, [b"ab".as_slice(), &[b'c'; 300], b"e"].concat());
    }
}
