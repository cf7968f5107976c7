//! Resolves names to places: turns a filter's text and an event's format into a [`Filter`].
//!
//! The order of checks is the kernel's, because the order decides which error is reported: first the check of
//! parentheses and quotes, then each term against its field, and the lexer's own error where it occurs.
//! [`predicate`] resolves a predicate, [`pattern`] makes patterns of texts, and [`suggest`] finds the nearest name for
//! a wrong one.

#[cfg(any(test, feature = "internals"))]
mod machine;
mod pattern;
mod predicate;
mod suggest;
#[cfg(test)]
mod tests;

#[cfg(any(test, feature = "internals"))]
pub use machine::Machine;
pub use suggest::{like, nearest};

use super::filter::Filter;
use crate::event::{Field, FieldClass, Format};
use crate::kernel::Answer;
use crate::lang::filter::ast::Expr;
use crate::lang::filter::{Dialect, Fault, Feature, FilterError, Lexed, balance, drafts, lex, tree};

/// Facts of the machine that resolving needs.
pub trait ResolveEnv {
    /// The filter language of the kernel that is traced.
    fn dialect(&self) -> Dialect;

    /// Whether the kernel accepts a junction at the end of a filter ([`Feature::LooseEnd`]).
    ///
    /// It is called only for a filter that ends with a junction, because the answer may need the kernel's parser. If
    /// the answer is unknown, the filter is accepted.
    fn loose_end(&self) -> Answer {
        if self.dialect().has(Feature::LooseEnd) {
            Answer::Yes
        } else {
            Answer::no("the filter language lacks this feature")
        }
    }

    /// `nr_cpu_ids`: one more than the highest CPU in `/sys/devices/system/cpu/possible`.
    fn cpu_ids(&self) -> u32;

    /// Address of a kernel symbol (`kallsyms_lookup_name()`): the lowest address if there are several; data too;
    /// `module:name` for a symbol of a module. None if there is no such symbol.
    fn symbol_address(&self, name: &str) -> Option<u64>;

    /// First address of the symbol that covers an address, and the first address after it.
    ///
    /// The end is the next higher symbol (`kallsyms_lookup_size_offset()`). None outside of the kernel, its modules and
    /// BPF programs.
    fn symbol_extent(&self, address: u64) -> Option<(u64, u64)>;
}

/// A [`ResolveEnv`] from a table: for tests, and for filters that name no symbols.
#[cfg(any(test, feature = "internals"))]
#[derive(Clone, Debug, Default)]
pub struct Fixed {
    /// The language.
    pub dialect: Dialect,
    /// `nr_cpu_ids`
    pub cpu_ids: u32,
    /// Symbols by address, sorted; each ends where the next higher one starts, and the last has no end.
    pub symbols: Vec<(u64, String)>,
}

#[cfg(any(test, feature = "internals"))]
impl ResolveEnv for Fixed {
    fn dialect(&self) -> Dialect {
        self.dialect
    }

    fn cpu_ids(&self) -> u32 {
        self.cpu_ids
    }

    fn symbol_address(&self, name: &str) -> Option<u64> {
        self.symbols.iter().find(|(_, symbol)| symbol == name).map(|(address, _)| *address)
    }

    fn symbol_extent(&self, address: u64) -> Option<(u64, u64)> {
        let above = self.symbols.partition_point(|(start, _)| *start <= address);
        let (start, _) = self.symbols.get(above.checked_sub(1)?)?;
        let (end, _) = self.symbols.get(above)?;
        Some((*start, *end))
    }
}

/// Every stage of one filter, for `tracer explain`.
#[derive(Clone, Debug)]
pub struct Stages {
    /// The tokens, as far as they could be read.
    pub lexed: Lexed,
    /// The tree.
    pub tree: Expr,
    /// The tree with places instead of names.
    pub filter: Filter,
}

/// Resolves a filter against an event. `text` is the part of a write that [`crate::lang::filter::request`] returns.
///
/// # Errors
/// The error that the kernel would report, with its message, errno and position.
pub fn filter(text: &[u8], format: &Format, env: &dyn ResolveEnv) -> Result<Filter, FilterError> {
    stages(text, format, env).map(|stages| stages.filter)
}

