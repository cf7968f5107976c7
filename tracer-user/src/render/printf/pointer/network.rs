//! Network addresses: `%pI4`, `%pI6`, `%pIS`, `%pM`.

use super::extension::{Ip4, Socket};
use super::take;
use crate::render::printf::number::{self, decimal, hex, hex_byte};

pub(super) fn ip4(out: &mut Vec<u8>, bytes: [u8; 4], options: Ip4) {
    let mut bytes = bytes;
    if options.reversed {
        bytes.reverse();
    }
    for (i, byte) in bytes.into_iter().enumerate() {
        if i > 0 {
            out.push(b'.');
        }
        number::decimal_padded(out, u64::from(byte), if options.zeros { 3 } else { 1 }, b'0');
    }
}

pub(super) fn ip6(out: &mut Vec<u8>, bytes: &[u8; 16], bare: bool) {
    for (i, [first, second]) in bytes.as_chunks().0.iter().enumerate() {
        if i > 0 && !bare {
            out.push(b':');
        }
        hex_byte(out, *first);
        hex_byte(out, *second);
    }
}

pub(super) fn ip6_compressed(out: &mut Vec<u8>, bytes: &[u8; 16]) {
    let mut words = [0; 8];
    for (word, bytes) in words.iter_mut().zip(bytes.as_chunks().0) {
        *word = u16::from_be_bytes(*bytes);
    }
    let mapped = words[..5] == [0; 5] && words[5] == 0xffff;
    // ISATAP: the interface id is `[02]00:5efe`, with any universal bit.
    let isatap = words[4] & !0x0200 == 0 && words[5] == 0x5efe;
    let count = if mapped || isatap { 6 } else { 8 };
    let zeros = |from: usize| words.iter().take(count).skip(from).take_while(|word| **word == 0).count();
    // The longest run of zeros, the first one among equals; a single zero is not compressed.
    let mut run = None;
    let mut longest = 1;
    for i in 0..count {
        if zeros(i) > longest {
            longest = zeros(i);
            run = Some(i);
        }
    }
    let mut colon = false;
    let mut i = 0;
    while let Some(word) = words.get(i).filter(|_| i < count) {
        if run == Some(i) {
            out.extend_from_slice(b"::");
            colon = false;
            i += longest;
            continue;
        }
        if colon {
            out.push(b':');
        }
        hex(out, u64::from(*word));
        colon = true;
        i += 1;
    }
    if count == 6 {
        if colon {
            out.push(b':');
        }
        ip4(out, take(&bytes[12..]), Ip4 { zeros: false, reversed: false });
    }
}

/// `struct sockaddr_in`: family, port, address.
pub(super) fn socket4(out: &mut Vec<u8>, bytes: [u8; 8], options: Socket) {
    ip4(out, take(&bytes[4..]), options.ip4);
    if options.port {
        out.push(b':');
        decimal(out, u64::from(u16::from_be_bytes([bytes[2], bytes[3]])));
    }
}

/// `struct sockaddr_in6`: family, port, flow label, address, scope.
pub(super) fn socket6(out: &mut Vec<u8>, bytes: &[u8; 28], options: Socket) {
    let bracket = options.port || options.flow || options.scope;
    if bracket {
        out.push(b'[');
    }
    let address = take(&bytes[8..]);
    if options.compressed {
        ip6_compressed(out, &address);
    } else {
        ip6(out, &address, options.ip4.zeros);
    }
    if bracket {
        out.push(b']');
    }
    if options.port {
        out.push(b':');
        decimal(out, u64::from(u16::from_be_bytes([bytes[2], bytes[3]])));
    }
    if options.flow {
        out.push(b'/');
        decimal(out, u64::from(u32::from_be_bytes(take(&bytes[4..])) & 0x0fff_ffff));
    }
    if options.scope {
        out.push(b'%');
        decimal(out, u64::from(u32::from_ne_bytes(take(&bytes[24..]))));
    }
}

pub(super) fn mac(out: &mut Vec<u8>, mut bytes: [u8; 6], separator: Option<u8>, reversed: bool) {
    if reversed {
        bytes.reverse();
    }
    for (i, byte) in bytes.into_iter().enumerate() {
        if i > 0 {
            out.extend(separator);
        }
        hex_byte(out, byte);
    }
}
