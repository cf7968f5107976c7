//! The function types that the verifier requires of a program with callbacks.
//!
//! A program may load the address of one of its functions (the callback of `bpf_loop`) only if its BTF declares the
//! function static (`check_ld_imm()`, kernel/bpf/verifier.c: "missing btf func_info"). Nothing else of the type
//! matters, so all functions of all programs share one: no arguments, returns u64.

use std::{
    os::fd::{AsRawFd, OwnedFd},
    sync::OnceLock,
};

use super::{Block, Command, call_fd};
use crate::sys::Errno;

/// Opcodes and source registers that refer to a function: `BPF_JMP | BPF_CALL` with `BPF_PSEUDO_CALL`, and
/// `BPF_LD | BPF_IMM | BPF_DW` with `BPF_PSEUDO_FUNC`, include/uapi/linux/bpf.h.
const CALL: (u8, u8) = (0x85, 1);
const ADDRESS: (u8, u8) = (0x18, 4);

/// BTF id of the function type in [`types`].
const FUNCTION: u32 = 3;

/// One entry of a program's `func_info`: `struct bpf_func_info`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FuncInfo {
    /// First instruction of the function.
    start: u32,
    /// Its type in the program's BTF.
    type_id: u32,
}

/// Where the program's functions start; None if it takes no function's address.
pub(super) fn of(insns: &[u8]) -> Option<Vec<FuncInfo>> {
    let mut starts = vec![0];
    let mut wanted = false;
    let (insns, _) = insns.as_chunks::<8>();
    for (slot, [code, registers, _, _, immediate @ ..]) in insns.iter().enumerate() {
        let kind = (*code, *registers >> 4);
        if kind == CALL || kind == ADDRESS {
            let relative = i32::from_le_bytes(*immediate);
            starts.extend(u32::try_from(slot as i64 + 1 + i64::from(relative)));
            wanted |= kind == ADDRESS;
        }
    }
    starts.sort_unstable();
    starts.dedup();
    wanted.then(|| starts.into_iter().map(|start| FuncInfo { start, type_id: FUNCTION }).collect())
}

/// The descriptor of the types, loaded once.
pub(super) fn btf() -> Result<i32, Errno> {
    static LOADED: OnceLock<OwnedFd> = OnceLock::new();
    if let Some(fd) = LOADED.get() {
        return Ok(fd.as_raw_fd());
    }
    let fd = load()?;
    Ok(LOADED.get_or_init(|| fd).as_raw_fd())
}

#[repr(C)]
struct Load {
    types: u64,
    log: u64,
    size: u32,
    log_size: u32,
    log_level: u32,
    pad: u32,
}
// SAFETY: no padding; the types outlive the call, and there is no log.
unsafe impl Block for Load {}

fn load() -> Result<OwnedFd, Errno> {
    let types = types();
    let mut block = Load {
        types: types.as_ptr() as u64,
        log: 0,
        size: types.len() as u32,
        log_size: 0,
        log_level: 0,
        pad: 0,
    };
    call_fd(Command::BtfLoad, &mut block)
}

/// `u64 f(void)` in BTF (Documentation/bpf/btf.rst).
fn types() -> Vec<u8> {
    const MAGIC: u32 = 0xeb9f;
    const VERSION: u32 = 1;
    const HEADER_SIZE: u32 = 24;
    let kind = |kind: u32| kind << 24;
    let strings = b"\0u64\0f\0";
    let types: [u32; 10] = [
        // 1: a 64-bit integer, 8 bytes.
        1,
        kind(1),
        8,
        64, // 2: a prototype without arguments that returns type 1.
        0,
        kind(13),
        1, // 3: a static function of that prototype.
        5,
        kind(12),
        2,
    ];
    let size = size_of_val(&types) as u32;
    let header = [MAGIC | VERSION << 16, HEADER_SIZE, 0, size, size, strings.len() as u32];
    header.iter().chain(&types).flat_map(|word| word.to_le_bytes()).chain(strings.iter().copied()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_are_told_when_an_address_is_taken() {
        let call = [0x85, 0x10, 0, 0, 2, 0, 0, 0];
        let address = [0x18, 0x42, 0, 0, 3, 0, 0, 0];
        let other = [0x95, 0, 0, 0, 0, 0, 0, 0];
        assert_eq!(of(&[call, other, other, other].concat()), None);
        let starts: Vec<_> = of(&[call, address, other, other, other, other].concat())
            .unwrap()
            .iter()
            .map(|f| f.start)
            .collect();
        assert_eq!(starts, [0, 3, 5]);
    }
}
