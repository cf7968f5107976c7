//! The `%p` extensions of lib/vsprintf.c.
//!
//! Most of them print the memory that the pointer points to. Here this is memory of the record or a constant of the
//! print fmt, which [`Memory`] finds. Kernel memory may be gone by the time a record is read, so it prints as an
//! address that faults.

use std::io::Write as _;

use super::super::env::{Pointers, RenderEnv, Symbol};
use super::errno;
use super::hex::hex_pair;
use super::number::{self, fit, hex_bytes};
use super::spec::{Number, Spec};

mod bitmap;
mod escape;
mod extension;
mod network;

pub(crate) use bitmap::{bitmap, bitmap_list};
pub(crate) use extension::Extension;

use network::{ip4, ip6, ip6_compressed, mac, socket4, socket6};

/// Memory that a program may read.
pub(crate) trait Memory {
    /// The bytes from an address to the end of the readable memory there.
    fn bytes_at(&self, address: u64) -> Option<&[u8]>;
}

/// The word for an address that cannot be read (`check_pointer_msg()`).
pub(crate) fn bad_address(address: u64) -> Option<&'static [u8]> {
    match address {
        0 => Some(b"(null)"),
        1..4096 => Some(b"(efault)"),
        _ => is_error(address).then_some(b"(efault)"),
    }
}

/// Whether an address encodes a negative errno (`IS_ERR_VALUE`).
fn is_error(address: u64) -> bool {
    address >= 0xffff_ffff_ffff_f001
}

/// Prints a word in place of data, truncated to a pointer's number of digits unless there is a precision.
pub(crate) fn complain(out: &mut Vec<u8>, word: &[u8], spec: Spec) {
    let precision = if spec.precision == -1 { 16 } else { spec.precision };
    number::text(out, word, Spec { precision, ..spec });
}

pub(crate) fn pointer(
    out: &mut Vec<u8>,
    address: u64,
    extension: Extension,
    spec: Spec,
    memory: &impl Memory,
    env: &dyn RenderEnv,
) {
    match extension {
        Extension::Raw => return raw(out, address, spec),
        Extension::Symbol { offset, back } => return symbol(out, address, offset, back, spec, env),
        Extension::Error if is_error(address) => {
            let int = Number { base: 10, lower: true, size: 4, signed: true };
            return match errno::name(address.wrapping_neg()) {
                Some(name) => number::text(out, name.as_bytes(), spec),
                None => number::number(out, address, int, spec),
            };
        }
        Extension::Plain | Extension::Restricted | Extension::Error => return plain(out, address, spec, env),
        Extension::Hex(_) | Extension::Escaped(_) if spec.width == 0 => return,
        _ => {}
    }
    if let Some(word) = bad_address(address) {
        return complain(out, word, spec);
    }
    let known = memory.bytes_at(address);
    if extension == Extension::Text {
        let text = known.map(until_nul).or_else(|| env.kernel_text(address)).unwrap_or(b"(efault)");
        return number::text(out, text, spec);
    }
    let Some(bytes) = known.filter(|_| extension != Extension::Object) else {
        return complain(out, b"(efault)", spec);
    };
    let start = out.len();
    match extension {
        Extension::Ip4(options) => ip4(out, take(bytes), options),
        Extension::Ip6 { compressed: true, .. } => ip6_compressed(out, &take(bytes)),
        Extension::Ip6 { bare, .. } => ip6(out, &take(bytes), bare),
        Extension::Socket(options) => match u16::from_ne_bytes(take(bytes)) {
            // AF_INET and AF_INET6
            2 => socket4(out, take(bytes), options),
            10 => socket6(out, &take(bytes), options),
            _ => return complain(out, b"(einval)", spec),
        },
        Extension::Mac { separator, reversed } => mac(out, take(bytes), separator, reversed),
        Extension::Uuid { upper, little } => uuid(out, &take(bytes), upper, little),
        Extension::Hex(separator) => {
            let length = if spec.width > 0 { spec.width.min(64) as usize } else { 1 };
            return hex_bytes(out, bytes.get(..length).unwrap_or(bytes), separator);
        }
        Extension::Bitmap => return bitmap(out, bytes, spec.width),
        Extension::BitmapList => return bitmap_list(out, bytes, spec.width),
        Extension::Escaped(flags) => {
            let length = if spec.width < 0 { 1 } else { spec.width as usize };
            return bytes.iter().take(length).for_each(|byte| flags.write(out, *byte));
        }
        Extension::Address => {
            let _ = write!(out, "{:#018x}", u64::from_ne_bytes(take(bytes)));
            return;
        }
        Extension::FourCc => fourcc(out, u32::from_ne_bytes(take(bytes))),
        _ => return complain(out, b"(efault)", spec),
    }
    fit(out, start, spec);
}

