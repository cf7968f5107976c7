//! Facts of the running kernel for rendering: constants and layouts from BTF, the strings that events point to from
//! `printk_formats`, and the tick counter from the clocks. `engine::facts` combines them.

use std::collections::HashMap;

use rustix::time::{ClockId, clock_getres, clock_gettime};

use super::env::{KernelFacts, Member};
use crate::kernel::Btf;

const NSEC_PER_SEC: u64 = 1_000_000_000;

impl KernelFacts for Btf {
    fn constant(&self, name: &str) -> Option<i64> {
        Btf::constant(self, name)
    }

    fn type_size(&self, name: &str) -> Option<(u64, bool)> {
        let (size, signed) = self.size_of(name).ok()??;
        (size > 0).then_some((u64::from(size), signed))
    }

    fn member(&self, aggregate: &str, member: &str) -> Option<Member> {
        let (bit_offset, bits, signed) = self.bits(aggregate, member).ok()??;
        Some(Member { bit_offset, bits, signed })
    }
}

/// The running kernel's ticks per second. Its coarse clocks advance once per tick, so their resolution is the tick's
/// length.
pub fn hz() -> u32 {
    let tick = clock_getres(ClockId::MonotonicCoarse).tv_nsec.max(1) as u64;
    ((NSEC_PER_SEC + tick / 2) / tick) as u32
}

/// An estimate of the running kernel's tick counter. It starts five minutes before its low 32 bits wrap
/// (`INITIAL_JIFFIES`) and runs with the monotonic clock.
pub fn jiffies() -> u64 {
    let hz = u64::from(hz());
    let now = clock_gettime(ClockId::Monotonic);
    let ticks = now.tv_sec as u64 * hz + now.tv_nsec as u64 * hz / NSEC_PER_SEC;
    u64::from((hz as u32).wrapping_mul(300).wrapping_neg()) + ticks
}

/// Kernel strings that events may point to (`printk_formats`), by address.
#[derive(Clone, Debug, Default)]
pub struct KernelTexts {
    texts: HashMap<u64, Vec<u8>>,
}

impl KernelTexts {
    /// Reads the text of `printk_formats`; ignores malformed lines.
    pub fn parse(text: &str) -> Self {
        let texts = text.lines().filter_map(|line| {
            let (address, rest) = line.strip_prefix("0x")?.split_once(" : \"")?;
            Some((u64::from_str_radix(address, 16).ok()?, unescape(rest.strip_suffix('"')?)))
        });
        Self { texts: texts.collect() }
    }

    /// The string at an address.
    pub fn get(&self, address: u64) -> Option<&[u8]> {
        self.texts.get(&address).map(Vec::as_slice)
    }
}

/// Reverts the escapes of `printk_formats`.
fn unescape(text: &str) -> Vec<u8> {
    let mut bytes = text.bytes();
    let next = || match bytes.next()? {
        b'\\' => bytes.next().map(|escaped| match escaped {
            b'n' => b'\n',
            b't' => b'\t',
            other => other,
        }),
        other => Some(other),
    };
    std::iter::from_fn(next).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_texts() {
        let texts = KernelTexts::parse("0xffffffff8281a3e9 : \"a\\\"b\\n\"\nnothing\n0x10 : \"x : \"y\"\n");
        assert_eq!(texts.get(0xffff_ffff_8281_a3e9), Some(&b"a\"b\n"[..]));
        assert_eq!(texts.get(0x10), Some(&b"x : \"y"[..]));
        assert_eq!(texts.get(0x11), None);
    }

    #[test]
    fn ticks_are_one_of_the_configurable_lengths() {
        assert!([100, 250, 300, 1000].contains(&hz()), "{}", hz());
    }
}
