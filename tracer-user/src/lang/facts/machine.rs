//! Facts of the running kernel from kallsyms, BTF, tracefs and the file system, each read on first use.
//!
//! Some facts are visible only in the kernel's text: whether an address is inside an instruction, and which functions
//! must not be probed if the kernel's lists are unreadable. A caller can supply a check by the kernel
//! ([`Machine::with_probe_check`]). Without it, such errors appear when the probe is attached.

use std::collections::HashSet;
use std::fmt;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use object::ReadCache;
use rustix::io::Errno;

use super::types::Types;
use super::{Arch, Facts, FileFact, FileQuery, FileRequest, Files, Found, Language, Spot, elf};
use crate::event::{Format, Glob};
use crate::kernel::btf::{BitMember, Shape, Signature};
use crate::kernel::opened::OpenedFile;
use crate::kernel::{self, Btf, Change, Symbols, Tracefs};
use crate::lang::filter::{self, Dialect, FilterError};
use crate::sys::cpus::Cpus;

/// Checks a filter against an event. A higher layer supplies it, because the check needs more than the syntax.
pub type FilterCheck = Box<dyn Fn(&Format, &[u8]) -> Result<(), FilterError> + Send + Sync>;

/// Size in bytes of the instruction before a function's `fentry` call on kernels with indirect branch tracking.
const ENDBR: u64 = 4;

/// The running kernel.
pub struct Machine<'a> {
    language: Language,
    types: Types<'a>,
    tracefs: Option<&'a Tracefs>,
    filter: FilterCheck,
    cpus: u32,
    symbols: OnceLock<Option<Symbols>>,
    given: Option<GivenSymbols<'a>>,
    sites: Arc<OnceLock<Option<Sites>>>,
    events: Option<EventCheck>,
    made: Option<MadeEvents>,
    probes: Option<ProbeCheck>,
    files: Option<&'a Files>,
}

/// Supplies symbols on first use; `None` if their addresses are withheld.
pub(super) type GivenSymbols<'a> = Box<dyn Fn() -> Option<&'a Symbols> + Send + Sync + 'a>;

/// Whether an event of this system and name exists.
pub type EventCheck = Box<dyn Fn(&str, &str) -> bool + Send + Sync>;

/// Finds events unknown to the kernel, by system and name.
pub type MadeEvents = Box<dyn Fn(&str, &str) -> Option<Format> + Send + Sync>;

/// Whether the kernel itself accepts a probe on an instruction.
pub type ProbeCheck = Box<dyn Fn(u64) -> Result<(), Errno> + Send + Sync>;

/// Locations where the kernel's function tracer can attach.
#[derive(Debug)]
pub struct Sites {
    names: HashSet<String>,
    /// Empty on kernels without this list (before 6.5).
    addresses: Vec<u64>,
}

impl<'a> Machine<'a> {
    /// Facts of this kernel for our own language. Checks only the syntax of filters.
    pub fn running(btf: Option<&'a Btf>, tracefs: Option<&'a Tracefs>) -> Self {
        Self {
            language: Language::full(),
            types: Types::new(btf),
            tracefs,
            filter: Box::new(|_, text| filter::parse(text, &Dialect::newest()).map(|_| ())),
            cpus: Cpus::possible().map_or(1, Cpus::ids),
            symbols: OnceLock::new(),
            given: None,
            sites: Arc::default(),
            events: None,
            made: None,
            probes: None,
            files: None,
        }
    }

    /// Looks up files in `files` instead of opening them.
    #[must_use]
    pub fn with_files(mut self, files: &'a Files) -> Self {
        self.files = Some(files);
        self
    }

    /// Uses the language of another kernel.
    #[must_use]
    pub fn with_language(mut self, language: Language) -> Self {
        self.language = language;
        self
    }

    /// Replaces the check of filters.
    #[must_use]
    pub fn with_filter_check(mut self, filter: FilterCheck) -> Self {
        self.filter = filter;
        self
    }

    /// Uses the symbols of the caller, who reads them on first use: that takes some 60 ms, and most lines that name
    /// files need none.
    #[must_use]
    pub fn with_symbols(mut self, symbols: GivenSymbols<'a>) -> Self {
        self.given = Some(symbols);
        self
    }

