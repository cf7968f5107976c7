//! Dispatches on the system call number. One program on raw `sys_enter` (or `sys_exit`) serves all syscall events by
//! tail calls, so that an untraced call costs one lookup.

use aya_ebpf::{
    EbpfContext, helpers::generated::bpf_probe_read_kernel, macros::raw_tracepoint,
    programs::RawTracePointContext,
};

use crate::map::SYSCALLS;

/// Byte offset of `orig_ax` in the x86-64 `struct pt_regs` and of `syscallno` in the arm64 one; user space
/// replaces the zero.
#[unsafe(no_mangle)]
static NUMBER_OFFSET: u32 = 0;

/// `sys_enter(struct pt_regs *regs, long id)`.
#[raw_tracepoint]
pub fn sys_enter(ctx: RawTracePointContext) -> i32 {
    let number: u64 = ctx.arg(1);
    SYSCALLS.tail_call(ctx.as_ptr(), number as u32);
    0
}

/// `sys_exit(struct pt_regs *regs, long ret)`: the program reads the number from the registers.
#[raw_tracepoint]
pub fn sys_exit(ctx: RawTracePointContext) -> i32 {
    let regs: u64 = ctx.arg(0);
    // SAFETY: a static of a plain integer.
    let offset = unsafe { (&raw const NUMBER_OFFSET).read_volatile() };
    let mut number = u64::MAX;
    // SAFETY: the destination is eight bytes of stack; the helper handles a fault at a bad source.
    unsafe {
        bpf_probe_read_kernel((&raw mut number).cast(), 8, (regs + u64::from(offset)) as *const _);
    }
    SYSCALLS.tail_call(ctx.as_ptr(), number as u32);
    0
}
