//! `tracing_cpumask`, and the kernel's text form of CPU masks: hexadecimal words of 32 bits, the highest first.

use rustix::io::Errno;

use super::entry::{Entry, ReadKind, Result};
use crate::{engine::InstanceCommand, lang::ctype};

/// The bits of a word; commas separate words.
const WORD: usize = 32;

pub(super) const TRACING_CPUMASK: Entry = Entry::write(
    "tracing_cpumask",
    ReadKind::Text(|engine, at| Ok((text(&at.state(engine)?.cpus) + "\n").into_bytes())),
    |engine, data| {
        let mask = parse(data, engine.at.state(engine.view())?.cpus.len())?;
        engine.take(data, InstanceCommand::Cpus(mask))
    },
);

/// Formats a mask as the kernel's `%*pb` does.
fn text(mask: &[bool]) -> String {
    let words: Vec<u32> = mask
        .chunks(WORD)
        .map(|bits| (0..).zip(bits).fold(0, |word, (bit, on)| word | u32::from(*on) << bit))
        .collect();
    // The highest word has only as many digits as its bits need.
    let bits = mask.chunks(WORD).map(<[bool]>::len);
    let shown =
        words.iter().zip(bits).rev().map(|(word, bits)| format!("{word:0width$x}", width = bits.div_ceil(4)));
    shown.collect::<Vec<_>>().join(",")
}

/// Parses a mask for `cpus` CPUs as the kernel's `bitmap_parse()` does.
fn parse(text: &[u8], cpus: usize) -> Result<Vec<bool>> {
    let text = ctype::trim_end(text);
    let text = std::str::from_utf8(ctype::trim_start(text)).map_err(|_| Errno::INVAL)?;
    let mut mask = vec![false; cpus];
    let mut base = 0;
    for word in text.rsplit(',') {
        if word.is_empty() || !word.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(Errno::INVAL);
        }
        let word = u32::from_str_radix(word, 16).map_err(|_| Errno::OVERFLOW)?;
        for bit in (0..WORD).filter(|bit| word >> bit & 1 != 0) {
            *mask.get_mut(base + bit).ok_or(Errno::OVERFLOW)? = true;
        }
        base += WORD;
    }
    Ok(mask)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masks() {
        assert_eq!(text(&[true, true]), "3");
        assert_eq!(text(&[true, false, false, false, true]), "11");
        assert_eq!(text(&[true; 34]), "3,ffffffff");
        assert_eq!(parse(b"3\n", 2), Ok(vec![true, true]));
        assert_eq!(parse(b" 2", 2), Ok(vec![false, true]));
        assert_eq!(parse(b"4", 2), Err(Errno::OVERFLOW));
        assert_eq!(parse(b"1,00000000", 34).map(|mask| mask[32]), Ok(true));
        assert_eq!(parse(b"x", 2), Err(Errno::INVAL));
        assert_eq!(parse(b"", 2), Err(Errno::INVAL));
    }
}
