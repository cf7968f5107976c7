//! The kernel's symbols, from `/proc/kallsyms`: from addresses to names and back.
//!
//! An address resolves to a name as `%pS` prints it, a name to its addresses, and a function to the range that the
//! kernel's filter uses.
//!
//! The kernel's own table has no sizes either: a symbol ends where the next one starts (`get_symbol_pos()`,
//! kernel/kallsyms.c). Of several names for one address, the first in the table counts. Each module is searched
//! separately (`find_kallsyms_symbol()`, kernel/module/kallsyms.c). Names are in one arena and entries take 16 bytes,
//! so the whole table of a distribution's kernel takes a few megabytes.

use std::fmt;
use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::ops::Range;
use std::path::Path;

use super::Error;

/// The kernel's symbols by address and by name.
#[derive(Debug, Default)]
pub struct Symbols {
    /// Symbols of the kernel image, by address; symbols of equal address in the kernel's order.
    core: Vec<Entry>,
    /// Symbols of modules, BPF programs and trampolines, by address.
    extra: Vec<Entry>,
    /// Addresses of functions in modules, in order.
    functions: Vec<u64>,
    /// Address ranges of the kernel image (`is_ksym_addr()`).
    image: [Range<u64>; 2],
    /// Names of modules; an entry stores the index plus one, 0 means the kernel image.
    modules: Vec<String>,
    /// All names, concatenated.
    names: Vec<u8>,
    /// For each page of the image, how many core symbols start before it: a lookup searches only one page's.
    pages: Vec<u32>,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    address: u64,
    name: u32,
    length: u16,
    module: u16,
}

/// The symbol at an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Symbol<'a> {
    /// The symbol's name.
    pub name: &'a str,
    /// Distance in bytes from the symbol's first byte.
    pub offset: u64,
    /// Bytes up to the next symbol. None if `/proc/kallsyms` does not reveal them (BPF programs).
    pub size: Option<u64>,
    /// The module it belongs to; None for the kernel image.
    pub module: Option<&'a str>,
}

/// As `%pS` prints it: `name+0xoffset/0xsize [module]`, with `?` for an unknown size.
impl fmt::Display for Symbol<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}+{:#x}/", self.name, self.offset)?;
        match self.size {
            Some(size) => write!(f, "{size:#x}")?,
            None => f.write_str("?")?,
        }
        match self.module {
            Some(module) => write!(f, " [{module}]"),
            None => Ok(()),
        }
    }
}

impl Symbols {
    /// Reads `/proc/kallsyms`.
    ///
    /// # Errors
    /// If it cannot be read; [`Error::Withheld`] if the kernel withholds the addresses from this process
    /// (`kernel.kptr_restrict`, `CAP_SYSLOG`).
    pub fn running() -> Result<Self, Error> {
        Self::read(Path::new("/proc/kallsyms"))
    }

    /// Reads a file in the format of `/proc/kallsyms`.
    ///
    /// # Errors
    /// As [`Symbols::running`].
    pub fn read(path: &Path) -> Result<Self, Error> {
        let shown = || path.display().to_string();
        let text = super::read_whole(path, 8 << 20).map_err(|error| Error::io(shown(), error))?;
        Self::parse(&text).map_err(|problem| match problem {
            Problem::Zero => Error::Withheld { fact: "kernel addresses", why: why_zero() },
            Problem::Line(number) => Error::form(shown(), format!("line {number} is no symbol")),
            Problem::Empty => Error::form(shown(), "no symbols"),
        })
    }

    /// All symbols: addresses and names.
    pub fn iter(&self) -> impl Iterator<Item = (u64, &str)> {
        self.core.iter().chain(&self.extra).filter_map(|entry| {
            let name = self.names.get(entry.name as usize..)?.get(..usize::from(entry.length))?;
            Some((entry.address, std::str::from_utf8(name).ok()?))
        })
    }

