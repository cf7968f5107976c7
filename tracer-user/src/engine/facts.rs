//! The running kernel as the other layers see it. Each fact is read on first use.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, OnceLock, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use super::{
    handlers::{Handlers, NoDerivedPlan},
    pages,
};
use crate::{
    attach,
    event::{Catalogue, Format},
    kernel::{
        Answer, Btf, Error, LaterFiles, PreemptGuard, Symbols, Tracefs, filter_parser, preemption,
        syscalls::{Numbers, Registers},
        version,
    },
    lang::{
        facts::Language,
        filter::{Dialect, Feature},
        inject,
    },
    plan::{resolve::ResolveEnv, source::FieldSource},
    render::{KernelFacts, KernelTexts, Member, Pointers, RenderEnv, Symbol, hz, jiffies},
    sys::cpus::Cpus,
};

/// Variables of eight bytes from which print fmts compute a page's address. They are set once at boot. Only kernels
/// with `KALLSYMS_ALL` show their addresses; without that, the first can be learned.
const VARIABLES: [&str; 2] = [PAGES, "memstart_addr"];
const PAGES: &str = "vmemmap_base";

/// The function whose address is in the records of `trace_marker`.
pub const MARK_WRITER: &str = "tracing_mark_write";

/// Facts of the running kernel.
pub struct Facts {
    /// Its tracefs.
    pub tracefs: Tracefs,
    btf: OnceLock<Option<Btf>>,
    symbols: OnceLock<Option<Symbols>>,
    numbers: OnceLock<Option<Numbers>>,
    call_names: OnceLock<HashMap<u64, String>>,
    texts: OnceLock<KernelTexts>,
    loose_end: OnceLock<Answer>,
    pages: OnceLock<Option<u64>>,
    cpus: u32,
    version: (u32, u32),
    preemption: OnceLock<String>,
    preempt_guard: OnceLock<Option<PreemptGuard>>,
    mark_writer: OnceLock<u64>,
    hashes: OnceLock<Option<attach::Hashes>>,
    hashes_pointers: bool,
    later_files: OnceLock<LaterFiles>,
    language: OnceLock<Language>,
    newest: OnceLock<()>,
    handlers: OnceLock<Option<Mutex<Handlers>>>,
    frozen: bool,
    warm: AtomicBool,
    /// Whether a thread has started to learn where page descriptors begin.
    learns: AtomicBool,
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
    /// Byte offset of `pid` in the kernel's `struct task_struct`.
    pub(crate) fn task_pid(&self) -> Option<u32> {
        Some(self.btf()?.member("task_struct", "pid").ok()??.offset)
    }

    /// Opens the running kernel's tracefs. Everything else is read later.
    ///
    /// # Errors
    /// There is no tracefs, with the reason.
    pub fn running() -> Result<Self, Error> {
        Self::of(Tracefs::open()?)
    }

    /// A kernel that consists only of the files of its tracefs in a directory, with this many CPUs. Nothing is read
    /// from the running kernel, and nothing can be attached.
    pub fn frozen(tracefs: Tracefs, cpus: u32, version: (u32, u32)) -> Self {
        Self {
            tracefs,
            btf: OnceLock::from(None),
            symbols: OnceLock::from(None),
            numbers: OnceLock::from(None),
            call_names: OnceLock::new(),
            texts: OnceLock::new(),
            loose_end: OnceLock::from(Answer::Yes),
            pages: OnceLock::from(None),
            cpus,
            version,
            preemption: OnceLock::from(String::new()),
            preempt_guard: OnceLock::from(None),
            mark_writer: OnceLock::from(0),
            hashes: OnceLock::from(None),
            hashes_pointers: true,
            later_files: OnceLock::new(),
            language: OnceLock::new(),
            newest: OnceLock::new(),
            handlers: OnceLock::from(None),
            frozen: true,
            warm: AtomicBool::new(true),
            learns: AtomicBool::new(true),
        }
    }

    /// Whether the facts are those of a frozen kernel.
    pub fn is_frozen(&self) -> bool {
        self.frozen
    }

    /// Reads the same kernel again, because symbols and types change with modules.
    ///
    /// # Errors
    /// No descriptor is left.
    pub fn anew(&self) -> Result<Self, Error> {
        if self.frozen {
            return Ok(Self {
                language: self.language.clone(),
                newest: self.newest.clone(),
                ..Self::frozen(self.tracefs.try_clone()?, self.cpus, self.version)
            });
        }
        Ok(Self {
            pages: self.pages.clone(),
            // The kernel's own names, because modules add none.
            call_names: self.call_names.clone(),
            loose_end: self.loose_end.clone(),
            // Reading it again may need a mount, which the daemon can no longer make.
            preemption: self.preemption.clone(),
            preempt_guard: self.preempt_guard.clone(),
            language: self.language.clone(),
            newest: self.newest.clone(),
            ..Self::of(self.tracefs.try_clone()?)?
        })
    }

