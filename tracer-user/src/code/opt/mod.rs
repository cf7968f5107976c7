//! Passes over a whole program after linking, which make it cheaper before it is loaded.
//!
//! Template and generated functions are compiled separately. The boundary between them costs a call and a return per
//! hit, which is expensive where returns are guarded against speculation. Every read of kernel memory costs a helper
//! call. The passes see the whole program:
//!
//! - [`inline`] replaces calls by the called functions.
//! - [`fold`] computes the results that are known at load time.
//! - [`lookups`] replaces lookups of values with a fixed address.
//! - [`thread`] redirects jumps to their final targets.
//! - [`reads`] loads kernel memory directly where the kernel allows it.
//! - [`stores`] and [`dead`] drop instructions that are no longer needed.
//!
//! Each pass is a function from program to program and leaves code that it does not understand unchanged. The kernel's
//! verifier checks the result.

mod dead;
mod flow;
mod fold;
mod frame;
mod guard;
mod inline;
mod lookups;
mod program;
mod reads;
mod stores;
mod thread;

pub use fold::Frozen;
pub use guard::guarded;

use crate::kernel::Cast;

use super::asm::Insn;
use program::Program;

/// Facts about the kernel and the maps at load time.
#[derive(Clone, Copy, Debug, Default)]
pub struct Known<'a> {
    /// How kernel memory is loaded directly, if the kernel supports it.
    pub cast: Option<Cast>,
    /// Memory whose bytes never change.
    pub frozen: &'a [Frozen<'a>],
    /// Descriptors of arrays with one entry.
    pub singles: &'a [i32],
}

/// Runs all passes. Code that cannot be improved stays unchanged.
pub fn improve(insns: Vec<Insn>, known: &Known<'_>) -> Vec<Insn> {
    let Some(mut program) = Program::decode(&insns) else { return insns };
    // Parameters rule out seven eighths of a template, which the other passes then do not look at.
    fold::fold(&mut program, known.frozen);
    dead::unused_functions(&mut program);
    inline::inline(&mut program);
    dead::unused_functions(&mut program);
    lookups::direct(&mut program, known.singles);
    fold::fold(&mut program, known.frozen);
    if let Some(cast) = known.cast {
        reads::direct(&mut program, cast);
    }
    // After unused results are removed, paths can become shorter still.
    for _ in 0..2 {
        thread::shorten(&mut program, known.frozen);
        fold::fold(&mut program, known.frozen);
        stores::drop_unread(&mut program);
        dead::remove(&mut program);
    }
    program.encode().unwrap_or(insns)
}

#[cfg(test)]
mod tests;