    /// Behaves like a kernel that shows no symbols.
    #[must_use]
    pub fn without_symbols(self) -> Self {
        let _ = self.symbols.set(None);
        self
    }

    /// Shares the cache of the function tracer's sites, which are slow to read.
    #[must_use]
    pub fn with_sites(mut self, sites: &Arc<OnceLock<Option<Sites>>>) -> Self {
        self.sites = Arc::clone(sites);
        self
    }

    /// Replaces the check for existing events.
    #[must_use]
    pub fn with_events(mut self, events: EventCheck) -> Self {
        self.events = Some(events);
        self
    }

    /// Adds events unknown to the kernel.
    #[must_use]
    pub fn with_made(mut self, made: MadeEvents) -> Self {
        self.made = Some(made);
        self
    }

    /// Adds a check by the kernel.
    #[must_use]
    pub fn with_probe_check(mut self, probes: ProbeCheck) -> Self {
        self.probes = Some(probes);
        self
    }

    fn symbols(&self) -> Option<&Symbols> {
        // The caller has tried to read them. Another attempt would fail in the same way, for each line anew.
        if let Some(given) = &self.given {
            return given();
        }
        self.symbols.get_or_init(|| Symbols::running().ok()).as_ref()
    }

    fn sites(&self) -> Option<&Sites> {
        let read = || {
            let tracefs = self.tracefs?;
            let names = tracefs.read("available_filter_functions").ok()??;
            let names = names.lines().filter_map(|line| line.split([' ', '\t']).next()).map(str::to_owned);
            let addresses = tracefs.read("available_filter_functions_addrs").ok().flatten();
            let addresses = addresses.unwrap_or_default();
            let hex = |line: &str| u64::from_str_radix(line.split(' ').next()?, 16).ok();
            let mut addresses: Vec<u64> = addresses.lines().filter_map(hex).collect();
            addresses.sort_unstable();
            Some(Sites { names: names.collect(), addresses })
        };
        self.sites.get_or_init(read).as_ref()
    }

    /// Whether a function has a site of the function tracer; `None` if unknown.
    fn has_site(&self, start: u64, end: u64) -> Option<bool> {
        let sites = &self.sites()?.addresses;
        let at = sites.partition_point(|site| *site < start);
        (!sites.is_empty()).then(|| sites.get(at).is_some_and(|site| *site < end))
    }

    /// Whether the function around an address must not be traced.
    ///
    /// A part that the compiler split off has no site of its own. For such a part the site of its function counts.
    fn is_notrace(&self, address: u64) -> bool {
        let Some(symbols) = self.symbols() else { return false };
        let is_bare = |address| {
            let range = symbols.range(address)?;
            self.has_site(range.start, range.end).map(|has| !has)
        };
        if is_bare(address) != Some(true) {
            return false;
        }
        let name = symbols.lookup(address).map_or("", |symbol| symbol.name);
        let Some((base, _)) = name.split_once('.') else { return true };
        symbols.addresses(base).first().and_then(|base| is_bare(*base)).unwrap_or(true)
    }
}

impl fmt::Debug for Machine<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Machine").field("language", &self.language).finish_non_exhaustive()
    }
}

