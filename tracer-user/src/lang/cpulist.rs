//! Parser of CPU lists: `0-3,8`, `all`, `N` (the last CPU), `0-15:1/4` (one of every four).
//!
//! The syntax follows `bitmap_parselist()` (`lib/bitmap-str.c`). Commas or white space separate the regions. A newline
//! ends the list, and the parser ignores the text after it.

use super::ctype::{is_space, rest, split_run};

/// Returns the CPUs of a list, sorted, each below `cpus` (the kernel's `nr_cpu_ids`). Returns `None` if the kernel
/// rejects the list.
pub fn parse(text: &[u8], cpus: u32) -> Option<Vec<u32>> {
    let last = cpus.checked_sub(1)?;
    let mut set = vec![false; cpus as usize];
    let mut reader = Reader { text, at: 0, last };
    loop {
        while is_separator(reader.peek()) {
            reader.at += 1;
        }
        if is_end(reader.peek()) {
            break;
        }
        let (region, more) = reader.region()?;
        if region.start > region.end || region.group == 0 || region.used > region.group || region.end >= cpus
        {
            return None;
        }
        let mut at = region.start;
        while at <= region.end {
            let count = (region.end - at + 1).min(region.used);
            for chosen in set.iter_mut().skip(at as usize).take(count as usize) {
                *chosen = true;
            }
            // The kernel uses 32 bits that wrap: a huge group steps backwards from its start.
            at = at.wrapping_add(region.group);
        }
        if !more {
            break;
        }
    }
    Some((0..cpus).zip(set).filter_map(|(cpu, chosen)| chosen.then_some(cpu)).collect())
}

/// `start-end:used/group`: the first `used` CPUs of every `group` CPUs.
struct Region {
    start: u32,
    end: u32,
    used: u32,
    group: u32,
}

struct Reader<'a> {
    text: &'a [u8],
    at: usize,
    last: u32,
}

impl Reader<'_> {
    fn peek(&self) -> Option<u8> {
        self.text.get(self.at).copied().filter(|byte| *byte != 0)
    }

    fn expect(&mut self, byte: u8) -> Option<()> {
        (self.peek()? == byte).then(|| self.at += 1)
    }

    fn number(&mut self) -> Option<u32> {
        if self.peek() == Some(b'N') {
            self.at += 1;
            return Some(self.last);
        }
        let (digits, _) = split_run(rest(self.text, self.at), |byte| byte.is_ascii_digit());
        self.at += digits.len();
        std::str::from_utf8(digits).ok()?.parse().ok()
    }

    /// Parses one region. The flag reports whether the list continues after it.
    fn region(&mut self) -> Option<(Region, bool)> {
        let word = rest(self.text, self.at).get(..3);
        let (start, end) = if word.is_some_and(|word| word.eq_ignore_ascii_case(b"all")) {
            self.at += 3;
            (0, self.last)
        } else {
            let start = self.number()?;
            let is_range = !is_region_end(self.peek());
            (start, if is_range { self.expect(b'-').and_then(|()| self.number())? } else { start })
        };
        if is_region_end(self.peek()) {
            return Some((Region::whole(start, end), !is_end(self.peek())));
        }
        self.expect(b':')?;
        let used = self.number()?;
        self.expect(b'/')?;
        let group = self.number()?;
        Some((Region { start, end, used, group }, true))
    }
}

impl Region {
    fn whole(start: u32, end: u32) -> Self {
        let all = end.saturating_add(1);
        Self { start, end, used: all, group: all }
    }
}

fn is_separator(byte: Option<u8>) -> bool {
    byte.is_some_and(|byte| is_space(byte) || byte == b',')
}

fn is_end(byte: Option<u8>) -> bool {
    matches!(byte, None | Some(b'\n'))
}

fn is_region_end(byte: Option<u8>) -> bool {
    is_separator(byte) || is_end(byte)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists() {
        for (text, expected) in [
            ("0", vec![0]),
            ("0-2,7", vec![0, 1, 2, 7]),
            (" 1 ,, 3\t5 ", vec![1, 3, 5]),
            ("all", (0..8).collect()),
            ("ALL:1/4", vec![0, 4]),
            ("N", vec![7]),
            ("5-N", vec![5, 6, 7]),
            ("0-7:2/3", vec![0, 1, 3, 4, 6, 7]),
            ("0-7:1/2 3", vec![0, 2, 3, 4, 6]),
            ("0-3:0/2", vec![]),
            (",", vec![]),
            ("1\nrubbish", vec![1]),
            ("1,\n2", vec![1, 2]),
            ("1-1:1/4294967295", vec![0, 1]),
            ("", vec![]),
        ] {
            assert_eq!(parse(text.as_bytes(), 8), Some(expected), "{text:?}");
        }
        for text in ["8", "3-1", "0-3:3/2", "0-3:0/0", "x", "1-", "1x", "-1", "4294967296", "all1", "0-3:1"] {
            assert_eq!(parse(text.as_bytes(), 8), None, "{text:?}");
        }
    }
}
