//! The running kernel as the other rooms want to see it, each part read when it is first asked for.

use std::sync::OnceLock;

use super::pages;
use crate::{
    attach,
    kernel::{
        Answer, Btf, Error, Symbols, Tracefs, filter_parser, preemption,
        syscalls::{Numbers, Registers},
    },
    lang::{
        filter::{Dialect, Feature},
        inject,
    },
    plan::resolve::ResolveEnv,
    render::{KernelFacts, KernelTexts, Member, Pointers, RenderEnv, Symbol, hz, jiffies, version_of},
};

/// Variables of eight bytes that print fmts make a page's address of, set once while the kernel boots. Only kernels with
/// `KALLSYMS_ALL` tell where they are; without, the first can be learned.
const VARIABLES: [&str; 2] = ["vmemmap_base", "memstart_addr"];

/// Facts of the running kernel.
pub struct Facts {
    /// Its tracefs.
    pub tracefs: Tracefs,
    btf: OnceLock<Option<Btf>>,
    symbols: OnceLock<Option<Symbols>>,
    numbers: OnceLock<Option<Numbers>>,
    texts: OnceLock<KernelTexts>,
    loose_end: OnceLock<Answer>,
    pages: OnceLock<Option<u64>>,
    /// Numbers of CPUs that can ever be on, plus one for the highest.
    cpus: u32,
    version: (u32, u32),
    preemption: OnceLock<String>,
    hashes: OnceLock<Option<attach::Hashes>>,
    hashes_pointers: bool,
}

impl std::fmt::Debug for Facts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Facts")
            .field("cpus", &self.cpus)
            .field("version", &self.version)
            .finish_non_exhaustive()
    }
}

impl Facts {
    /// Opens the running kernel's tracefs; everything else waits.
    ///
    /// # Errors
    /// When there is no tracefs to be had, with the reason.
    pub fn running() -> Result<Self, Error> {
        Ok(Self::of(Tracefs::open()?))
    }

    /// The same kernel looked at anew, for symbols and types come and go with modules.
    ///
    /// # Errors
    /// When there are no descriptors left.
    pub fn anew(&self) -> Result<Self, Error> {
        let fresh = Self::of(self.tracefs.try_clone()?);
        if let Some(pages) = self.pages.get() {
            let _ = fresh.pages.set(*pages);
        }
        if let Some(answer) = self.loose_end.get() {
            let _ = fresh.loose_end.set(answer.clone());
        }
        Ok(fresh)
    }

    fn of(tracefs: Tracefs) -> Self {
        let uname = rustix::system::uname();
        Self {
            tracefs,
            btf: OnceLock::new(),
            symbols: OnceLock::new(),
            numbers: OnceLock::new(),
            texts: OnceLock::new(),
            loose_end: OnceLock::new(),
            pages: OnceLock::new(),
            cpus: possible_cpus(),
            version: version_of(uname.release().to_str().unwrap_or_default()),
            preemption: OnceLock::new(),
            hashes: OnceLock::new(),
            hashes_pointers: hashes_pointers(&std::fs::read_to_string("/proc/cmdline").unwrap_or_default()),
        }
    }

    /// The kernel's types; None where it shows none.
    pub fn btf(&self) -> Option<&Btf> {
        self.btf.get_or_init(|| Btf::running().ok().flatten()).as_ref()
    }

    /// The kernel's symbols; None where their addresses are withheld.
    pub fn symbols(&self) -> Option<&Symbols> {
        self.symbols.get_or_init(|| Symbols::running().ok()).as_ref()
    }

    /// The number of a syscall event; None when it cannot be told.
    pub fn syscall_number(&self, event: &str) -> Option<u32> {
        let numbers = self.numbers.get_or_init(|| Numbers::new(self.btf()?).ok()).as_ref()?;
        numbers.of(&self.tracefs, event).ok().flatten()
    }

    /// Where system calls keep number and arguments.
    pub fn registers(&self) -> Option<Registers> {
        Registers::find(self.btf()?).ok().flatten()
    }

    /// Where the page descriptors begin, learned from hits; None when that fails.
    fn pages(&self) -> Option<u64> {
        *self.pages.get_or_init(|| {
            let base = pages::base(self);
            tracing::debug!(?base, "where the page descriptors begin");
            base.ok()
        })
    }

