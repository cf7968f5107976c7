//! Parses the letters after `%p`.

use super::escape::Escapes;

/// The extension after `%p`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extension {
    /// `%p`: hashed, see [`Pointers`](crate::render::Pointers).
    Plain,
    /// `%px`: the address.
    Raw,
    /// `%pK`: as `%p` with `kptr_restrict` 0.
    Restricted,
    /// `%pS`, `%ps`, `%pB` and their variants.
    Symbol {
        /// Offset and size after the name.
        offset: bool,
        /// The address is a return address (`B`).
        back: bool,
    },
    /// `%pI4`, `%pi4`
    Ip4(Ip4),
    /// `%pI6`, `%pI6c`, `%pi6`
    Ip6 {
        /// `c`
        compressed: bool,
        /// `i`: no colons.
        bare: bool,
    },
    /// `%pIS` and its options.
    Socket(Socket),
    /// `%pM`, `%pm` and variants.
    Mac {
        /// The separator between the bytes.
        separator: Option<u8>,
        /// Reversed byte order (`R`).
        reversed: bool,
    },
    /// `%pU` with `b`, `B`, `l`, `L`.
    Uuid {
        /// Upper-case digits.
        upper: bool,
        /// Little-endian fields (a GUID).
        little: bool,
    },
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
    /// `%pa`: a physical or DMA address by reference.
    Address,
    /// `%p4cc`
    FourCc,
    /// `%pNF`
    Features,
    /// `%pus`, `%pks`: a string.
    Text,
    /// Objects that only the kernel can read: `%pd`, `%pD`, `%pg`, `%pr`, `%pV`, `%pOF`, ...
    Object,
}

/// Options of an IPv4 address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ip4 {
    /// Three digits per byte (`i`).
    pub zeros: bool,
    /// Reversed byte order (`l`, and `h` on little-endian machines).
    pub reversed: bool,
}

/// Options of a socket address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(clippy::struct_excessive_bools)]
pub struct Socket {
    /// `p`
    pub port: bool,
    /// `f`
    pub flow: bool,
    /// `s`
    pub scope: bool,
    /// `c`
    pub compressed: bool,
    /// Options of the IPv4 form.
    pub ip4: Ip4,
}

impl Extension {
    /// Parses the letters and digits after `%p`.
    pub fn parse(letters: &[u8]) -> Self {
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
            Some(b'N') if second == Some(b'F') => Self::Features,
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
