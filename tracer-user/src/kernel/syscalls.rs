//! System calls: the number behind each `sys_enter_*` and `sys_exit_*` event, and the offsets of a call's registers.
//!
//! Neither a format file nor a symbol reveals an event's number, and event names are those of `SYSCALL_DEFINE`
//! (`newfstat`), not of any table in user space. The number is therefore read from kernel memory. tracefs's file
//! `events/syscalls/NAME/enable`, opened for reading, refers to a `struct trace_event_file`: by its inode, since 7.3 no
//! more by the open file. From there a small BPF program (`BPF_PROG_TYPE_SYSCALL`, 5.14, run once for each event)
//! follows pointers by BTF to the event's `struct syscall_metadata` and its `syscall_nr`. On the way it reads the
//! event's id, which must match the `id` file. This detects a wrong chain, and the answer is then "could not tell".
//! Only events whose number is in the kernel's table exist at all (`init_syscall_trace()`,
//! kernel/trace/trace_syscalls.c).
//!
//! 32-bit calls on a 64-bit kernel never reach these events (`ARCH_TRACE_IGNORE_COMPAT_SYSCALLS` on x86-64 and
//! arm64), though the raw tracepoints see them: [`Registers::compat`] describes how a program distinguishes them.

use std::os::fd::AsRawFd;

use rustix::fs::OFlags;

use super::{Btf, Error, Tracefs};
use crate::sys::bpf::prog::{Prog, ProgKind, insn};

/// Reads the numbers of syscall events from the running kernel.
#[derive(Debug)]
pub struct Numbers {
    prog: Prog,
}

/// Byte offsets in the program's context: the descriptor is the input, the event's id and the number are the output.
const CTX_FD: i16 = 0;
const CTX_ID: i16 = 4;
const CTX_NUMBER: i16 = 8;
const CTX_SIZE: usize = 12;

impl Numbers {
    /// Loads the program that reads numbers.
    ///
    /// # Errors
    /// [`Error::Withheld`] if the kernel's types do not suffice or the kernel refuses the program; then no number can
    /// be read.
    pub fn new(btf: &Btf) -> Result<Self, Error> {
        let program = program(btf)?.ok_or_else(|| withheld("the kernel's types lack a struct on the way"))?;
        let prog = Prog::load(ProgKind::Syscall, &program, "syscall_nr")
            .map_err(|error| withheld(format!("the program that reads them is refused: {error}")))?;
        Ok(Self { prog })
    }

    /// The number of a syscall event (`sys_enter_openat`, `sys_exit_openat`). None if there is no such event.
    ///
    /// # Errors
    /// [`Error::Withheld`] if the number could not be read.
    pub fn of(&self, tracefs: &Tracefs, event: &str) -> Result<Option<u32>, Error> {
        let Some(id) = tracefs.id("syscalls", event)? else { return Ok(None) };
        let path = format!("events/syscalls/{event}/enable");
        let Some(file) = tracefs.open_file(&path, OFlags::RDONLY)? else { return Ok(None) };
        let mut context = [0; CTX_SIZE];
        context[..4].copy_from_slice(&file.as_raw_fd().to_ne_bytes());
        let result = self
            .prog
            .run(&mut context)
            .map_err(|errno| withheld(format!("the program that reads them did not run: {errno}")))?;
        let word = |at: i16| {
            let word = context.get(at as usize..).and_then(<[u8]>::first_chunk);
            word.map_or(0, |word| i32::from_ne_bytes(*word))
        };
        if result != 0 {
            return Err(withheld(format!("step {result} on the way to the number of {event} failed")));
        }
        if word(CTX_ID) != i32::from(id) {
            return Err(withheld(format!(
                "the way to the number of {event} ended at event {}",
                word(CTX_ID)
            )));
        }
        u32::try_from(word(CTX_NUMBER))
            .map(Some)
            .map_err(|_| withheld(format!("{event} has the number {}", word(CTX_NUMBER))))
    }
}

fn withheld(why: impl Into<String>) -> Error {
    Error::Withheld { fact: "system call numbers", why: why.into() }
}

