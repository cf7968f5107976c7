//! Uretprobes: as uprobes, for the return of a function.

use super::{Cause, Link, uprobe};
use crate::sys::prog::Prog;

/// Attaches a program to the return of a function of a file.
pub(super) fn attach(program: &Prog, place: &uprobe::FilePlace) -> Result<Link, Cause> {
    uprobe::attach(program, place, true)
}