/// The first bytes of a region; missing bytes are zero.
pub(crate) fn take<const N: usize>(bytes: &[u8]) -> [u8; N] {
    if let Some(taken) = bytes.first_chunk() {
        return *taken;
    }
    let mut taken = [0; N];
    for (to, from) in taken.iter_mut().zip(bytes) {
        *to = *from;
    }
    taken
}

/// A string's bytes up to its NUL, or all bytes without one.
#[inline]
pub(crate) fn until_nul(bytes: &[u8]) -> &[u8] {
    bytes.split(|byte| *byte == 0).next().unwrap_or_default()
}

fn raw(out: &mut Vec<u8>, address: u64, spec: Spec) {
    let spec = if spec.width == -1 { Spec { width: 16, zero: true, ..spec } } else { spec };
    number::number(out, address, Number::hex(8), spec);
}

fn plain(out: &mut Vec<u8>, address: u64, spec: Spec, env: &dyn RenderEnv) {
    if env.pointers() == Pointers::Raw || address == 0 || is_error(address) {
        raw(out, address, spec);
    } else if let Some(hash) = env.hash(address) {
        raw(out, hash, spec);
    } else {
        hidden(out, spec);
    }
}

/// Prints a placeholder for a pointer that must not or cannot be shown.
pub(crate) fn hidden(out: &mut Vec<u8>, spec: Spec) {
    complain(out, b"(____ptrval____)", Spec { width: 16, ..spec });
}

/// Prints the symbol of an address, or the address in hex.
pub(crate) fn symbol(
    out: &mut Vec<u8>,
    address: u64,
    offset: bool,
    back: bool,
    spec: Spec,
    env: &dyn RenderEnv,
) {
    let start = out.len();
    // A return address may be the first byte of the next function, so the lookup uses the byte before it.
    let _ = match env.symbol(address.wrapping_sub(u64::from(back))) {
        Some(symbol) if offset => {
            write!(out, "{}", Symbol { offset: symbol.offset + u64::from(back), ..symbol })
        }
        Some(Symbol { name, module: Some(module), .. }) => write!(out, "{name} [{module}]"),
        Some(Symbol { name, .. }) => out.write_all(name.as_bytes()),
        None => write!(out, "{address:#x}"),
    };
    fit(out, start, spec);
}

fn uuid(out: &mut Vec<u8>, bytes: &[u8; 16], upper: bool, little: bool) {
    let mut bytes = *bytes;
    if little {
        bytes[..4].reverse();
        bytes[4..6].reverse();
        bytes[6..8].reverse();
    }
    for (i, byte) in bytes.into_iter().enumerate() {
        if matches!(i, 4 | 6 | 8 | 10) {
            out.push(b'-');
        }
        let digits = hex_pair(byte);
        out.extend(if upper { digits.map(|digit| digit.to_ascii_uppercase()) } else { digits });
    }
}