/// Builds the program; None if a required struct or member is not in the types. The program returns 0, or the number
/// of the step that failed.
fn program(btf: &Btf) -> Result<Option<Vec<u8>>, Error> {
    // `BPF_FUNC_get_current_task`, `BPF_FUNC_probe_read_kernel`.
    const CURRENT_TASK: i32 = 35;
    const READ_KERNEL: i32 = 113;
    let way = [
        ("task_struct", "files"),
        ("files_struct", "fdt"),
        ("fdtable", "fd"),
        ("file", "f_inode"),
        ("inode", "i_private"),
        ("trace_event_file", "event_call"),
        ("trace_event_call", "event.type"),
        ("trace_event_call", "data"),
        ("syscall_metadata", "syscall_nr"),
    ];
    let mut offsets = [0; 9];
    for ((of, member), offset) in way.iter().zip(&mut offsets) {
        let Some(found) = btf.member(of, member)? else { return Ok(None) };
        *offset = found.offset as i32;
    }
    let [files, fdt, fd, inode, private, call, id, data, number] = offsets;

    let mut code: Vec<[u8; 8]> = Vec::new();
    let mut step = 0;
    // to = *(size bytes *)(from + offset), by way of the stack; on a fault the program exits with the step's number.
    let mut read = |code: &mut Vec<[u8; 8]>, to: u8, from: u8, offset: i32, size: i32| {
        step += 1;
        code.extend([
            insn(0x7a, 10, 0, -8, 0),         // *(u64 *)(r10 - 8) = 0
            insn(0xbf, 1, 10, 0, 0),          // r1 = r10
            insn(0x07, 1, 0, 0, -8),          // r1 += -8
            insn(0xb7, 2, 0, 0, size),        // r2 = size
            insn(0xbf, 3, from, 0, 0),        // r3 = from
            insn(0x07, 3, 0, 0, offset),      // r3 += offset
            insn(0x85, 0, 0, 0, READ_KERNEL), // call
            insn(0x15, 0, 0, 2, 0),           // if r0 == 0 goto +2
            insn(0xb7, 0, 0, 0, step),        // r0 = step
            insn(0x95, 0, 0, 0, 0),           // exit
            insn(0x79, to, 10, -8, 0),        // to = *(u64 *)(r10 - 8)
        ]);
    };
    code.extend([
        insn(0xbf, 6, 1, 0, 0),            // r6 = context
        insn(0x85, 0, 0, 0, CURRENT_TASK), // r0 = current
        insn(0xbf, 8, 0, 0, 0),            // r8 = r0
    ]);
    read(&mut code, 8, 8, files, 8);
    read(&mut code, 8, 8, fdt, 8);
    read(&mut code, 8, 8, fd, 8);
    code.extend([
        insn(0x61, 7, 6, CTX_FD, 0), // r7 = descriptor
        insn(0x67, 7, 0, 0, 3),      // r7 <<= 3
        insn(0x0f, 8, 7, 0, 0),      // r8 += r7
    ]);
    read(&mut code, 8, 8, 0, 8);
    read(&mut code, 8, 8, inode, 8);
    read(&mut code, 8, 8, private, 8);
    read(&mut code, 8, 8, call, 8);
    read(&mut code, 7, 8, id, 4);
    code.push(insn(0x63, 6, 7, CTX_ID, 0)); // *(u32 *)(context + ID) = r7
    read(&mut code, 8, 8, data, 8);
    read(&mut code, 7, 8, number, 4);
    code.extend([
        insn(0x63, 6, 7, CTX_NUMBER, 0), // *(u32 *)(context + NUMBER) = r7
        insn(0xb7, 0, 0, 0, 0),          // r0 = 0
        insn(0x95, 0, 0, 0, 0),          // exit
    ]);
    Ok(Some(code.concat()))
}

/// Where the raw tracepoints `sys_enter` and `sys_exit` find a call in `struct pt_regs`, argument 0 of both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Registers {
    /// Byte offset of the call's number.
    pub number: u32,
    /// Significant bytes of the number: the kernel takes an `int` for any width of the register.
    pub number_width: u8,
    /// Byte offsets of the six arguments, eight bytes each (`syscall_get_arguments()`).
    pub args: [u32; 6],
    /// How to detect a 32-bit call.
    pub compat: Compat,
}