    fn parse(text: &[u8]) -> Result<Self, Problem> {
        let mut symbols = Self { names: Vec::with_capacity(text.len() / 2), ..Self::default() };
        symbols.core.reserve(text.len() / 40);
        let mut module: (&[u8], u16) = (b"", 0);
        let mut any_address = false;
        let mut number = 0;
        let mut rest = text;
        while !rest.is_empty() {
            number += 1;
            let Some(line) = Line::split(&mut rest) else { return Err(Problem::Line(number)) };
            any_address |= line.address != 0;
            if line.module != module.0 {
                module = (line.module, symbols.module_index(line.module));
            }
            if module.1 != 0 {
                if is_mapping_symbol(line.name) || line.module.starts_with(BUILTIN) {
                    continue;
                }
                if matches!(line.kind, b't' | b'T' | b'w' | b'W') {
                    symbols.functions.push(line.address);
                }
            }
            let at = symbols.names.len() as u32;
            symbols.names.extend_from_slice(line.name);
            let length = line.name.len() as u16;
            let entry = Entry { address: line.address, name: at, length, module: module.1 };
            if module.1 == 0 { symbols.core.push(entry) } else { symbols.extra.push(entry) }
        }
        if symbols.core.is_empty() && symbols.extra.is_empty() {
            return Err(Problem::Empty);
        }
        if !any_address {
            return Err(Problem::Zero);
        }
        symbols.core.sort_by_key(|entry| entry.address);
        symbols.extra.sort_by_key(|entry| entry.address);
        symbols.functions.sort_unstable();
        symbols.image = symbols.image_ranges();
        symbols.pages = symbols.page_starts();
        Ok(symbols)
    }

    /// For each page of the image's first range, the number of core symbols that start before it.
    fn page_starts(&self) -> Vec<u32> {
        let Range { start, end } = self.image[0];
        let pages = end.saturating_sub(start).div_ceil(PAGE).min(PAGES_MAX);
        let mut at = 0;
        (0..=pages)
            .map(|page| {
                while self.core.get(at).is_some_and(|entry| entry.address < start.saturating_add(page * PAGE))
                {
                    at += 1;
                }
                at as u32
            })
            .collect()
    }

    /// The index that entries of this module store.
    fn module_index(&mut self, name: &[u8]) -> u16 {
        if name.is_empty() {
            return 0;
        }
        let name = String::from_utf8_lossy(name);
        let known = self.modules.iter().position(|module| *module == name);
        let at = known.unwrap_or_else(|| {
            self.modules.push(name.into_owned());
            self.modules.len() - 1
        });
        u16::try_from(at + 1).unwrap_or(u16::MAX)
    }

    /// The addresses that the kernel looks up in its own table: everything from `_stext` to `_end` if data symbols
    /// are included (`CONFIG_KALLSYMS_ALL`), else the text and the init text.
    fn image_ranges(&self) -> [Range<u64>; 2] {
        let at = |name: &str| self.addresses_in(&self.core, name).next();
        let first = self.core.first().map_or(0, |entry| entry.address);
        let last = self.core.last().map_or(0, |entry| entry.address);
        let low = at("_stext").or_else(|| at("_text")).unwrap_or(first);
        let high = at("_end").or_else(|| at("_etext")).unwrap_or(last);
        let init = match (at("_sinittext"), at("_einittext")) {
            (Some(low), Some(high)) => low..high,
            _ => 0..0,
        };
        [low..high, init]
    }

    /// The number of symbols; never 0.
    pub(crate) fn len(&self) -> usize {
        self.core.len() + self.extra.len()
    }

