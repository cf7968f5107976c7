//! The running machine as a [`ResolveEnv`].

use std::sync::OnceLock;

use super::ResolveEnv;
use crate::kernel::{Answer, Btf, Symbols, Tracefs, filter_parser};
use crate::lang::filter::{Dialect, Feature};
use crate::sys::cpus::Cpus;

/// The running machine. Symbols are read when the first filter names one. The kernel's parser is consulted when the
/// first filter ends with a bare junction.
#[derive(Debug)]
pub struct Machine {
    dialect: Dialect,
    cpu_ids: u32,
    symbols: OnceLock<Option<Symbols>>,
    loose_end: OnceLock<Answer>,
}

impl Machine {
    /// Inspects the running machine. `btf` determines the features of its filter language. Without it, and for features
    /// that it does not determine, a feature counts as present.
    pub fn running(btf: Option<&Btf>) -> Self {
        let cpu_ids = Cpus::possible().map_or(1, Cpus::ids);
        Self { dialect: dialect(btf), cpu_ids, symbols: OnceLock::new(), loose_end: OnceLock::new() }
    }

    /// The same with symbols from a source other than `/proc/kallsyms`.
    #[must_use]
    pub fn with_symbols(mut self, symbols: Symbols) -> Self {
        self.symbols = OnceLock::from(Some(symbols));
        self
    }

    /// The same with another filter language, which is known completely: the kernel's parser is not consulted.
    #[must_use]
    pub fn with_dialect(mut self, dialect: Dialect) -> Self {
        self.dialect = dialect;
        self.loose_end = OnceLock::from(if dialect.has(Feature::LooseEnd) {
            Answer::Yes
        } else {
            Answer::no("the given filter language lacks this feature")
        });
        self
    }

    /// None if the kernel withholds the addresses. The kernel's own filters can use them nevertheless.
    fn symbols(&self) -> Option<&Symbols> {
        self.symbols.get_or_init(|| Symbols::running().ok()).as_ref()
    }
}

impl ResolveEnv for Machine {
    fn dialect(&self) -> Dialect {
        self.dialect
    }

    fn loose_end(&self) -> Answer {
        let ask = || match Tracefs::open() {
            Ok(tracefs) => filter_parser::accepts_filter(&tracefs, Feature::LooseEnd.probe().filter),
            Err(error) => Answer::unknown(error.to_string()),
        };
        self.loose_end.get_or_init(ask).clone()
    }

    fn cpu_ids(&self) -> u32 {
        self.cpu_ids
    }

    fn symbol_address(&self, name: &str) -> Option<u64> {
        self.symbols()?.addresses(name).first().copied()
    }

    fn symbol_extent(&self, address: u64) -> Option<(u64, u64)> {
        self.symbols()?.range(address).map(|range| (range.start, range.end))
    }
}

/// The filter language according to the kernel's types.
fn dialect(btf: Option<&Btf>) -> Dialect {
    let Some(btf) = btf else { return Dialect::newest() };
    let known = |feature: Feature| {
        let (of, name) = feature.enumerator()?;
        // If the types lack the enum that every such kernel has, they prove nothing about a missing enumerator.
        btf.enumerator("filter_pred_fn", "FILTER_PRED_FN_NOP").ok()??;
        if of.is_empty() {
            return Some(btf.constant(name).is_some());
        }
        btf.enumerator(of, name).ok().map(|value| value.is_some())
    };
    let dialect = Dialect::detect(known);
    match btf.member("trace_seq", "buffer") {
        Ok(Some(buffer)) if buffer.ty.size > 0 => dialect.with_message_max(buffer.ty.size as usize),
        _ => dialect,
    }
}