/// How to detect a 32-bit call on a 64-bit kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Compat {
    /// Byte offset of a u32 with flags in the current `struct task_struct`.
    pub task_offset: u32,
    /// Bits of that u32, one of which is set during a 32-bit call.
    pub mask: u32,
    /// Byte offsets of a 32-bit call's arguments, if they differ.
    pub args: Option<[u32; 6]>,
}

/// `TS_COMPAT`, arch/x86/include/asm/thread_info.h: the thread is in a 32-bit system call.
const X86_TS_COMPAT: u32 = 0x2;
/// `TIF_32BIT`, arch/arm64/include/asm/thread_info.h: an AArch32 process (the same bit since 3.7).
const ARM64_TIF_32BIT: u32 = 1 << 22;

impl Registers {
    /// Finds the registers; None on an unsupported architecture.
    pub(crate) fn find(btf: &Btf) -> Result<Option<Self>, Error> {
        let register = |name: &str| Ok::<_, Error>(btf.member("pt_regs", name)?.map(|member| member.offset));
        let six = |names: [&str; 6]| {
            let mut offsets = [0; 6];
            for (offset, name) in offsets.iter_mut().zip(names) {
                let Some(found) = register(name)? else { return Ok::<_, Error>(None) };
                *offset = found;
            }
            Ok(Some(offsets))
        };
        if let Some(number) = register("orig_ax")? {
            let Some(args) = six(["di", "si", "dx", "r10", "r8", "r9"])? else { return Ok(None) };
            let Some(compat) = six(["bx", "cx", "dx", "si", "di", "bp"])? else { return Ok(None) };
            let Some(status) = btf.member("task_struct", "thread_info.status")? else { return Ok(None) };
            let compat = Compat { task_offset: status.offset, mask: X86_TS_COMPAT, args: Some(compat) };
            return Ok(Some(Self { number, number_width: 4, args, compat }));
        }
        if let Some(number) = register("syscallno")? {
            let (Some(first), Some(regs)) = (register("orig_x0")?, register("regs")?) else {
                return Ok(None);
            };
            let Some(flags) = btf.member("task_struct", "thread_info.flags")? else { return Ok(None) };
            let args = [first, regs + 8, regs + 16, regs + 24, regs + 32, regs + 40];
            let compat = Compat { task_offset: flags.offset, mask: ARM64_TIF_32BIT, args: None };
            return Ok(Some(Self { number, number_width: 4, args, compat }));
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Facts of the running kernel; None without BTF or without root, because only root may load programs.
    fn running() -> Option<(Tracefs, Btf)> {
        if !rustix::process::geteuid().is_root() {
            return None;
        }
        Some((Tracefs::open().unwrap(), Btf::running().unwrap()?))
    }

    #[test]
    fn numbers_are_those_of_the_c_library() {
        let Some((tracefs, btf)) = running() else { return };
        let numbers = Numbers::new(&btf).unwrap();
        for (name, number) in [
            ("read", libc::SYS_read),
            ("openat", libc::SYS_openat),
            ("newfstatat", libc::SYS_newfstatat),
            ("newfstat", libc::SYS_fstat),
            ("newuname", libc::SYS_uname),
            ("getppid", libc::SYS_getppid),
            ("mmap", libc::SYS_mmap),
            ("sendfile64", libc::SYS_sendfile),
            ("execve", libc::SYS_execve),
            ("exit_group", libc::SYS_exit_group),
            ("clone3", libc::SYS_clone3),
            ("futex", libc::SYS_futex),
        ] {
            for event in [format!("sys_enter_{name}"), format!("sys_exit_{name}")] {
                assert_eq!(numbers.of(&tracefs, &event).unwrap(), Some(number as u32), "{event}");
            }
        }
        assert_eq!(numbers.of(&tracefs, "sys_enter_nothing").unwrap(), None);
    }

    #[test]
    fn registers_are_inside_pt_regs() {
        let Some((_, btf)) = running() else { return };
        let found = Registers::find(&btf).unwrap().unwrap();
        let mut sorted = found.args;
        sorted.sort_unstable();
        assert!(sorted.windows(2).all(|pair| pair[0] + 8 <= pair[1]), "{found:?}");
        if cfg!(target_arch = "x86_64") {
            // arch/x86/include/asm/ptrace.h
            assert_eq!((found.number, found.args), (120, [112, 104, 96, 56, 72, 64]));
        }
    }
}