    fn of(tracefs: Tracefs) -> Result<Self, Error> {
        // The layout of counters depends on it.
        let cpus = Cpus::possible().map_err(|error| Error::io("/sys/devices/system/cpu/possible", error))?;
        Ok(Self {
            tracefs,
            btf: OnceLock::new(),
            symbols: OnceLock::new(),
            numbers: OnceLock::new(),
            call_names: OnceLock::new(),
            texts: OnceLock::new(),
            loose_end: OnceLock::new(),
            pages: OnceLock::new(),
            cpus: cpus.ids(),
            version: version(),
            preemption: OnceLock::new(),
            preempt_guard: OnceLock::new(),
            mark_writer: OnceLock::new(),
            hashes: OnceLock::new(),
            hashes_pointers: hashes_pointers(&std::fs::read_to_string("/proc/cmdline").unwrap_or_default()),
            later_files: OnceLock::new(),
            language: OnceLock::new(),
            newest: OnceLock::new(),
            handlers: OnceLock::new(),
            frozen: false,
            warm: AtomicBool::new(false),
            learns: AtomicBool::new(false),
        })
    }

    /// What the kernel has of the files that depend on its version.
    pub fn later_files(&self) -> &LaterFiles {
        self.later_files.get_or_init(|| LaterFiles::of(&self.tracefs))
    }

    /// The language of definitions: our own, which has everything on every kernel, or else the kernel's.
    pub fn language(&self) -> Language {
        *self.language.get_or_init(Language::full)
    }

    /// Takes the kernel's language for definitions, if none was used yet.
    pub fn take_kernels_language(&self) {
        let readme = self.tracefs.read("README").ok().flatten();
        let of = |readme: String| Language::of_kernel(&readme, self.version);
        let _ = self.language.set(readme.map_or_else(Language::full, of));
    }

    /// Whether files and options of newer kernels exist too.
    pub fn has_newest_language(&self) -> bool {
        self.newest.get().is_some()
    }

    /// Takes what the newest kernel has.
    pub fn take_newest_language(&self) {
        let _ = (self.newest.set(()), self.language.set(Language::full()));
    }

    /// Reads the slow facts that most mirrors need, so that no request waits for them.
    pub fn warm(&self) {
        let _ = (self.btf(), self.mark_writer(), self.preemption(), self.loose_end());
        let _ = self.later_files();
        let _ = self.syscall_number("sys_enter_getpid");
        let _ = self.kernel_text(0);
        if self.hashes_pointers {
            let _ = self.hash(0);
        }
        self.warm.store(true, Ordering::Release);
    }

    /// Whether [`Facts::warm`] has returned.
    pub fn is_warm(&self) -> bool {
        self.warm.load(Ordering::Acquire)
    }

    /// Whether records can be printed without waiting: [`Facts::warm`] has returned, and no thread is learning where
    /// page descriptors begin.
    pub fn can_print(&self) -> bool {
        let learns = self.learns.load(Ordering::Acquire) && self.pages.get().is_none();
        self.is_warm() && !learns
    }

    /// Waits until [`Facts::can_print`].
    pub fn prepare_print(&self) {
        self.warm();
        if self.learns.load(Ordering::Acquire) {
            let _ = self.pages();
        }
    }