    /// One more than the highest number of a CPU that can ever be on.
    pub fn cpus(&self) -> u32 {
        self.cpus
    }

    /// How the kernel is preempted, as headers have it.
    pub fn preemption(&self) -> &str {
        self.preemption.get_or_init(|| preemption(self.version))
    }

    /// Whether the kernel shows hashes of pointers where it is not told to show them as they are.
    pub fn hashes_pointers(&self) -> bool {
        self.hashes_pointers
    }

    /// Version of the kernel, major and minor.
    pub fn version(&self) -> (u32, u32) {
        self.version
    }
}

/// What the kernel's command line says of pointers; the second word is of 6.17 and later.
fn hashes_pointers(line: &str) -> bool {
    !line.split_whitespace().any(|word| word == "no_hash_pointers" || word == "hash_pointers=never")
}

/// `nr_cpu_ids`, from the list of possible CPUs (`0-3,8`).
fn possible_cpus() -> u32 {
    let list = std::fs::read_to_string("/sys/devices/system/cpu/possible").unwrap_or_default();
    list.trim()
        .rsplit(['-', ','])
        .next()
        .and_then(|last| last.parse::<u32>().ok())
        .map_or_else(|| std::thread::available_parallelism().map_or(1, |n| n.get() as u32), |last| last + 1)
}

impl ResolveEnv for Facts {
    /// The newest language on every kernel: filters are ours, and what they can say does not depend on it.
    fn dialect(&self) -> Dialect {
        Dialect::newest()
    }

    /// What this kernel calls meaningless we do not let pass either.
    fn loose_end(&self) -> Answer {
        let ask = || filter_parser::takes(&self.tracefs, Feature::LooseEnd.probe().filter);
        self.loose_end.get_or_init(ask).clone()
    }

    fn cpu_ids(&self) -> u32 {
        self.cpus
    }

    fn symbol_address(&self, name: &str) -> Option<u64> {
        self.symbols()?.addresses(name).into_iter().min()
    }

    fn symbol_extent(&self, address: u64) -> Option<(u64, u64)> {
        self.symbols()?.range(address).map(|range| (range.start, range.end))
    }
}

impl RenderEnv for Facts {
    fn symbol(&self, address: u64) -> Option<Symbol<'_>> {
        self.symbols()?.lookup(address)
    }

    fn kernel_text(&self, address: u64) -> Option<&[u8]> {
        let read = || self.tracefs.read("printk_formats").ok().flatten().unwrap_or_default();
        let text = self.texts.get_or_init(|| KernelTexts::parse(&read())).get(address);
        text.or_else(|| inject::pointed_text(address))
    }

    fn pointers(&self) -> Pointers {
        Pointers::Raw
    }

    fn hash(&self, address: u64) -> Option<u64> {
        let load =
            || attach::Hashes::new().inspect_err(|error| tracing::debug!("hashes of pointers: {error}")).ok();
        self.hashes.get_or_init(load).as_ref()?.of(address)
    }

    fn jiffies(&self) -> u64 {
        jiffies()
    }
}

impl KernelFacts for Facts {
    fn constant(&self, name: &str) -> Option<i64> {
        self.btf()?.constant(name)
    }

    fn type_size(&self, name: &str) -> Option<(u64, bool)> {
        self.btf()?.type_size(name)
    }

    fn member(&self, aggregate: &str, member: &str) -> Option<Member> {
        KernelFacts::member(self.btf()?, aggregate, member)
    }

    fn variable(&self, name: &str) -> Option<u64> {
        if !VARIABLES.contains(&name) {
            return None;
        }
        let told = self.symbols().and_then(|symbols| match symbols.addresses(name)[..] {
            [address] => {
                let word = attach::kernel_word(address);
                tracing::debug!(name, ?word, "a kernel variable");
                word.ok()
            }
            _ => None,
        });
        told.or_else(|| if name == "vmemmap_base" { self.pages() } else { None })
    }

    fn hz(&self) -> Option<u32> {
        Some(hz())
    }

    fn version(&self) -> (u32, u32) {
        self.version
    }
}