impl Facts for Machine<'_> {
    fn language(&self) -> Language {
        self.language
    }

    fn arch(&self) -> Arch {
        Arch::native()
    }

    fn possible_cpus(&self) -> u32 {
        self.cpus
    }

    fn address(&self, symbol: &str) -> Option<u64> {
        self.symbols()?.addresses(symbol).first().copied()
    }

    fn count(&self, module: Option<&str>, symbol: &str) -> usize {
        self.symbols().map_or(0, |symbols| symbols.count(module, symbol))
    }

    fn has_module(&self, name: &str) -> bool {
        // Built-in parts of the kernel also have a directory, but without `initstate`.
        !name.contains('/') && Path::new("/sys/module").join(name).join("initstate").exists()
    }

    fn spot(&self, symbol: &str, offset: u64) -> Spot {
        let Some(start) = self.address(symbol) else { return Spot::Nowhere };
        let address = start.wrapping_add(offset);
        let Some(found) = self.symbols().and_then(|symbols| symbols.lookup(address)) else {
            return Spot::Nowhere;
        };
        let start = address - found.offset;
        let behind_endbr = self.arch() == Arch::X86_64
            && found.offset == ENDBR
            && self.has_site(start + ENDBR, start + ENDBR + 1) == Some(true);
        if found.offset == 0 || behind_endbr { Spot::Entry } else { Spot::Inside }
    }

    fn probe(&self, address: u64) -> Result<(), Errno> {
        let Some(symbols) = self.symbols() else { return Ok(()) };
        let Some(found) = symbols.lookup(address) else { return Err(Errno::NOENT) };
        let first = |name: &str| symbols.addresses(name).first().copied();
        let is_data = match (first("_stext"), first("_etext")) {
            (Some(start), Some(end)) => found.module.is_none() && !(start..end).contains(&address),
            _ => false,
        };
        if is_data || self.is_notrace(address) {
            return Err(Errno::INVAL);
        }
        self.probes.as_ref().map_or(Ok(()), |probes| probes(address))
    }

    fn is_traceable(&self, pattern: &str) -> bool {
        let is_glob = pattern.contains(['*', '?', '[', '\\']);
        match self.sites() {
            Some(sites) if is_glob => {
                let glob = Glob::new(pattern);
                sites.names.iter().any(|name| glob.matches(name))
            }
            Some(sites) => sites.names.contains(pattern),
            None => is_glob || self.count(None, pattern) > 0,
        }
    }

    fn tracepoint(&self, name: &str) -> Option<String> {
        // Since 6.7 a stub has the types; before, the function that calls the probes has them.
        let functions = [format!("__probestub_{name}"), format!("__traceiter_{name}")];
        functions.into_iter().find(|function| self.signature(function).is_some())
    }

    fn signature(&self, function: &str) -> Option<Signature> {
        self.types.signature(function, self.symbols())
    }

    fn structure(&self, name: &str) -> Option<u32> {
        self.types.structure(name)
    }

    fn shape(&self, id: u32) -> Option<Shape> {
        self.types.shape(id)
    }

    fn has_signed_chars(&self) -> bool {
        cfg!(target_arch = "x86_64") && !Change::UnsignedChars.is_in(kernel::version())
    }

    fn member(&self, id: u32, name: &str) -> Option<BitMember> {
        self.types.member(id, name)
    }

    fn members(&self, id: u32) -> Vec<String> {
        self.types.members(id)
    }

    fn offset_of(&self, name: &str, path: &str) -> Option<u32> {
        self.types.kernel()?.member(name, path).ok()?.map(|member| member.offset)
    }

    fn event(&self, system: &str, name: &str) -> Option<Format> {
        if system == "ftrace" {
            return None;
        }
        if let Some(made) = self.made.as_ref().and_then(|made| made(system, name)) {
            return Some(made);
        }
        let text = self.tracefs?.format(system, name).ok()??;
        Format::parse(system, &text).ok()
    }

    fn has_event(&self, system: &str, name: &str) -> bool {
        match &self.events {
            Some(events) => events(system, name),
            None => self.tracefs.is_some_and(|tracefs| matches!(tracefs.format(system, name), Ok(Some(_)))),
        }
    }

    fn file(&self, path: &[u8], symbol: Option<&str>) -> Result<FileFact, Errno> {
        let what = symbol.map_or(FileQuery::Identity, |symbol| FileQuery::Symbol(symbol.to_owned()));
        let wanted = FileRequest { path: path.to_vec(), what };
        let Found { file, symbol, .. } = match self.files {
            Some(files) => files.get(&wanted)?,
            None => Found::open(&wanted)?,
        };
        let identity = file.identity();
        Ok(FileFact {
            regular: file.is_regular(),
            identity: (identity.device, identity.inode),
            symbol,
            opened: Some(file),
        })
    }

    fn file_symbols(&self, path: &[u8]) -> Vec<String> {
        let content = OpenedFile::open(path).and_then(|file| file.content());
        content.map_or_else(|_| Vec::new(), |content| elf::function_names(&ReadCache::new(content)))
    }

    fn filter(&self, event: &Format, text: &[u8]) -> Result<(), FilterError> {
        (self.filter)(event, text)
    }
}
