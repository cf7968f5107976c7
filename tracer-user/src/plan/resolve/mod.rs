//! Names to places: a filter's text and an event's format make a [`Filter`].
//!
//! The order of checks is the kernel's, because the order decides which error is seen: first the sweep over
//! parentheses and quotes, then term by term what each field allows, and the lexer's own finding where it stands.
//! One file resolves a predicate ([`predicate`]), one makes patterns of texts ([`pattern`]), one knows the nearest
//! name for a wrong one ([`suggest`]).

mod machine;
mod pattern;
mod predicate;
mod suggest;
#[cfg(test)]
mod tests;

pub use machine::Machine;
pub use suggest::{like, nearest};

use super::filter::Filter;
use crate::event::{Field, FieldClass, Format};
use crate::kernel::Answer;
use crate::lang::filter::ast::Expr;
use crate::lang::filter::{Dialect, Fault, Feature, FilterError, Lexed, balance, drafts, lex, tree};

/// What resolving needs to know of the machine.
pub trait ResolveEnv {
    /// The filter language of the kernel that is traced.
    fn dialect(&self) -> Dialect;

    /// Whether the kernel lets a junction with nothing behind it pass ([`Feature::LooseEnd`]). Asked only for a filter
    /// that ends so, as the answer may have to be had from the kernel's parser. Where it could not be told the filter
    /// is taken.
    fn loose_end(&self) -> Answer {
        if self.dialect().has(Feature::LooseEnd) {
            Answer::Yes
        } else {
            Answer::no("the filter language has it not")
        }
    }

    /// `nr_cpu_ids`: one more than the highest CPU in /sys/devices/system/cpu/possible.
    fn cpu_ids(&self) -> u32;

    /// Address of a kernel symbol (`kallsyms_lookup_name()`: of several the one with the lowest address; data
    /// too; `module:name` for a module's). None for no such symbol.
    fn symbol_address(&self, name: &str) -> Option<u64>;

    /// First address of the symbol that covers an address and first address behind it
    /// (`kallsyms_lookup_size_offset()`: up to the next higher symbol). None outside of the kernel, its modules
    /// and BPF programs.
    fn symbol_extent(&self, address: u64) -> Option<(u64, u64)>;
}

/// A [`ResolveEnv`] that is a table: for tests, and for filters that name no symbols.
#[derive(Clone, Debug, Default)]
pub struct Fixed {
    /// The language.
    pub dialect: Dialect,
    /// `nr_cpu_ids`
    pub cpu_ids: u32,
    /// Symbols by address, sorted; each ends where the next higher one starts, the last nowhere.
    pub symbols: Vec<(u64, String)>,
}

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
    /// The tree over places.
    pub filter: Filter,
}

/// Resolves a filter against an event. `text` is what [`crate::lang::filter::request`] has left of a write.
///
/// # Errors
/// What the kernel would refuse, with its words, errno and position.
pub fn filter(text: &[u8], format: &Format, env: &dyn ResolveEnv) -> Result<Filter, FilterError> {
    stages(text, format, env).map(|stages| stages.filter)
}

/// As [`filter()`], with what came in between.
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
    // A list of tokens that was read to the end makes a tree, with a test for each predicate.
    let made = tree(text, &lexed.tokens)
        .and_then(|tree| lower(&tree, &mut tests.into_iter()).map(|filter| (tree, filter)));
    let (tree, filter) = made.ok_or_else(|| refuse(Fault::meaningless(text)))?;
    Ok(Stages { lexed, tree, filter })
}

/// A fault with the kernel's words and the name that was perhaps meant.
fn refusal(fault: Fault, text: &[u8], format: &Format, dialect: Dialect) -> FilterError {
    let known = || known_names(format, dialect);
    FilterError::new(fault, text, &dialect).suggest(suggest::for_fault(fault, text, known))
}

/// The tree with each predicate replaced by the next of `tests`; None where there are not enough. Negations and groups, of which
/// a text has thousands, take no stack.
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

/// ftrace:function has a grammar of its own: perf hands its filter to the function tracer.
fn is_function_event(format: &Format) -> bool {
    format.system == "ftrace" && format.name == "function"
}

/// Fields that every event has beside those of its format (`trace_define_generic_fields()`), and the feature
/// that they came with.
const GENERIC: [(&str, FieldClass, Option<Feature>); 7] = [
    ("CPU", FieldClass::Cpu, None),
    ("cpu", FieldClass::Cpu, None),
    ("common_cpu", FieldClass::Cpu, None),
    ("COMM", FieldClass::Comm, None),
    ("comm", FieldClass::Comm, None),
    ("stacktrace", FieldClass::Stacktrace, Some(Feature::Stacktrace)),
    ("STACKTRACE", FieldClass::Stacktrace, Some(Feature::Stacktrace)),
];

/// The field of a name: the event's own (of two with one name the later), then the generic ones, then the
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