/// Like [`filter()`], but returns all stages.
///
/// # Errors
/// As [`filter()`].
pub fn stages(text: &[u8], format: &Format, env: &dyn ResolveEnv) -> Result<Stages, FilterError> {
    let mut dialect = env.dialect();
    let counts = balance::check(text).map_err(|fault| refusal(fault, text, format, dialect))?;
    let mut lexed = lex(text, counts, &dialect, is_function_event(format));
    if lexed.loose_end && dialect.has(Feature::LooseEnd) && matches!(env.loose_end(), Answer::No(_)) {
        dialect = dialect.without(Feature::LooseEnd);
        lexed = lex(text, counts, &dialect, is_function_event(format));
    }
    let refuse = |fault| refusal(fault, text, format, dialect);
    let mut tests = Vec::new();
    for draft in drafts(text, &lexed.tokens) {
        tests.extend(predicate::resolve(text, &draft, format, env).map_err(refuse)?);
    }
    if let Some(fault) = lexed.fault {
        return Err(refuse(fault));
    }
    // A complete token list has a tree, with one test per predicate.
    let made = tree(text, &lexed.tokens)
        .and_then(|tree| lower(&tree, &mut tests.into_iter()).map(|filter| (tree, filter)));
    let (tree, filter) = made.ok_or_else(|| refuse(Fault::meaningless(text)))?;
    Ok(Stages { lexed, tree, filter })
}

/// A fault with the kernel's message and a suggested name.
fn refusal(fault: Fault, text: &[u8], format: &Format, dialect: Dialect) -> FilterError {
    let known = || known_names(format, dialect);
    FilterError::new(fault, text, &dialect).suggest(suggest::for_fault(fault, text, known))
}

/// The tree with each predicate replaced by the next of `tests`; None if there are too few. Negations and groups, of
/// which a text can have thousands, use no stack.
fn lower(mut expr: &Expr, tests: &mut impl Iterator<Item = Filter>) -> Option<Filter> {
    let mut negated = false;
    let filter = loop {
        match expr {
            Expr::Not(inner) => (expr, negated) = (inner, !negated),
            Expr::Group(inner) => expr = inner,
            Expr::Predicate(_) => break tests.next()?,
            Expr::And(parts) => break Filter::and(lower_all(parts, tests)?),
            Expr::Or(parts) => break Filter::or(lower_all(parts, tests)?),
        }
    };
    Some(if negated { filter.negated() } else { filter })
}

fn lower_all(parts: &[Expr], tests: &mut impl Iterator<Item = Filter>) -> Option<Vec<Filter>> {
    parts.iter().map(|part| lower(part, tests)).collect()
}

/// `ftrace:function` has its own grammar, because perf passes its filter to the function tracer.
fn is_function_event(format: &Format) -> bool {
    format.system == "ftrace" && format.name == "function"
}

/// Fields that every event has in addition to its format (`trace_define_generic_fields()`), and the feature that
/// introduced them.
const GENERIC: [(&str, FieldClass, Option<Feature>); 7] = [
    ("CPU", FieldClass::Cpu, None),
    ("cpu", FieldClass::Cpu, None),
    ("common_cpu", FieldClass::Cpu, None),
    ("COMM", FieldClass::Comm, None),
    ("comm", FieldClass::Comm, None),
    ("stacktrace", FieldClass::Stacktrace, Some(Feature::Stacktrace)),
    ("STACKTRACE", FieldClass::Stacktrace, Some(Feature::Stacktrace)),
];

/// Finds a field by name: first the event's own (the later of two with one name), then the generic ones, then the
/// common ones.
fn find_field(format: &Format, name: &[u8], dialect: Dialect) -> Option<Field> {
    let named = |field: &&Field| field.name.as_bytes() == name;
    if let Some(field) = format.fields.iter().rev().find(named) {
        return Some(field.clone());
    }
    let generic = generic(dialect).find(|(generic, _)| generic.as_bytes() == name);
    if let Some((name, class)) = generic {
        let ty = if class == FieldClass::Cpu { "int" } else { "char *" };
        return Some(Field {
            name: name.to_owned(),
            ty: ty.to_owned(),
            offset: 0,
            size: 0,
            signed: class == FieldClass::Cpu,
            array: None,
            class,
        });
    }
    format.common.iter().find(named).cloned()
}

fn generic(dialect: Dialect) -> impl Iterator<Item = (&'static str, FieldClass)> {
    GENERIC
        .into_iter()
        .filter(move |(_, _, feature)| feature.is_none_or(|feature| dialect.has(feature)))
        .map(|(name, class, _)| (name, class))
}

fn known_names(format: &Format, dialect: Dialect) -> Vec<String> {
    let own = format.fields.iter().chain(&format.common).map(|field| field.name.clone());
    own.chain(generic(dialect).map(|(name, _)| name.to_owned())).collect()
}
