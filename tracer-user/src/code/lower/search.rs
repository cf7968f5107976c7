//! Searches through text of varying length: callbacks of `bpf_loop`.

use crate::code::asm::Function;

/// The callbacks of one program.
#[derive(Clone, Debug, Default)]
pub(super) struct Searches {
    functions: Vec<Function>,
}

impl Searches {
    pub(super) fn finish(self) -> Vec<Function> {
        self.functions
    }
}
