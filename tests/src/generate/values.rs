//! Generates random arguments of dynamic events. All of them are valid: both tracers accept them, and a deterministic
//! workload fixes their values. The same seed makes the same definition.
//!
//! A number that cannot be read is 0 in the mirror and the previous content of the buffer in the kernel, so the
//! generator uses readable memory only. Texts may fail.

use super::Rng;

/// The building blocks of arguments.
#[derive(Clone, Debug, Default)]
pub struct Sources {
    /// Words: registers, arguments, return values. They contain no text.
    pub words: Vec<String>,
    /// Addresses of readable memory, and the number of bytes that both tracers read alike.
    pub memory: Vec<(String, u32)>,
    /// Addresses of texts, some of which may be unreadable.
    pub texts: Vec<String>,
    /// Whether addresses are user-space addresses by default, so that `+u` has no effect.
    pub user: bool,
    /// Whether [`Sources::memory`] and [`Sources::texts`] are in user space, which needs `+u` or `ustring`.
    pub ask_user: bool,
    /// Addresses of kernel text.
    pub code: Vec<String>,
    /// Names with BTF types, which need no type in the definition.
    pub typed: Vec<String>,
}

const NUMBERS: [(&str, u32); 12] = [
    ("u8", 1),
    ("u16", 2),
    ("u32", 4),
    ("u64", 8),
    ("s8", 1),
    ("s16", 2),
    ("s32", 4),
    ("s64", 8),
    ("x8", 1),
    ("x16", 2),
    ("x32", 4),
    ("x64", 8),
];

impl Sources {
    /// A random number of arguments, each with a space in front.
    pub fn arguments(&self, rng: &mut Rng) -> String {
        let count = [1, 1, 2, 3, 4, 6, 8][rng.below(7)];
        let mut all: Vec<String> = (0..count).map(|_| self.argument(rng)).collect();
        // A `symstr` is kept only once and moved to the end: the kernel lets the symbol's name run into the text
        // after it (`fetch_store_symstring()` does not count its NUL).
        let names = |text: &String| text.ends_with(":symstr");
        let last = all.iter().rposition(names);
        let mut kept = 0;
        all.retain(|text| {
            kept += 1;
            !names(text) || Some(kept - 1) == last
        });
        if let Some(at) = all.iter().position(names) {
            let name = all.remove(at);
            all.push(name);
        }
        let named = all.iter().enumerate().map(|(at, text)| format!(" v{at}={text}"));
        named.collect::<Vec<_>>().concat()
    }

    fn argument(&self, rng: &mut Rng) -> String {
        loop {
            let made = match rng.below(16) {
                0..=3 => self.word(rng),
                4..=6 => self.read(rng),
                7 => self.array(rng),
                8 | 9 => self.text(rng),
                10 => Self::constant_text(rng),
                11 => self.bits(rng),
                12 => self.symbol(rng),
                13 => self.typed(rng),
                14 => Some(immediate(rng)),
                _ => Some("$comm".to_owned() + rng.pick(&["", ":string"])),
            };
            if let Some(made) = made {
                return made;
            }
        }
    }

    fn user_mark(&self, rng: &mut Rng) -> &'static str {
        if self.ask_user || (self.user && rng.once_in(3)) { "u" } else { "" }
    }

    fn word(&self, rng: &mut Rng) -> Option<String> {
        let word = pick(&self.words, rng)?;
        let ty = match rng.below(8) {
            0 => "",
            1 => ":char",
            _ => return Some(format!("{word}:{}", rng.pick(&NUMBERS).0)),
        };
        Some(format!("{word}{ty}"))
    }

    /// A number in memory.
    fn read(&self, rng: &mut Rng) -> Option<String> {
        let (address, available) = pick(&self.memory, rng)?;
        let (ty, size) = rng.pick(&NUMBERS);
        let offset = rng.below((available.checked_sub(size)? + 1) as usize);
        let mark = self.user_mark(rng);
        // The offset may be decimal or hexadecimal.
        if rng.once_in(4) {
            return Some(format!("+{mark}{offset}({address}):{ty}"));
        }
        Some(format!("+{mark}{offset:#x}({address}):{ty}"))
    }

    fn array(&self, rng: &mut Rng) -> Option<String> {
        let (address, available) = pick(&self.memory, rng)?;
        let (ty, size) = if rng.once_in(5) { ("char", 1) } else { rng.pick(&NUMBERS) };
        let most = (available / size).min(16) as usize;
        let count = 1 + rng.below(most.max(1));
        (most > 0).then(|| format!("+{}0({address}):{ty}[{count}]", self.user_mark(rng)))
    }

    fn text(&self, rng: &mut Rng) -> Option<String> {
        let address = pick(&self.texts, rng)?;
        let offset = rng.pick(&[0, 0, 1, 3]);
        Some(match (self.ask_user, rng.once_in(2)) {
            (true, true) => format!("+{offset}({address}):ustring"),
            (true, false) => format!("+u{offset}({address}):string"),
            (false, _) => format!("+{offset}({address}):string"),
        })
    }

    fn constant_text(rng: &mut Rng) -> Option<String> {
        let words = ["\\\"\"", "\\\"a\"", "\\\"some-text\""];
        rng.once_in(2).then(|| rng.pick(&words).to_owned() + ":string")
    }

    fn bits(&self, rng: &mut Rng) -> Option<String> {
        let container = rng.pick(&[8_u32, 16, 32, 64]);
        let width = 1 + rng.below(container as usize - 1) as u32;
        let offset = rng.below((container - width + 1) as usize);
        let of = format!("b{width}@{offset}/{container}");
        if rng.once_in(2) {
            return Some(format!("{}:{of}", pick(&self.words, rng)?));
        }
        let (address, available) = pick(&self.memory, rng)?;
        (available >= container / 8).then(|| format!("+{}0({address}):{of}", self.user_mark(rng)))
    }

    fn symbol(&self, rng: &mut Rng) -> Option<String> {
        let address = pick(&self.code, rng)?;
        Some(format!("{address}:{}", rng.pick(&["symbol", "symstr"])))
    }

    fn typed(&self, rng: &mut Rng) -> Option<String> {
        let name = pick(&self.typed, rng)?;
        Some(if rng.once_in(3) { format!("{name}:{}", rng.pick(&NUMBERS).0) } else { name })
    }
}

fn pick<T: Clone>(from: &[T], rng: &mut Rng) -> Option<T> {
    (!from.is_empty()).then(|| from[rng.below(from.len())].clone())
}

fn immediate(rng: &mut Rng) -> String {
    let value = [0, 1, -1, 255, 65_536, i64::MAX, i64::MIN][rng.below(7)];
    let ty = rng.pick(&["", ":u8", ":s8", ":s32", ":x64", ":u64", ":s64"]);
    format!("\\{value}{ty}")
}