    /// Starts a thread that learns where page descriptors begin, if records of these formats are printed with it.
    pub fn learn_pages<'a>(self: &Arc<Self>, formats: impl IntoIterator<Item = &'a Format>) {
        let prints = |format: &Format| format.print_fmt.contains(PAGES);
        if !formats.into_iter().any(prints) || self.learns.swap(true, Ordering::AcqRel) {
            return;
        }
        let facts = Arc::clone(self);
        let thread = std::thread::Builder::new().name("pages".to_owned());
        if let Err(error) = thread.spawn(move || facts.variable(PAGES)) {
            tracing::debug!("cannot learn pages in advance: {error}");
        }
    }

    /// The kernel's types; `None` if it shows none.
    pub fn btf(&self) -> Option<&Btf> {
        self.btf.get_or_init(|| Btf::running().ok().flatten()).as_ref()
    }

    /// The sources of an event's fields at its raw tracepoint, as the kernel's handler of the event shows them.
    ///
    /// # Errors
    /// The reason why there is no plan.
    pub fn derived_plan(&self, format: &Format) -> Result<Vec<FieldSource>, NoDerivedPlan> {
        let btf = self.btf().ok_or(NoDerivedPlan::NoBtf)?;
        let handlers = self.handlers.get_or_init(|| Handlers::new().map(Mutex::new));
        let handlers = handlers.as_ref().ok_or(NoDerivedPlan::NoReader)?;
        handlers.lock().unwrap_or_else(PoisonError::into_inner).plan(format, btf)
    }

    /// The kernel's symbols; `None` if their addresses are withheld.
    pub fn symbols(&self) -> Option<&Symbols> {
        self.symbols.get_or_init(|| Symbols::running().ok()).as_ref()
    }

    /// The address of the function that writes marks in the kernel, 0 if it is not shown; `None` before
    /// [`Facts::mark_writer`] was called.
    pub fn known_mark_writer(&self) -> Option<u64> {
        self.mark_writer.get().copied()
    }

    /// The address of the function that writes marks in the kernel, read on the first call. This takes about 8 ms, and
    /// 40 ms on a kernel without the symbol.
    pub fn mark_writer(&self) -> u64 {
        *self
            .mark_writer
            .get_or_init(|| crate::kernel::symbols::lowest_address(MARK_WRITER).ok().flatten().unwrap_or(0))
    }

    /// The number of a syscall event; `None` if it is unknown.
    pub fn syscall_number(&self, event: &str) -> Option<u32> {
        let numbers = self.numbers.get_or_init(|| Numbers::new(self.btf()?).ok()).as_ref()?;
        numbers.of(&self.tracefs, event).ok().flatten()
    }

    /// Names of system calls by number, from the events of their entries. The first call needs the privilege to load
    /// programs.
    pub fn call_names(&self) -> &HashMap<u64, String> {
        self.call_names.get_or_init(|| {
            let Ok(list) = self.tracefs.available_events() else { return HashMap::new() };
            let catalogue = Catalogue::parse(&list);
            let number = |name: &str| {
                let call = name.strip_prefix("sys_enter_")?;
                Some((u64::from(self.syscall_number(name)?), format!("sys_{call}")))
            };
            catalogue
                .matching("syscalls:sys_enter_*")
                .into_iter()
                .filter_map(|(_, name)| number(name))
                .collect()
        })
    }

    /// The location of a system call's number and arguments.
    pub fn registers(&self) -> Option<Registers> {
        Registers::find(self.btf()?).ok().flatten()
    }

    /// How programs disable preemption. `None` where the kernel refuses such programs.
    pub fn preempt_guard(&self) -> Option<PreemptGuard> {
        let find = || PreemptGuard::find(self.btf()?).ok().flatten()?.accepted().ok();
        *self.preempt_guard.get_or_init(find)
    }

    /// Where the page descriptors begin, learned from hits; `None` if that fails.
    fn pages(&self) -> Option<u64> {
        *self.pages.get_or_init(|| {
            let base = pages::base(self);
            tracing::debug!(?base, "where the page descriptors begin");
            base.ok()
        })
    }

    /// The highest possible CPU id plus one.
    pub fn cpus(&self) -> u32 {
        self.cpus
    }

    /// The kernel's preemption model, in the words of trace headers.
    pub fn preemption(&self) -> &str {
        self.preemption.get_or_init(|| preemption(self.version))
    }

    /// Whether the kernel prints hashes of pointers by default.
    pub fn hashes_pointers(&self) -> bool {
        self.hashes_pointers
    }

    /// Version of the kernel, major and minor.
    pub fn version(&self) -> (u32, u32) {
        self.version
    }
}

/// Whether the kernel's command line leaves hashing of pointers on; the second word exists since 6.17.
fn hashes_pointers(line: &str) -> bool {
    !line.split_whitespace().any(|word| word == "no_hash_pointers" || word == "hash_pointers=never")
}

impl ResolveEnv for Facts {
    /// The newest language on every kernel, because filters are compiled here.
    fn dialect(&self) -> Dialect {
        Dialect::newest()
    }

    /// A filter that this kernel calls meaningless is refused here too.
    fn loose_end(&self) -> Answer {
        let ask = || filter_parser::accepts_filter(&self.tracefs, Feature::LooseEnd.probe().filter);
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
        let shown = self.symbols().and_then(|symbols| match symbols.addresses(name)[..] {
            [address] => {
                let word = attach::kernel_word(address);
                tracing::debug!(name, ?word, "a kernel variable");
                word.ok()
            }
            _ => None,
        });
        shown.or_else(|| if name == PAGES { self.pages() } else { None })
    }

    fn hz(&self) -> Option<u32> {
        Some(hz())
    }

    fn version(&self) -> (u32, u32) {
        self.version
    }
}
