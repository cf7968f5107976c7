//! Network addresses: `%pI4`, `%pI6`, `%pIS`, `%pM`.

use std::io::Write as _;
use std::net::{Ipv4Addr, Ipv6Addr};

use super::extension::{Ip4, Socket};
use super::take;
use crate::render::printf::number::{decimal, decimal_padded, hex_bytes};

pub(super) fn ip4(out: &mut Vec<u8>, mut bytes: [u8; 4], options: Ip4) {
    if options.reversed {
        bytes.reverse();
    }
    for (i, byte) in bytes.into_iter().enumerate() {
        if i > 0 {
            out.push(b'.');
        }
        decimal_padded(out, byte, if options.zeros { 3 } else { 1 }, b'0');
    }
}

pub(super) fn ip6(out: &mut Vec<u8>, bytes: &[u8; 16], bare: bool) {
    for (i, word) in bytes.as_chunks::<2>().0.iter().enumerate() {
        if i > 0 && !bare {
            out.push(b':');
        }
        hex_bytes(out, word, None);
    }
}

pub(super) fn ip6_compressed(out: &mut Vec<u8>, bytes: &[u8; 16]) {
    let address = Ipv6Addr::from(*bytes);
    let mut words = address.segments();
    // ISATAP: the interface id is `[02]00:5efe`, with any universal bit, and ends with an IPv4 address. Its two words
    // are not part of a run of zeros.
    let _ = if words[4] & !0x0200 == 0 && words[5] == 0x5efe {
        words[6..].fill(1);
        let text = Ipv6Addr::from(words).to_string();
        let last = Ipv4Addr::from(take::<4>(&bytes[12..]));
        write!(out, "{}{last}", text.trim_end_matches("1:1"))
    } else {
        write!(out, "{address}")
    };
}

/// `struct sockaddr_in`: family, port, address.
pub(super) fn socket4(out: &mut Vec<u8>, bytes: [u8; 8], options: Socket) {
    ip4(out, take(&bytes[4..]), options.ip4);
    if options.port {
        out.push(b':');
        decimal(out, u16::from_be_bytes([bytes[2], bytes[3]]));
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
        decimal(out, u16::from_be_bytes([bytes[2], bytes[3]]));
    }
    if options.flow {
        out.push(b'/');
        decimal(out, u32::from_be_bytes(take(&bytes[4..])) & 0x0fff_ffff);
    }
    if options.scope {
        out.push(b'%');
        decimal(out, u32::from_ne_bytes(take(&bytes[24..])));
    }
}

pub(super) fn mac(out: &mut Vec<u8>, mut bytes: [u8; 6], separator: Option<u8>, reversed: bool) {
    if reversed {
        bytes.reverse();
    }
    hex_bytes(out, &bytes, separator);
}
