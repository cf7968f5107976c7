//! The formats and other rendering facts of a kernel, frozen in a file, so that tests of all its events run on any
//! machine.
//!
//! The file `facts/KERNEL-ARCH.txt.zst` is compressed text. Lines that begin with `# ` are this module's:
//!
//! ```text
//! # tracer facts 1
//! # kernel 6.18.44 x86_64
//! # hz 250
//! # constant NAME VALUE
//! # size TYPE BYTES SIGNED
//! # member AGGREGATE MEMBER BIT_OFFSET BITS SIGNED
//! # event SYSTEM
//! ```
//!
//! The text of the event's `format` file follows each `# event`. Constants, sizes and members are those that a print
//! fmt requires and that the kernel's BTF contains. [`Facts::freeze`] writes the text for the running kernel. The
//! binary `freeze-facts` calls it, on the host or in a virtual machine.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use tracer_user::event::Format;
use tracer_user::kernel::version_of;
use tracer_user::render::{KernelFacts, Member, Printer};

use crate::host;

/// First line of the file.
const MAGIC: &str = "# tracer facts 1";

/// Returns the directory of the frozen kernels.
///
/// # Errors
/// As [`host::tree`].
pub fn dir() -> Result<PathBuf> {
    Ok(host::tree()?.join("tests/facts"))
}

/// A kernel's formats and facts.
#[derive(Debug, Default)]
pub struct Facts {
    /// Release, as `uname -r`.
    pub release: String,
    /// Architecture, as `uname -m`.
    pub arch: String,
    /// All formats in the kernel's order.
    pub formats: Vec<Format>,
    hz: Option<u32>,
    constants: BTreeMap<String, i64>,
    sizes: BTreeMap<String, (u64, bool)>,
    members: BTreeMap<(String, String), Member>,
}

impl Facts {
    /// Reads a frozen file.
    ///
    /// # Errors
    /// When the file cannot be read or is not of this form.
    pub fn read(path: &Path) -> Result<Self> {
        let packed = fs::read(path).with_context(|| path.display().to_string())?;
        let text = zstd::decode_all(packed.as_slice()).with_context(|| path.display().to_string())?;
        Self::parse(std::str::from_utf8(&text)?).with_context(|| path.display().to_string())
    }

    /// All frozen kernels of the repository.
    ///
    /// # Errors
    /// As [`Facts::read`].
    pub fn all() -> Result<Vec<Self>> {
        let dir = dir()?;
        let mut paths: Vec<PathBuf> = fs::read_dir(&dir)
            .with_context(|| dir.display().to_string())?
            .filter_map(|entry| Some(entry.ok()?.path()))
            .filter(|path| path.to_string_lossy().ends_with(".txt.zst"))
            .collect();
        paths.sort();
        paths.iter().map(|path| Self::read(path)).collect()
    }

    /// Parses the text of the file.
    ///
    /// # Errors
    /// When it is not of this form, or a format cannot be parsed.
    pub fn parse(text: &str) -> Result<Self> {
        let mut facts = Self::default();
        let mut system: Option<&str> = None;
        let mut format = String::new();
        let mut lines = text.split_inclusive('\n');
        if lines.next().map(str::trim_end) != Some(MAGIC) {
            bail!("no facts of this version");
        }
        for line in lines {
            let Some(fact) = line.strip_prefix("# ") else {
                format.push_str(line);
                continue;
            };
            if let Some(system) = system.take() {
                facts.formats.push(Format::parse(system, &format)?);
            }
            format.clear();
            let words: Vec<&str> = fact.split_whitespace().collect();
            match words.as_slice() {
                ["kernel", release, arch] => {
                    (*release).clone_into(&mut facts.release);
                    (*arch).clone_into(&mut facts.arch);
                }
                ["hz", hz] => facts.hz = Some(hz.parse()?),
                ["constant", name, value] => {
                    facts.constants.insert((*name).to_owned(), value.parse()?);
                }
                ["size", name, bytes, signed] => {
                    facts.sizes.insert((*name).to_owned(), (bytes.parse()?, *signed == "1"));
                }
                ["member", aggregate, member, bit_offset, bits, signed] => {
                    let place = Member {
                        bit_offset: bit_offset.parse()?,
                        bits: bits.parse()?,
                        signed: *signed == "1",
                    };
                    facts.members.insert(((*aggregate).to_owned(), (*member).to_owned()), place);
                }
                ["event", name] => system = Some(name),
                _ => bail!("not a fact: {line}"),
            }
        }
        if let Some(system) = system {
            facts.formats.push(Format::parse(system, &format)?);
        }
        Ok(facts)
    }