fn fourcc(out: &mut Vec<u8>, value: u32) {
    for byte in (value & !(1 << 31)).to_le_bytes() {
        out.push(if matches!(byte, 0x20..=0x7e) { byte } else { b'.' });
    }
    let order = if value >> 31 != 0 { "big" } else { "little" };
    let _ = write!(out, " {order}-endian ({value:#010x})");
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Bytes(Vec<u8>);

    impl Memory for Bytes {
        fn bytes_at(&self, address: u64) -> Option<&[u8]> {
            (address == 0x10000).then_some(&self.0)
        }
    }

    struct Env;

    impl RenderEnv for Env {
        fn symbol(&self, address: u64) -> Option<Symbol<'_>> {
            (0xffff_ffff_8100_0000..0xffff_ffff_8100_0040).contains(&address).then(|| Symbol {
                name: "vfs_read",
                offset: address - 0xffff_ffff_8100_0000,
                size: Some(0x40),
                module: Some("ext4"),
            })
        }
    }

    fn show(letters: &str, width: i32, address: u64, bytes: &[u8]) -> String {
        let mut out = Vec::new();
        let spec = Spec { width, ..Spec::PLAIN };
        pointer(&mut out, address, Extension::parse(letters.as_bytes()), spec, &Bytes(bytes.to_vec()), &Env);
        String::from_utf8_lossy(&out).into_owned()
    }

    #[test]
    fn pointed_memory() {
        let uuid: Vec<u8> = (0..16).collect();
        let v4 = [2, 0, 0x1f, 0x90, 127, 0, 0, 1];
        let mut v6 = vec![10, 0, 0, 80, 0, 0, 0, 5];
        v6.extend([0; 15]);
        v6.extend([1, 7, 0, 0, 0]);
        let mapped = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, 1];
        let isatap = [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 2, 0, 0x5e, 0xfe, 0, 0, 0, 1];
        let long = [0x20, 1, 0xd, 0xb8, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 1];
        for (letters, width, bytes, expected) in [
            ("I4", -1, &v4[4..], "127.0.0.1"),
            ("i4", -1, &v4[4..], "127.000.000.001"),
            ("I4h", -1, &v4[4..], "1.0.0.127"),
            ("ISpc", -1, &v4, "127.0.0.1:8080"),
            ("ISpc", -1, &v6, "[::1]:80"),
            ("ISpfsc", -1, &v6, "[::1]:80/5%7"),
            ("IS", -1, &v6, "0000:0000:0000:0000:0000:0000:0000:0001"),
            ("IS", -1, &[1, 0], "(einval)"),
            ("I6", -1, &long, "2001:0db8:0000:0001:0000:0000:0000:0001"),
            ("i6", -1, &long, "20010db8000000010000000000000001"),
            ("I6c", -1, &long, "2001:db8:0:1::1"),
            ("I6c", -1, &mapped, "::ffff:10.0.0.1"),
            ("I6c", -1, &isatap, "fe80::200:5efe:0.0.0.1"),
            ("I6c", -1, &[0; 16], "::"),
            ("M", -1, &uuid, "00:01:02:03:04:05"),
            ("MR", -1, &uuid, "05:04:03:02:01:00"),
            ("mF", -1, &uuid, "000102030405"),
            ("U", -1, &uuid, "00010203-0405-0607-0809-0a0b0c0d0e0f"),
            ("UL", -1, &uuid, "03020100-0504-0706-0809-0A0B0C0D0E0F"),
            ("h", 3, &uuid, "00 01 02"),
            ("hC", 3, &uuid, "00:01:02"),
            ("hN", 3, &uuid, "000102"),
            ("h", 0, &uuid, ""),
            ("b", 40, &[1, 0, 0, 0x80, 3, 0, 0, 0], "03,80000001"),
            ("bl", 40, &[0x1d, 0, 0, 0x80, 3, 0, 0, 0], "0,2-4,31-33"),
            ("bl", 40, &[0; 8], ""),
            ("E", 5, b"a\n\"\x01\xff", "a\\n\"\\001\u{fffd}"),
            ("4cc", -1, b"YUYV", "YUYV little-endian (0x56595559)"),
            ("a", -1, &[1, 0, 0, 0, 0, 0, 0, 0], "0x0000000000000001"),
            ("ks", 5, b"abc\0d", "  abc"),
            ("d", -1, b"x", "(efault)"),
        ] {
            assert_eq!(show(letters, width, 0x10000, bytes), expected, "%p{letters}");
        }
    }

    #[test]
    fn addresses() {
        for (letters, width, address, expected) in [
            ("S", -1, 0xffff_ffff_8100_0004, "vfs_read+0x4/0x40 [ext4]"),
            ("s", -1, 0xffff_ffff_8100_0004, "vfs_read [ext4]"),
            ("B", -1, 0xffff_ffff_8100_0040, "vfs_read+0x40/0x40 [ext4]"),
            ("S", -1, 0xffff_ffff_8100_0040, "0xffffffff81000040"),
            ("", -1, 0xffff_ffff_8100_0004, "(____ptrval____)"),
            ("", -1, 0, "0000000000000000"),
            ("", 4, 0, "   0"),
            ("", -1, 0xffff_ffff_ffff_fffe, "fffffffffffffffe"),
            ("x", -1, 0x1234, "0000000000001234"),
            ("e", -1, 0xffff_ffff_ffff_fffe, "-ENOENT"),
            ("e", -1, 0xffff_ffff_ffff_fc18, "-1000"),
            ("I4", -1, 0, "(null)"),
            ("I4", -1, 12, "(efault)"),
            ("I4", -1, 0xffff_8880_0000_0000, "(efault)"),
        ] {
            assert_eq!(show(letters, width, address, &[]), expected, "%p{letters} of {address:#x}");
        }
    }
}
