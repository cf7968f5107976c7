//! The parameters of a program.

use tracer_abi::Params;

/// Parameters that are constant after the program is loaded; user space replaces the zeroes.
#[unsafe(no_mangle)]
pub static PARAMS: Params = Params {
    bits: 0,
    slot: 0,
    cpus: 0,
    size: 0,
    own_tgid: 0,
    kind: 0,
    compat_offset: 0,
    compat_mask: 0,
    preempt_offset: 0,
    preempt_bias: 0,
    watermark: 0,
    other_offset: 0,
    other_arg: 0,
    call: 0,
    task_pid: 0,
    task_tgid: 0,
    rows: 0,
    stacks: 0,
    soft: 0,
    ring_words: 0,
};

/// Reads a parameter where it is used. The verifier sees a constant there and removes dead branches.
macro_rules! param {
    ($field:ident) => {
        // SAFETY: a field of a static of plain integers.
        unsafe { (&raw const $crate::parameters::PARAMS.$field).read_volatile() }
    };
}
pub(crate) use param;