    /// The symbol that an address belongs to, as `%pS` finds it.
    pub fn lookup(&self, address: u64) -> Option<Symbol<'_>> {
        let (start, end) = self.bounds(address)?;
        Some(Symbol {
            name: self.name(start),
            offset: address - start.address,
            size: end.map(|end| end - start.address),
            module: self.module(start),
        })
    }

    /// All addresses of a name, in the kernel's order (lowest first, modules last). `module:name` selects a module's
    /// symbol.
    pub fn addresses(&self, name: &str) -> Vec<u64> {
        match name.split_once(':') {
            Some((module, name)) => self
                .extra
                .iter()
                .filter(|e| self.module(**e) == Some(module) && self.name(**e) == name)
                .map(|entry| entry.address)
                .collect(),
            None => self.addresses_in(&self.core, name).chain(self.addresses_in(&self.extra, name)).collect(),
        }
    }

    /// How many symbols have this name, in the kernel image and all modules or in one module.
    ///
    /// Without a module, BPF programs and the symbols that the kernel adds itself (trampolines, probes) are not
    /// counted, because they cannot be probed by name.
    pub fn count(&self, module: Option<&str>, name: &str) -> usize {
        let in_module = |entry: &&Entry| {
            let own = self.module(**entry).unwrap_or_default();
            module.map_or(own != "bpf" && !own.starts_with("__builtin__"), |module| own == module)
                && self.name(**entry) == name
        };
        let core = if module.is_none() { self.addresses_in(&self.core, name).count() } else { 0 };
        core + self.extra.iter().filter(in_module).count()
    }

    /// The modules that have a symbol of this name.
    pub fn modules_of(&self, name: &str) -> impl Iterator<Item = &str> {
        let own = self.extra.iter().filter(|entry| usize::from(entry.length) == name.len());
        own.filter(move |entry| self.name(**entry) == name).filter_map(|entry| self.module(*entry))
    }

    /// The function that a filter's `.function` operand names (`parse_pred()`, kernel/trace/trace_events_filter.c):
    /// the first address of a name, or a hexadecimal address anywhere in the function. None if the kernel reports
    /// "Function not found".
    #[cfg(any(test, feature = "internals"))]
    pub fn function(&self, operand: &str) -> Option<Range<u64>> {
        let address = match operand.strip_prefix("0x").or_else(|| operand.strip_prefix("0X")) {
            Some(digits) if digits.starts_with(|c: char| c.is_ascii_hexdigit()) => {
                u64::from_str_radix(digits, 16).ok()?
            }
            _ => *self.addresses(operand).first()?,
        };
        self.range(address)
    }

    /// The address range of the symbol that an address belongs to (`kallsyms_lookup_size_offset()`). None if there is
    /// no symbol or its end is unknown.
    pub fn range(&self, address: u64) -> Option<Range<u64>> {
        let (start, end) = self.bounds(address)?;
        let end = end?;
        (end > start.address).then_some(start.address..end)
    }

    fn addresses_in<'a>(&'a self, table: &'a [Entry], name: &'a str) -> impl Iterator<Item = u64> + 'a {
        let fits = move |e: &&Entry| {
            let start = e.name as usize;
            usize::from(e.length) == name.len()
                && self.names.get(start..start + name.len()) == Some(name.as_bytes())
        };
        table.iter().filter(fits).map(|entry| entry.address)
    }

    fn name(&self, entry: Entry) -> &str {
        let start = entry.name as usize;
        let name = self.names.get(start..start + usize::from(entry.length));
        name.and_then(|name| std::str::from_utf8(name).ok()).unwrap_or("?")
    }

    /// The name of an entry's module; None for the kernel image.
    fn module(&self, entry: Entry) -> Option<&str> {
        self.modules.get(usize::from(entry.module).checked_sub(1)?).map(String::as_str)
    }

    /// Like [`first_at_or_below`], for the kernel image.
    fn core_at_or_below(&self, address: u64) -> Option<usize> {
        let page = usize::try_from(address.checked_sub(self.image[0].start)? / PAGE).ok();
        match page.and_then(|page| Some((*self.pages.get(page)?, *self.pages.get(page + 1)?))) {
            Some((low, high)) => {
                // The symbol may start on an earlier page, with all others of its address.
                let (low, high) = (low as usize, high as usize);
                match first_at_or_below(self.core.get(low..high)?, address) {
                    Some(at) => Some(low + at),
                    None => first_at_or_below(self.core.get(..low)?, address),
                }
            }
            None => first_at_or_below(&self.core, address),
        }
    }

    /// The symbol that an address belongs to, and where it ends.
    fn bounds(&self, address: u64) -> Option<(Entry, Option<u64>)> {
        if self.image.iter().any(|range| range.contains(&address)) {
            let start = self.core_at_or_below(address)?;
            let entry = *self.core.get(start)?;
            let next = self.core.iter().skip(start).find(|e| e.address > entry.address);
            // After the last symbol, the kernel uses the end of the section.
            let end = next
                .map(|e| e.address)
                .or_else(|| self.image.iter().find(|range| range.contains(&address)).map(|range| range.end));
            return Some((entry, end));
        }
        let start = first_at_or_below(&self.extra, address)?;
        let entry = *self.extra.get(start)?;
        if self.module(entry) == Some("bpf") {
            // `/proc/kallsyms` does not show the end; a program's image is at most this long.
            return (address - entry.address < BPF_IMAGE_MAX).then_some((entry, None));
        }
        let next = self
            .extra
            .iter()
            .skip(start)
            .find(|e| e.module == entry.module && e.address > entry.address)
            .map_or(u64::MAX, |e| e.address);
        // A module's regions end at a page's end, but no file states which page. Between two functions there is no end of
        // a region. Elsewhere the symbol is assumed to end at the next symbol or at the end of the address's page,
        // whichever is first.
        let is_function = |address| self.functions.binary_search(&address).is_ok();
        let end = if is_function(entry.address) && is_function(next) {
            next
        } else {
            next.min((address | (PAGE - 1)).saturating_add(1))
        };
        let far = address - entry.address >= MODULE_SYMBOL_MAX;
        (!far && address < end).then_some((entry, Some(end)))
    }
}

