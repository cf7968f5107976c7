//! The maps that a histogram's program refers to, as placeholders.

use crate::code::{
    asm::{Insn, Reg},
    lower::Lower,
};

/// Source register of a 64-bit immediate that is a map: `BPF_PSEUDO_MAP_FD`.
const PSEUDO_MAP: u8 = 1;
/// Source register of a 64-bit immediate that is the address of a map's value.
const PSEUDO_VALUE: u8 = 2;

/// Purpose of a map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The entries.
    Table,
    /// An array whose only value counts drops.
    Drops,
    /// Memory of each CPU.
    Scratch,
    /// An array whose only value is an empty entry.
    Empty,
    /// An array whose only value describes the last snapshot ([`crate::plan::hist::snapshot`]).
    Snapshot,
    /// The instance's rings.
    Rings,
    /// The instance's switches.
    Switches,
    /// The instance's lists of threads.
    Pids,
    /// The entries of another histogram, one of [`crate::plan::hist::References::owners`].
    Owner(usize),
}

const FIRST: i32 = i32::MAX - 8000;
const FIXED: [Role; 8] = [
    Role::Table,
    Role::Drops,
    Role::Scratch,
    Role::Empty,
    Role::Snapshot,
    Role::Rings,
    Role::Switches,
    Role::Pids,
];
const OWNERS: usize = 16;

impl Role {
    /// Placeholder for the map's descriptor.
    pub fn placeholder(self) -> i32 {
        let number = match self {
            Self::Owner(number) => FIXED.len() + number,
            other => FIXED.iter().position(|role| *role == other).unwrap_or_default(),
        };
        FIRST - number as i32
    }
}

/// The role of an immediate, if it is the placeholder of a map.
pub fn role(insn: &Insn) -> Option<Role> {
    let number = usize::try_from(FIRST.checked_sub(insn.imm)?).ok()?;
    match FIXED.get(number) {
        _ if insn.src != PSEUDO_MAP && insn.src != PSEUDO_VALUE => None,
        Some(role) => Some(*role),
        None => Some(Role::Owner(number - FIXED.len())).filter(|_| number < FIXED.len() + OWNERS),
    }
}

impl Lower<'_> {
    /// `dst` = a map.
    pub(super) fn map(&mut self, dst: Reg, role: Role) {
        self.map_immediate(dst, PSEUDO_MAP, role);
    }

    /// `dst` = the address of an array's first value.
    pub(super) fn map_value(&mut self, dst: Reg, role: Role) {
        self.map_immediate(dst, PSEUDO_VALUE, role);
    }

    fn map_immediate(&mut self, dst: Reg, kind: u8, role: Role) {
        let [mut first, second] = Insn::imm64(dst, 0);
        (first.src, first.imm) = (kind, role.placeholder());
        self.asm.push_wide(first, second);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn roles_are_found_again() {
        for expected in FIXED.into_iter().chain([Role::Owner(0), Role::Owner(15)]) {
            let insn = Insn { src: PSEUDO_MAP, imm: expected.placeholder(), ..Insn::default() };
            assert_eq!(role(&insn), Some(expected));
            assert_eq!(role(&Insn { src: 0, ..insn }), None);
        }
        for imm in [7, i32::MIN, i32::MAX] {
            assert_eq!(role(&Insn { src: PSEUDO_MAP, imm, ..Insn::default() }), None);
        }
    }
}
