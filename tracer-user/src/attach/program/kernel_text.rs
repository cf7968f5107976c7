//! Reads instructions and addresses of kernel functions with BPF programs: `/proc/kcore` is missing on some kernels, and
//! reading all of `/proc/kallsyms` takes longer than a first event may.

use std::collections::HashMap;

use crate::{
    attach::{Cause, maps, program::load},
    code::asm::{Assembler, Helper, Reg, Width},
    kernel::handler::{CHECKS, COPIES, Callees, ENDS, FILLS, KernelText},
    sys::bpf::{
        map::Map,
        prog::{Prog, ProgKind, Purpose},
    },
};

/// Bytes of kernel memory that one run of the program reads.
const BLOCK: usize = 512;
/// The longest instruction of x86-64, in bytes.
const INSTRUCTION_MAX: u64 = 15;
/// Blocks that are kept.
const BLOCKS_MAX: usize = 1024;

/// Reads functions of the kernel.
#[derive(Debug)]
pub struct TextReader {
    read: Prog,
    find: Prog,
    /// A block that was read, or the name that is looked up.
    memory: Map,
    /// Blocks by address; `None` for memory that cannot be read.
    blocks: HashMap<u64, Option<Vec<u8>>>,
    /// A few bytes across the end of a block.
    joined: Vec<u8>,
}

impl TextReader {
    /// Loads the programs.
    ///
    /// # Errors
    /// When the kernel refuses one of them: `bpf_kallsyms_lookup_name` is available since 5.16.
    pub fn new() -> Result<Self, Cause> {
        let memory = maps::array(BLOCK, 1, "tracer_text")?;
        let load =
            |asm: Assembler, name| load::load(ProgKind::Syscall, Purpose::Any, &asm.finish(name).insns, name);
        // The context is the address.
        let mut asm = Assembler::new();
        asm.load(Width::D, Reg::R3, Reg::R1, 0);
        load::value_address(&mut asm, Reg::R1, &memory);
        asm.mov(Reg::R2, BLOCK as i32);
        asm.call(Helper::ProbeReadKernel);
        asm.exit();
        let read = load(asm, "tracer_text")?;
        // The context becomes the address.
        let mut asm = Assembler::new();
        asm.mov(Reg::R6, Reg::R1);
        load::value_address(&mut asm, Reg::R1, &memory);
        asm.mov(Reg::R2, BLOCK as i32);
        asm.mov(Reg::R3, 0);
        asm.store(Width::D, Reg::R10, -8, 0);
        asm.address(Reg::R4, Reg::R10, -8);
        asm.call(Helper::KallsymsLookupName);
        asm.load(Width::D, Reg::R1, Reg::R10, -8);
        asm.store(Width::D, Reg::R6, 0, Reg::R1);
        asm.exit();
        let find = load(asm, "tracer_symbol")?;
        Ok(Self { read, find, memory, blocks: HashMap::new(), joined: Vec::new() })
    }

    /// The address of a function; `None` if there is none of this name, or if the kernel hides addresses.
    pub fn address(&self, name: &str) -> Option<u64> {
        let mut text = [0; BLOCK];
        // A NUL must follow, and the kernel looks for one at the end.
        text.get_mut(..BLOCK - 1)?.get_mut(..name.len())?.copy_from_slice(name.as_bytes());
        self.memory.update(&[0; 4], &text).ok()?;
        let mut address = [0; 8];
        if self.find.run(&mut address).ok()? != 0 {
            return None;
        }
        Some(u64::from_ne_bytes(address)).filter(|address| *address != 0)
    }

    /// The functions that handlers call; `None` if one that all call is missing.
    pub fn callees(&self) -> Option<Callees> {
        let all = |names: &[&str]| names.iter().filter_map(|name| self.address(name)).collect();
        Some(Callees {
            reserve: self.address("trace_event_buffer_reserve")?,
            commit: self.address("trace_event_buffer_commit")?,
            checks: all(&CHECKS),
            copies: all(&COPIES),
            fills: all(&FILLS),
            ends: all(&ENDS),
        })
    }

    /// The block that an address is in.
    fn block(&mut self, address: u64) -> Option<&[u8]> {
        if self.blocks.len() == BLOCKS_MAX {
            self.blocks.clear();
        }
        let (read, memory) = (&self.read, &self.memory);
        let block = self.blocks.entry(address - address % BLOCK as u64);
        let start = *block.key();
        let block = block.or_insert_with(|| {
            let failed = read.run(&mut start.to_ne_bytes()).ok()?;
            if failed == 0 { memory.lookup(&[0; 4]).ok()? } else { None }
        });
        block.as_deref()
    }
}

impl KernelText for TextReader {
    fn at(&mut self, address: u64) -> Option<&[u8]> {
        let within = (address % BLOCK as u64) as usize;
        if within + INSTRUCTION_MAX as usize <= BLOCK {
            return self.block(address)?.get(within..);
        }
        let mut joined = std::mem::take(&mut self.joined);
        joined.clear();
        joined.extend_from_slice(self.block(address)?.get(within..)?);
        if let Some(next) = self.block(address + INSTRUCTION_MAX) {
            joined.extend_from_slice(next.get(..INSTRUCTION_MAX as usize)?);
        }
        self.joined = joined;
        Some(&self.joined)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_of_the_kernel_are_found_and_read() {
        let Ok(mut text) = TextReader::new() else {
            eprintln!(
                "skipped: prog_syscall: no program can be loaded, or none with bpf_kallsyms_lookup_name"
            );
            return;
        };
        assert_eq!(text.address("no_such_function_of_the_kernel"), None);
        assert_eq!(text.address(&"x".repeat(BLOCK)), None);
        let Some(address) = text.address("trace_event_buffer_reserve") else {
            eprintln!("skipped: kernel_symbols: addresses of the kernel are hidden");
            return;
        };
        let symbols = crate::kernel::Symbols::running().unwrap();
        assert_eq!(symbols.lookup(address).unwrap().name, "trace_event_buffer_reserve");
        let start = text.at(address).unwrap().to_vec();
        assert!(start.len() >= 15 && start.iter().any(|byte| *byte != 0));
        for step in 0..600 {
            let bytes = text.at(address + step).unwrap();
            assert!(bytes.len() >= 15, "{step}");
            if step < 8 {
                assert_eq!(bytes[0], start[step as usize]);
            }
        }
        assert_eq!(text.at(8), None);
    }
}