const PAGE: u64 = 4096;
/// Maximum number of indexed pages of an image: 256 MB, more than a kernel takes.
const PAGES_MAX: u64 = 1 << 16;
/// Maximum assumed length of a function or object of a module: anything may follow its last symbol.
const MODULE_SYMBOL_MAX: u64 = 1 << 20;
/// More than the longest image that the JIT makes of a program of ordinary size.
const BPF_IMAGE_MAX: u64 = 1 << 20;

enum Problem {
    Zero,
    Line(usize),
    Empty,
}

/// The index of the first entry that has the greatest address not above this one.
fn first_at_or_below(table: &[Entry], address: u64) -> Option<usize> {
    let (last, before) =
        table.get(..table.partition_point(|entry| entry.address <= address))?.split_last()?;
    let lower = before.iter().rposition(|entry| entry.address != last.address);
    Some(lower.map_or(0, |lower| lower + 1))
}

/// The lowest address of a symbol of the kernel image, 0 where the kernel withholds addresses. Reads `/proc/kallsyms`
/// only up to the symbol, because the kernel takes about 40 ms to show all of it.
///
/// # Errors
/// If the file cannot be read.
pub fn lowest_address(name: &str) -> Result<Option<u64>, Error> {
    const PATH: &str = "/proc/kallsyms";
    let failed = |error| Error::io(PATH.to_owned(), error);
    first_address(BufReader::with_capacity(1 << 16, File::open(PATH).map_err(failed)?), name).map_err(failed)
}

/// The address of the first symbol with this name, in a text that is in order of addresses.
fn first_address(mut text: impl BufRead, name: &str) -> io::Result<Option<u64>> {
    let mut line = Vec::new();
    while text.read_until(b'\n', &mut line)? > 0 {
        let found = Line::split(&mut line.as_slice())
            .filter(|line| line.name == name.as_bytes() && line.module.is_empty())
            .map(|line| line.address);
        if found.is_some() {
            return Ok(found);
        }
        line.clear();
    }
    Ok(None)
}

