//! Parses the letters after `%p`.

use super::escape::Escapes;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Extension {
    /// `%p`: hashed, see [`Pointers`](crate::render::Pointers).
    Plain,
    /// `%px`: the address.
    Raw,
    /// `%pK`: as `%p` with `kptr_restrict` 0.
    Restricted,
    /// `%pS`, `%ps`, `%pB` and their variants: whether offset and size follow the name, and whether the address is a
    /// return address (`B`).
    Symbol { offset: bool, back: bool },
    /// `%pI4`, `%pi4`
    Ip4(Ip4),
    /// `%pI6`, `%pI6c`, `%pi6` (bare: without colons)
    Ip6 { compressed: bool, bare: bool },
    /// `%pIS` and its options.
    Socket(Socket),
    /// `%pM`, `%pm` and variants; reversed byte order with `R`.
    Mac { separator: Option<u8>, reversed: bool },
    /// `%pU` with `b`, `B`, `l`, `L`: upper-case digits, and little-endian fields (a GUID).
    Uuid { upper: bool, little: bool },
    /// `%*ph` with `C`, `D`, `N`: bytes and their separator.
    Hex(Option<u8>),
    /// `%*pb`
    Bitmap,
    /// `%*pbl`
    BitmapList,
    /// `%*pE` with its flags.
    Escaped(Escapes),
    /// `%pe`
    Error,
    /// `%pa`, `%pNF`: 64 bits by reference.
    Address,
    /// `%p4cc`
    FourCc,
    /// `%pus`, `%pks`: a string.
    Text,
    /// Objects that only the kernel can read: `%pd`, `%pD`, `%pg`, `%pr`, `%pV`, `%pOF`, ...
    Object,
}

/// Options of an IPv4 address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ip4 {
    /// Three digits per byte (`i`).
    pub(crate) zeros: bool,
    /// Reversed byte order (`l`, and `h` on little-endian machines).
    pub(crate) reversed: bool,
}

/// Options of a socket address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(clippy::struct_excessive_bools)]
pub(crate) struct Socket {
    /// `p`
    pub(crate) port: bool,
    /// `f`
    pub(crate) flow: bool,
    /// `s`
    pub(crate) scope: bool,
    /// `c`
    pub(crate) compressed: bool,
    /// Options of the IPv4 form.
    pub(crate) ip4: Ip4,
}

impl Extension {
    /// Parses the letters and digits after `%p`.
    pub(crate) fn parse(letters: &[u8]) -> Self {
        let second = letters.get(1).copied();
        match letters.first().copied() {
            Some(b'S') => Self::Symbol { offset: true, back: false },
            Some(b's') => Self::Symbol { offset: false, back: false },
            Some(b'B') => Self::Symbol { offset: true, back: true },
            Some(b'x') => Self::Raw,
            Some(b'K') => Self::Restricted,
            Some(b'e') => Self::Error,
            Some(b'a') => Self::Address,
            Some(b'h') => Self::Hex(match second {
                Some(b'C') => Some(b':'),
                Some(b'D') => Some(b'-'),
                Some(b'N') => None,
                _ => Some(b' '),
            }),
            Some(b'b') if second == Some(b'l') => Self::BitmapList,
            Some(b'b') => Self::Bitmap,
            Some(kind @ (b'M' | b'm')) => Self::Mac {
                separator: (kind == b'M').then_some(if second == Some(b'F') { b'-' } else { b':' }),
                reversed: second == Some(b'R'),
            },
            Some(b'U') => Self::Uuid {
                upper: matches!(second, Some(b'B' | b'L')),
                little: matches!(second, Some(b'l' | b'L')),
            },
            Some(kind @ (b'I' | b'i')) => Self::internet(kind == b'i', letters),
            Some(b'E') => Self::Escaped(Escapes::parse(letters.get(1..).unwrap_or_default())),
            Some(b'4') if letters.starts_with(b"4cc") => Self::FourCc,
            Some(b'N') if second == Some(b'F') => Self::Address,
            Some(b'u' | b'k') if second == Some(b's') => Self::Text,
            Some(
                b'd' | b'D' | b'g' | b'G' | b'r' | b'R' | b'V' | b'O' | b'f' | b't' | b'C' | b'A' | b'N'
                | b'4' | b'u' | b'k',
            ) => Self::Object,
            _ => Self::Plain,
        }
    }

    fn internet(bare: bool, letters: &[u8]) -> Self {
        let reversed = |letter: Option<&u8>| {
            matches!(letter, Some(b'l')) || (matches!(letter, Some(b'h')) && cfg!(target_endian = "little"))
        };
        match letters.get(1) {
            Some(b'4') => Self::Ip4(Ip4 { zeros: bare, reversed: reversed(letters.get(2)) }),
            Some(b'6') => Self::Ip6 { compressed: !bare && letters.get(2) == Some(&b'c'), bare },
            Some(b'S') => {
                let options = letters.get(2..).unwrap_or_default();
                let has = |letter| options.contains(&letter);
                let order = options.iter().rfind(|letter| matches!(letter, b'h' | b'l' | b'n' | b'b'));
                Self::Socket(Socket {
                    port: has(b'p'),
                    flow: has(b'f'),
                    scope: has(b's'),
                    compressed: !bare && has(b'c'),
                    ip4: Ip4 { zeros: bare, reversed: reversed(order) },
                })
            }
            _ => Self::Object,
        }
    }
}
