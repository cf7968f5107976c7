//! The function types that the verifier requires of a program with callbacks or with tail calls in functions.
//!
//! A program may load the address of one of its functions (the callback of `bpf_loop`) only if its BTF declares the
//! function static (`check_ld_imm()`, kernel/bpf/verifier.c: "missing btf func_info"). A function may tail-call only
//! if its BTF declares that it returns a number ("tail_call is not allowed in subprogs without BTF"). Nothing else of
//! the type matters, so all functions of all programs share one: no arguments, returns u64.

use std::{
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::OnceLock,
};

use aya_obj::{
    btf::{Btf, BtfType, Func, FuncLinkage, FuncProto, Int, IntEncoding},
    generated::{
        BPF_CALL, BPF_DW, BPF_IMM, BPF_JMP, BPF_LD, BPF_PSEUDO_CALL, BPF_PSEUDO_FUNC, bpf_cmd, bpf_func_info,
    },
};

use super::{arguments, call_fd};
use crate::sys::Errno;

/// Opcode and source register of an instruction that calls a function of the program.
const CALL: (u8, u8) = ((BPF_JMP | BPF_CALL) as u8, BPF_PSEUDO_CALL as u8);
/// Opcode and source register of an instruction that loads the address of a function of the program.
const ADDRESS: (u8, u8) = ((BPF_LD | BPF_IMM | BPF_DW) as u8, BPF_PSEUDO_FUNC as u8);

/// Opcode and source register of an instruction that calls a helper.
const HELPER: (u8, u8) = ((BPF_JMP | BPF_CALL) as u8, 0);
/// Number of the helper `bpf_tail_call` (include/uapi/linux/bpf.h).
const TAIL_CALL: i32 = 12;

/// BTF id of the function in [`types`].
const FUNCTION: u32 = 3;

/// Where the program's functions start; `None` if it needs no types.
pub(super) fn of(insns: &[u8]) -> Option<Vec<bpf_func_info>> {
    let mut starts = vec![0];
    let (mut takes_address, mut tail_calls) = (false, false);
    let (insns, _) = insns.as_chunks::<8>();
    for (slot, [code, registers, _, _, immediate @ ..]) in insns.iter().enumerate() {
        let kind = (*code, *registers >> 4);
        if kind == CALL || kind == ADDRESS {
            let relative = i32::from_le_bytes(*immediate);
            starts.extend(u32::try_from(slot as i64 + 1 + i64::from(relative)));
            takes_address |= kind == ADDRESS;
        }
        tail_calls |= kind == HELPER && i32::from_le_bytes(*immediate) == TAIL_CALL;
    }
    starts.sort_unstable();
    starts.dedup();
    let wanted = takes_address || tail_calls && starts.len() > 1;
    wanted.then(|| starts.into_iter().map(|insn_off| bpf_func_info { insn_off, type_id: FUNCTION }).collect())
}

/// The descriptor of the types, loaded once.
pub(super) fn btf() -> Result<BorrowedFd<'static>, Errno> {
    static LOADED: OnceLock<OwnedFd> = OnceLock::new();
    if let Some(fd) = LOADED.get() {
        return Ok(fd.as_fd());
    }
    let fd = load()?;
    Ok(LOADED.get_or_init(|| fd).as_fd())
}

fn load() -> Result<OwnedFd, Errno> {
    let types = types();
    let mut arguments = arguments();
    arguments.__bindgen_anon_7.btf = types.as_ptr() as u64;
    arguments.__bindgen_anon_7.btf_size = types.len() as u32;
    // SAFETY: the command returns a descriptor, and the types have the stated size and outlive the call.
    unsafe { call_fd(bpf_cmd::BPF_BTF_LOAD, &mut arguments) }
}

/// `static u64 f(void)` in BTF.
fn types() -> Vec<u8> {
    let mut btf = Btf::new();
    let name = btf.add_string("u64");
    let long = btf.add_type(BtfType::Int(Int::new(name, 8, IntEncoding::None, 0)));
    let prototype = btf.add_type(BtfType::FuncProto(FuncProto::new(Vec::new(), long)));
    let name = btf.add_string("f");
    btf.add_type(BtfType::Func(Func::new(name, prototype, FuncLinkage::Static)));
    btf.to_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_are_listed_when_an_address_is_taken() {
        let call = [0x85, 0x10, 0, 0, 2, 0, 0, 0];
        let address = [0x18, 0x42, 0, 0, 3, 0, 0, 0];
        let other = [0x95, 0, 0, 0, 0, 0, 0, 0];
        assert!(of(&[call, other, other, other].concat()).is_none());
        let starts: Vec<_> = of(&[call, address, other, other, other, other].concat())
            .unwrap()
            .iter()
            .map(|f| f.insn_off)
            .collect();
        assert_eq!(starts, [0, 3, 5]);
    }

    #[test]
    fn the_function_type_has_its_id() {
        let parsed = btf_rs::Btf::from_bytes(&types()).unwrap();
        assert_eq!(parsed.resolve_ids_by_name("f").unwrap(), [FUNCTION]);
    }
}