/// One line: `ffffffff81000000 T name\t[module]`.
struct Line<'a> {
    address: u64,
    /// The type's letter.
    kind: u8,
    name: &'a [u8],
    /// Empty for the kernel image.
    module: &'a [u8],
}

impl<'a> Line<'a> {
    /// Splits the first line off the text; None if it is not a symbol. Reads each byte only once, because it handles
    /// every symbol of the kernel.
    fn split(text: &mut &'a [u8]) -> Option<Self> {
        let mut address = 0;
        let mut at = 0;
        loop {
            let digit = match *text.get(at)? {
                byte @ b'0'..=b'9' => byte - b'0',
                byte @ b'a'..=b'f' => byte - b'a' + 10,
                b' ' if at > 0 => break,
                _ => return None,
            };
            address = address << 4 | u64::from(digit);
            at += 1;
        }
        let kind = *text.get(at + 1)?;
        // The type's letter is between two blanks.
        if text.get(at + 2) != Some(&b' ') {
            return None;
        }
        let rest = text.get(at + 3..)?;
        let end = rest.iter().position(|byte| matches!(byte, b'\n' | b'\t')).unwrap_or(rest.len());
        let (name, mut behind) = rest.split_at_checked(end)?;
        let mut line = Self { address, kind, name, module: b"" };
        if behind.first() == Some(&b'\t') {
            let end = behind.iter().position(|byte| *byte == b'\n').unwrap_or(behind.len());
            line.module = behind.get(1..end)?.strip_prefix(b"[")?.strip_suffix(b"]")?;
            behind = behind.get(end..)?;
        }
        *text = behind.strip_prefix(b"\n").unwrap_or(behind);
        (!name.is_empty()).then_some(line)
    }
}

/// The prefix of the names that `/proc/kallsyms` shows in place of a module's for pages of code that the kernel made
/// itself. `%pS` does not find these pages (`kallsyms_lookup_buildid()`, kernel/kallsyms.c).
const BUILTIN: &[u8] = b"__builtin__";

/// Whether a module's symbol is one that the kernel does not look for (`is_mapping_symbol()`,
/// include/linux/module_symbol.h).
fn is_mapping_symbol(name: &[u8]) -> bool {
    [&b"$"[..], b".L", b"L0"].iter().any(|start| name.starts_with(start))
}

