//! Frozen records and the text that a kernel rendered for them. With them, tests compare the renderer with kernels
//! that the test machine does not run.
//!
//! The file `facts/KERNEL-ARCH.golden.txt` is in the directory of the kernel's facts. It has one entry per line, in
//! any order:
//!
//! ```text
//! variable NAME HEX
//! symbol ADDRESS NAME OFFSET SIZE
//! string ADDRESS TEXT
//! event SYSTEM:NAME RECORD
//! = TEXT
//! ```
//!
//! A line with `=` is the text of the event above it. The test `record::render_host` writes such a file when
//! `TRACER_GOLDEN` names it.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;

use anyhow::{Context, Result, bail};
use tracer_user::render::{KernelFacts, Member, Pointers, RenderEnv, Symbol};

use super::facts::Facts;

/// Records, and the symbols, strings and variables that their rendering needs.
#[derive(Debug, Default)]
pub struct Golden {
    /// Values of kernel variables.
    pub variables: BTreeMap<String, u64>,
    symbols: BTreeMap<u64, (String, u64, u64)>,
    strings: BTreeMap<u64, String>,
    /// `system:name`, the record's bytes and its text.
    pub records: Vec<(String, Vec<u8>, String)>,
}

impl Golden {
    /// Reads a golden file.
    ///
    /// # Errors
    /// When it cannot be read or is not of this form.
    pub fn read(path: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
        let mut golden = Self::default();
        let number = |text: &str| u64::from_str_radix(text, 16);
        for line in text.lines() {
            if let Some(text) = line.strip_prefix("= ") {
                text.clone_into(&mut golden.records.last_mut().context("a text without a record")?.2);
                continue;
            }
            match line.splitn(3, ' ').collect::<Vec<_>>().as_slice() {
                ["variable", name, value] => {
                    golden.variables.insert((*name).to_owned(), number(value)?);
                }
                ["symbol", address, rest] => {
                    let [name, offset, size] = rest.split(' ').collect::<Vec<_>>()[..] else {
                        bail!("{line}")
                    };
                    golden
                        .symbols
                        .insert(number(address)?, (name.to_owned(), number(offset)?, number(size)?));
                }
                ["string", address, text] => {
                    golden.strings.insert(number(address)?, (*text).to_owned());
                }
                ["event", name, bytes] => {
                    let bytes: Result<Vec<u8>, _> = (0..bytes.len() / 2)
                        .map(|i| u8::from_str_radix(&bytes[2 * i..2 * i + 2], 16))
                        .collect();
                    golden.records.push(((*name).to_owned(), bytes?, String::new()));
                }
                _ => bail!("not of this form: {line}"),
            }
        }
        Ok(golden)
    }

    /// The text of the file.
    pub fn write(&self) -> String {
        let mut text = String::new();
        for (name, value) in &self.variables {
            let _ = writeln!(text, "variable {name} {value:x}");
        }
        for (address, (name, offset, size)) in &self.symbols {
            let _ = writeln!(text, "symbol {address:x} {name} {offset:x} {size:x}");
        }
        for (address, string) in &self.strings {
            let _ = writeln!(text, "string {address:x} {string}");
        }
        for (name, bytes, shown) in &self.records {
            let _ = write!(text, "event {name} ");
            for byte in bytes {
                let _ = write!(text, "{byte:02x}");
            }
            let _ = writeln!(text, "\n= {shown}");
        }
        text
    }
}

impl RenderEnv for Golden {
    fn symbol(&self, address: u64) -> Option<Symbol<'_>> {
        let (name, offset, size) = self.symbols.get(&address)?;
        Some(Symbol { name, offset: *offset, size: Some(*size), module: None })
    }

    fn kernel_text(&self, address: u64) -> Option<&[u8]> {
        self.strings.get(&address).map(String::as_bytes)
    }

    fn pointers(&self) -> Pointers {
        Pointers::Raw
    }
}

/// Frozen facts with the variables of a golden file.
pub struct WithVariables<'a>(pub &'a Facts, pub &'a Golden);

impl KernelFacts for WithVariables<'_> {
    fn constant(&self, name: &str) -> Option<i64> {
        self.0.constant(name)
    }

    fn type_size(&self, name: &str) -> Option<(u64, bool)> {
        self.0.type_size(name)
    }

    fn member(&self, aggregate: &str, member: &str) -> Option<Member> {
        self.0.member(aggregate, member)
    }

    fn variable(&self, name: &str) -> Option<u64> {
        self.1.variables.get(name).copied()
    }

    fn hz(&self) -> Option<u32> {
        self.0.hz()
    }

    fn version(&self) -> (u32, u32) {
        self.0.version()
    }
}

/// Forwards look-ups and keeps the answers for a golden file.
pub struct Keeper<'a> {
    env: &'a dyn RenderEnv,
    golden: RefCell<Golden>,
}

impl<'a> Keeper<'a> {
    /// Creates a keeper that forwards to `env`.
    pub fn new(env: &'a dyn RenderEnv) -> Self {
        Self { env, golden: RefCell::default() }
    }

    /// The answers so far.
    pub fn golden(self) -> Golden {
        self.golden.into_inner()
    }
}

impl RenderEnv for Keeper<'_> {
    fn symbol(&self, address: u64) -> Option<Symbol<'_>> {
        let symbol = self.env.symbol(address)?;
        let golden = (symbol.name.to_owned(), symbol.offset, symbol.size.unwrap_or(0));
        self.golden.borrow_mut().symbols.insert(address, golden);
        Some(symbol)
    }

    fn kernel_text(&self, address: u64) -> Option<&[u8]> {
        let text = self.env.kernel_text(address)?;
        self.golden.borrow_mut().strings.insert(address, String::from_utf8_lossy(text).into_owned());
        Some(text)
    }

    fn pointers(&self) -> Pointers {
        self.env.pointers()
    }

    fn jiffies(&self) -> u64 {
        self.env.jiffies()
    }
}