    /// The text for the running kernel: all formats under `events` of a tracefs mount, and the answers of `ask` to
    /// the queries of their compilation.
    ///
    /// # Errors
    /// When a format cannot be read or parsed.
    pub fn freeze(tracefs: &Path, ask: &dyn KernelFacts) -> Result<String> {
        let recording = RecordingFacts { ask, facts: RefCell::default() };
        let mut events = String::new();
        let root = tracefs.join("events");
        for system in sorted(&root)? {
            for event in sorted(&system)? {
                let path = event.join("format");
                if !path.exists() {
                    continue;
                }
                let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
                let system = system.file_name().unwrap_or_default().to_string_lossy();
                let format = Format::parse(&system, &text)?;
                Printer::compile(&format, &recording);
                writeln!(events, "# event {system}")?;
                events.push_str(&text);
                if !events.ends_with('\n') {
                    events.push('\n');
                }
            }
        }
        let name = rustix::system::uname();
        let (release, arch) = (name.release().to_string_lossy(), name.machine().to_string_lossy());
        let mut text = format!("{MAGIC}\n# kernel {release} {arch}\n");
        let facts = recording.facts.into_inner();
        if let Some(hz) = facts.hz {
            writeln!(text, "# hz {hz}")?;
        }
        for (name, value) in &facts.constants {
            writeln!(text, "# constant {name} {value}")?;
        }
        for (name, (bytes, signed)) in &facts.sizes {
            writeln!(text, "# size {name} {bytes} {}", u8::from(*signed))?;
        }
        for ((aggregate, name), Member { bit_offset, bits, signed }) in &facts.members {
            writeln!(text, "# member {aggregate} {name} {bit_offset} {bits} {}", u8::from(*signed))?;
        }
        text.push_str(&events);
        Ok(text)
    }

    /// A format by `system:name`.
    pub fn format(&self, full_name: &str) -> Option<&Format> {
        let (system, name) = full_name.split_once(':')?;
        self.formats.iter().find(|format| format.system == system && format.name == name)
    }
}

fn sorted(dir: &Path) -> Result<Vec<PathBuf>> {
    let mut paths: Vec<PathBuf> = fs::read_dir(dir)
        .with_context(|| dir.display().to_string())?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.is_dir())
        .collect();
    paths.sort();
    Ok(paths)
}

impl KernelFacts for Facts {
    fn constant(&self, name: &str) -> Option<i64> {
        self.constants.get(name).copied()
    }

    fn type_size(&self, name: &str) -> Option<(u64, bool)> {
        self.sizes.get(name).copied()
    }

    fn member(&self, aggregate: &str, member: &str) -> Option<Member> {
        self.members.get(&(aggregate.to_owned(), member.to_owned())).copied()
    }

    fn hz(&self) -> Option<u32> {
        self.hz
    }

    fn version(&self) -> (u32, u32) {
        version_of(&self.release)
    }
}

/// Forwards queries and keeps the answers.
struct RecordingFacts<'a> {
    ask: &'a dyn KernelFacts,
    facts: RefCell<Facts>,
}

impl KernelFacts for RecordingFacts<'_> {
    fn constant(&self, name: &str) -> Option<i64> {
        let value = self.ask.constant(name)?;
        self.facts.borrow_mut().constants.insert(name.to_owned(), value);
        Some(value)
    }

    fn type_size(&self, name: &str) -> Option<(u64, bool)> {
        let size = self.ask.type_size(name)?;
        self.facts.borrow_mut().sizes.insert(name.to_owned(), size);
        Some(size)
    }

    fn member(&self, aggregate: &str, member: &str) -> Option<Member> {
        let place = self.ask.member(aggregate, member)?;
        self.facts.borrow_mut().members.insert((aggregate.to_owned(), member.to_owned()), place);
        Some(place)
    }

    fn hz(&self) -> Option<u32> {
        self.facts.borrow_mut().hz = self.ask.hz();
        self.ask.hz()
    }

    fn version(&self) -> (u32, u32) {
        self.ask.version()
    }
}
