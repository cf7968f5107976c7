//! eBPF instructions: assembler, lowering, listing, checker, linker.
