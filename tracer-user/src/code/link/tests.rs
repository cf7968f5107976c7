//! Linking into a small template that is built here; aya's parser reads the result.

use std::collections::HashSet;

use aya_obj::Object;

use super::*;
use crate::code::asm::{Alu, Assembler, CALL, Insn, PSEUDO_CALL, Reg};

/// An object with one raw tracepoint program that calls two undefined functions; `text` is placed in `.text`.
fn template(text: Option<&Function>) -> Vec<u8> {
    let mut builder = Builder::new(object::Endianness::Little, true);
    builder.header.e_type = elf::ET_REL;
    builder.header.e_machine = elf::EM_BPF;
    for (name, kind, data) in [
        (".shstrtab", elf::SHT_STRTAB, SectionData::SectionString),
        (".strtab", elf::SHT_STRTAB, SectionData::String),
        (".symtab", elf::SHT_SYMTAB, SectionData::Symbol),
    ] {
        let section = builder.sections.add();
        section.name = name.into();
        section.sh_type = kind;
        section.data = data;
    }
    let symtab = builder.sections.iter().last().map(Section::id);
    if let Some(function) = text {
        let id = text_section(&mut builder);
        define(&mut builder, id, function).unwrap();
    }
    let call = Insn { op: CALL, src: PSEUDO_CALL, imm: -1, ..Insn::default() };
    let program = [call, call, Insn::exit()].iter().flat_map(|insn| insn.encode()).collect::<Vec<_>>();
    let size = program.len() as u64;
    let section = builder.sections.add();
    section.name = b"raw_tp".as_slice().into();
    section.sh_type = elf::SHT_PROGBITS;
    section.sh_flags = elf::SHF_ALLOC | elf::SHF_EXECINSTR;
    section.sh_addralign = 8;
    section.data = SectionData::Data(program.into());
    let id = section.id();
    let symbol = builder.symbols.add();
    symbol.name = b"probe".as_slice().into();
    symbol.section = Some(id);
    symbol.st_size = size;
    symbol.set_st_info(elf::STB_GLOBAL, elf::STT_FUNC);
    let mut relocations = Vec::new();
    for (number, name) in [tracer_abi::FILTER, tracer_abi::RECORD].into_iter().enumerate() {
        let symbol = builder.symbols.add();
        symbol.name = name.into();
        symbol.set_st_info(elf::STB_GLOBAL, elf::STT_NOTYPE);
        relocations.push(Relocation {
            r_offset: 8 * number as u64,
            symbol: Some(symbol.id()),
            r_type: elf::R_BPF_64_32,
            r_addend: 0,
        });
    }
    let section = builder.sections.add();
    section.name = b".relraw_tp".as_slice().into();
    section.sh_type = elf::SHT_REL;
    section.sh_flags = elf::SHF_INFO_LINK;
    section.sh_link_section = symtab;
    section.sh_info_section = Some(id);
    section.sh_addralign = 8;
    section.sh_entsize = 16;
    section.data = SectionData::Relocation(relocations);
    let license = builder.sections.add();
    license.name = b"license".as_slice().into();
    license.sh_type = elf::SHT_PROGBITS;
    license.sh_flags = elf::SHF_ALLOC;
    license.sh_addralign = 1;
    license.data = SectionData::Data(b"Dual MIT/GPL\0".as_slice().into());
    let mut bytes = Vec::new();
    builder.write(&mut bytes).unwrap();
    bytes
}

fn returns(name: &str, value: i32) -> Function {
    let mut asm = Assembler::new();
    asm.mov(Reg::R0, value);
    asm.exit();
    asm.finish(name)
}

/// The instructions of a program as aya loads them, with calls resolved.
fn loaded(bytes: &[u8], program: &str) -> Vec<Insn> {
    let mut object = Object::parse(bytes).unwrap();
    let text: HashSet<usize> = object.functions.keys().map(|(section, _)| *section).collect();
    object.relocate_calls(&text).unwrap();
    let program = &object.programs[program];
    object.functions[&program.function_key()]
        .instructions
        .iter()
        .map(|insn| Insn {
            op: insn.code,
            dst: insn.dst_reg(),
            src: insn.src_reg(),
            off: insn.off,
            imm: insn.imm,
            map: None,
        })
        .collect()
}

/// First immediate of the function that the call at `slot` calls.
fn callee(insns: &[Insn], slot: usize) -> i32 {
    insns[(slot as i64 + 1 + i64::from(insns[slot].imm)) as usize].imm
}

#[test]
fn calls_reach_the_functions() {
    let local = returns("local", 1);
    for text in [None, Some(&local)] {
        let object =
            link(&template(text), &[returns(tracer_abi::RECORD, 77), returns(tracer_abi::FILTER, 66)])
                .unwrap();
        let insns = loaded(&object, "probe");
        assert_eq!((callee(&insns, 0), callee(&insns, 1)), (66, 77));
        assert_eq!(insns.len(), 3 + 2 + 2);
    }
}

#[test]
fn addresses_of_functions_are_relocated() {
    let mut asm = Assembler::new();
    asm.function(Reg::R2, "callback");
    asm.mov(Reg::R0, 5);
    asm.alu(Alu::Add, Reg::R0, 1);
    asm.exit();
    let functions = [returns(tracer_abi::RECORD, 7), asm.finish(tracer_abi::FILTER), returns("callback", 42)];
    let insns = loaded(&link(&template(None), &functions).unwrap(), "probe");
    let load = insns.iter().position(|insn| insn.is_wide()).unwrap();
    assert_eq!(insns[load].src, crate::code::asm::PSEUDO_FUNC);
    assert_eq!(callee(&insns, load), 42);
}

#[test]
fn missing_and_duplicate_functions_are_named() {
    let missing = link(&template(None), &[returns(tracer_abi::FILTER, 0)]).unwrap_err();
    assert_eq!(missing.to_string(), "template object: no function for undefined symbol `tracer_record`");
    let twice = link(&template(None), &[returns(tracer_abi::FILTER, 0), returns(tracer_abi::FILTER, 1)]);
    assert_eq!(twice.unwrap_err().to_string(), "template object: `tracer_filter` is defined twice");
    assert!(matches!(link(b"no object", &[]), Err(LinkError::Object(_))));
}

/// The templates that `cargo xtask ebpf` made.
static TEMPLATES: &[u8] = include_bytes!("../../../ebpf/tracer-ebpf.o");

#[test]
fn the_real_templates_link() {
    let functions =
        [returns(tracer_abi::FILTER, 66), returns(tracer_abi::RECORD, 77), returns(tracer_abi::TRIGGER, 88)];
    let linked = link(TEMPLATES, &functions).unwrap();
    let names: Vec<String> = Object::parse(&linked).unwrap().programs.keys().cloned().collect();
    let mut recording = 0;
    for name in &names {
        let insns = loaded(&linked, name);
        let calls = insns.iter().enumerate().filter(|(_, insn)| insn.op == CALL && insn.src == PSEUDO_CALL);
        let made: HashSet<i32> = calls.map(|(slot, _)| callee(&insns, slot)).collect();
        // Programs that keep a table or find an address record nothing; all others call all three functions.
        if !made.is_empty() {
            assert!(made.is_superset(&HashSet::from([66, 77, 88])), "{name}: {made:?}");
            recording += 1;
        }
    }
    for hook in ["trace_event", "raw_event", "inject"] {
        assert!(names.iter().any(|name| name == hook), "{hook} in {names:?}");
    }
    assert!(recording >= 3, "{recording} of {names:?}");
}