/// Why all addresses are zero, according to the kernel's settings.
fn why_zero() -> String {
    match std::fs::read_to_string("/proc/sys/kernel/kptr_restrict").as_deref().map(str::trim) {
        Ok("2") => "kernel.kptr_restrict is 2: hidden from everybody".into(),
        Ok("1") => "kernel.kptr_restrict is 1: shown only with CAP_SYSLOG".into(),
        Ok(_) => "hidden by the kernel (CAP_SYSLOG and perf_event_paranoid decide)".into(),
        Err(_) => "hidden by the kernel".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: &str = "0000000000000010 A percpu\n\
        ffffffff81000000 T first_alias\nffffffff81000000 T _stext\n\
        ffffffff81000040 t middle\nffffffff81000040 t again\nffffffff81000100 t twice\n\
        ffffffff81000180 t twice\nffffffff81000200 T _etext\n\
        ffffffffa0000000 t mod_a\t[snd]\nffffffffa0000080 t mod_b\t[snd]\n\
        ffffffffa0000800 t $x\t[snd]\nffffffffa0001000 t other\t[net]\nffffffffa0001f00 t over\t[net]\n\
        ffffffffa0002040 W last\t[net]\nffffffffa0002080 r data\t[net]\nffffffffa0300000 t bpf_prog_1_x\t[bpf]\n\
        ffffffffa0500000 t kprobe_insn_page\t[__builtin__kprobes]\n";

    fn small() -> Symbols {
        Symbols::parse(SMALL.as_bytes()).ok().unwrap()
    }

    #[test]
    fn addresses_read_as_the_kernel_prints_them() {
        let symbols = small();
        let shown = |address| symbols.lookup(address).map(|symbol| symbol.to_string());
        for (address, expected) in [
            (0xffff_ffff_8100_0000, Some("first_alias+0x0/0x40")),
            (0xffff_ffff_8100_003f, Some("first_alias+0x3f/0x40")),
            (0xffff_ffff_8100_0050, Some("middle+0x10/0xc0")),
            (0xffff_ffff_8100_01ff, Some("twice+0x7f/0x80")),
            (0xffff_ffff_8100_0200, None),
            (0x10, None),
            (0xffff_ffff_a000_0004, Some("mod_a+0x4/0x80 [snd]")),
            (0xffff_ffff_a000_0090, Some("mod_b+0x10/0xf80 [snd]")),
            (0xffff_ffff_a000_1001, Some("other+0x1/0xf00 [net]")),
            (0xffff_ffff_a000_2001, Some("over+0x101/0x140 [net]")),
            (0xffff_ffff_a000_2041, Some("last+0x1/0x40 [net]")),
            (0xffff_ffff_a000_2090, Some("data+0x10/0xf80 [net]")),
            (0xffff_ffff_a030_0001, Some("bpf_prog_1_x+0x1/? [bpf]")),
            (0xffff_ffff_a050_0008, None),
            (0xffff_ffff_b000_0000, None),
        ] {
            assert_eq!(shown(address).as_deref(), expected, "{address:#x}");
        }
    }

    #[test]
    fn names_give_addresses_and_ranges() {
        let symbols = small();
        assert_eq!(symbols.addresses("twice"), [0xffff_ffff_8100_0100, 0xffff_ffff_8100_0180]);
        assert_eq!(symbols.addresses("snd:mod_b"), [0xffff_ffff_a000_0080]);
        assert!(symbols.addresses("net:mod_b").is_empty());
        assert_eq!((symbols.count(None, "twice"), symbols.count(None, "mod_a")), (2, 1));
        assert_eq!((symbols.count(Some("snd"), "mod_a"), symbols.count(Some("snd"), "twice")), (1, 0));
        assert_eq!((symbols.count(None, "bpf_prog_1_x"), symbols.count(None, "none")), (0, 0));
        assert_eq!(symbols.function("twice"), Some(0xffff_ffff_8100_0100..0xffff_ffff_8100_0180));
        assert_eq!(
            symbols.function("0xffffffff81000050"),
            Some(0xffff_ffff_8100_0040..0xffff_ffff_8100_0100)
        );
        assert_eq!(symbols.function("nothing"), None);
        assert_eq!(symbols.function("bpf_prog_1_x"), None);
    }

    #[test]
    fn the_first_address_of_a_name_needs_no_table() {
        let first = |name| first_address(SMALL.as_bytes(), name).unwrap();
        assert_eq!(first("twice"), Some(0xffff_ffff_8100_0100));
        assert_eq!(first("twic"), None);
        assert_eq!(first("mod_a"), None, "a module's symbol");
        let symbols = small();
        for name in ["first_alias", "middle", "_etext"] {
            assert_eq!(first(name), symbols.addresses(name).into_iter().min());
        }
    }

    #[test]
    fn hidden_addresses_and_invalid_lines_are_distinguished() {
        assert!(matches!(
            Symbols::parse(b"0000000000000000 T a\n0000000000000000 t b\n"),
            Err(Problem::Zero)
        ));
        assert!(matches!(Symbols::parse(b"ffffffff81000000 T a\nnonsense\n"), Err(Problem::Line(2))));
        assert!(matches!(Symbols::parse(b""), Err(Problem::Empty)));
    }
}
