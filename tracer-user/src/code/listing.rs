//! Listing: readable text of a function or of a whole linked program.
//!
//! Each line has one instruction in the pseudo C of the kernel's verifier log. Jumps use labels, and helper calls use
//! names. The notes of lowering precede the code that they describe. The text depends on the code alone.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write,
};

use super::asm::{
    CALL, EXIT, FETCH, Function, Helper, Insn, JA, LD_IMM64, PSEUDO_FUNC, PSEUDO_KFUNC, SOURCE_REG, Width,
    class,
};

/// Lists functions one after the other.
pub fn functions(functions: &[Function]) -> String {
    let mut text = String::new();
    for (number, function) in functions.iter().enumerate() {
        if number > 0 {
            text.push('\n');
        }
        _ = writeln!(text, "{}:", function.name);
        let addresses = function.addresses.iter().map(|(slot, name)| (*slot, name.clone())).collect();
        body(&mut text, &function.insns, &function.notes, &addresses);
    }
    text
}

/// Lists a program as it is loaded: encoded instructions, one function after the other.
pub fn program(insns: &[Insn]) -> String {
    let mut text = String::new();
    // The slots of calls and function addresses; their targets are the starts of functions.
    let references: Vec<(usize, usize)> = insns
        .iter()
        .enumerate()
        .filter(|(_, insn)| insn.refers_to_function())
        .filter_map(|(slot, insn)| Some((slot, target(slot, insn.imm)?)))
        .collect();
    let starts: BTreeSet<usize> = references.iter().map(|(_, start)| *start).collect();
    let names: BTreeMap<usize, String> =
        starts.into_iter().zip(1..).map(|(start, number)| (start, format!("function {number}"))).collect();
    let notes = names.iter().map(|(start, name)| (*start, vec![name.clone()])).collect();
    let addresses = references.iter().map(|(slot, start)| (*slot, names[start].clone())).collect();
    body(&mut text, insns, &notes, &addresses);
    text
}

/// The slot at a distance from the one after `slot`.
fn target(slot: usize, distance: i32) -> Option<usize> {
    usize::try_from(slot as i64 + 1 + i64::from(distance)).ok()
}

fn body(
    text: &mut String,
    insns: &[Insn],
    notes: &BTreeMap<usize, Vec<String>>,
    addresses: &BTreeMap<usize, String>,
) {
    let jumps = insns.iter().enumerate().filter(|(_, insn)| insn.is_jump());
    let targets: BTreeSet<usize> =
        jumps.filter_map(|(slot, insn)| target(slot, i32::from(insn.off))).collect();
    let labels: BTreeMap<usize, usize> = targets.into_iter().zip(1..).collect();
    let mut slot = 0;
    while slot < insns.len() {
        let insn = insns[slot];
        for note in notes.get(&slot).into_iter().flatten() {
            _ = writeln!(text, "      ; {note}");
        }
        if let Some(label) = labels.get(&slot) {
            _ = writeln!(text, "   L{label}:");
        }
        let label = || Some(format!("L{}", labels.get(&target(slot, i32::from(insn.off))?)?));
        let to = || label().unwrap_or_else(|| "?".to_owned());
        let name = || addresses.get(&slot).cloned().unwrap_or_else(|| "?".to_owned());
        let second = insns.get(slot + 1).copied().unwrap_or_default();
        _ = writeln!(text, "{slot:5}  {}", statement(insn, second, to, name));
        slot += 1 + usize::from(insn.is_wide());
    }
}

/// One instruction; `to` names the label of a jump, `name` the function that the instruction refers to.
fn statement(insn: Insn, second: Insn, to: impl Fn() -> String, name: impl Fn() -> String) -> String {
    let Insn { op, dst, src, off, imm, map } = insn;
    let wide = matches!(insn.class(), class::ALU64 | class::JMP);
    let reg = |number: u8| format!("{}{number}", if wide { 'r' } else { 'w' });
    let right = || if op & SOURCE_REG != 0 { reg(src) } else { imm.to_string() };
    let memory = |register: u8| {
        let kind = match Width::of_opcode(op) {
            Width::B => "u8",
            Width::H => "u16",
            Width::W => "u32",
            Width::D => "u64",
        };
        let sign = if off < 0 { '-' } else { '+' };
        format!("*({kind} *)(r{register} {sign} {})", off.unsigned_abs())
    };
    match insn.class() {
        class::LDX => format!("r{dst} = {}", memory(src)),
        class::STX if insn.is_atomic() => {
            let name = match imm & !FETCH {
                0x00 => "add",
                0x40 => "or",
                0x50 => "and",
                0xa0 => "xor",
                0xe0 => "exchange",
                0xf0 => "compare_exchange",
                _ => return format!("? {op:#04x} {imm:#x}"),
            };
            let back = if imm & FETCH != 0 { format!("r{src} = ") } else { String::new() };
            format!("{back}atomic_{name}({}, r{src})", memory(dst))
        }
        class::STX => format!("{} = r{src}", memory(dst)),
        class::ST => format!("{} = {imm}", memory(dst)),
        class::LD if op == LD_IMM64 && src == PSEUDO_FUNC => format!("r{dst} = &{}", name()),
        class::LD if op == LD_IMM64 => {
            let value = u64::from(imm.cast_unsigned()) | u64::from(second.imm.cast_unsigned()) << 32;
            let map = map.map_or_else(|| imm.to_string(), |map| map.to_string());
            match src {
                0 => format!("r{dst} = {value:#x} ll"),
                1 => format!("r{dst} = map {map}"),
                2 => format!("r{dst} = map {map} + {}", second.imm),
                _ => format!("r{dst} = ?{src} {value:#x} ll"),
            }
        }
        class::ALU | class::ALU64 => {
            let operator = match op & 0xf0 {
                0x00 => "+=",
                0x10 => "-=",
                0x20 => "*=",
                0x30 => "/=",
                0x40 => "|=",
                0x50 => "&=",
                0x60 => "<<=",
                0x70 => ">>=",
                0x80 => return format!("{0} = -{0}", reg(dst)),
                0x90 => "%=",
                0xa0 => "^=",
                0xb0 => "=",
                0xc0 => "s>>=",
                _ => return format!("? {op:#04x}"),
            };
            format!("{} {operator} {}", reg(dst), right())
        }
        _ if op == EXIT => "exit".to_owned(),
        _ if op == JA => format!("goto {}", to()),
        _ if insn.calls_function() => format!("call {}", name()),
        _ if op == CALL && insn.src == PSEUDO_KFUNC => format!("call kernel function {imm}"),
        _ if op == CALL => {
            Helper::name(imm).map_or_else(|| format!("call helper {imm}"), |name| format!("call {name}"))
        }
        class::JMP | class::JMP32 => {
            let operator = match op & 0xf0 {
                0x10 => "==",
                0x20 => ">",
                0x30 => ">=",
                0x40 => "&",
                0x50 => "!=",
                0x60 => "s>",
                0x70 => "s>=",
                0xa0 => "<",
                0xb0 => "<=",
                0xc0 => "s<",
                0xd0 => "s<=",
                _ => return format!("? {op:#04x}"),
            };
            format!("if {} {operator} {} goto {}", reg(dst), right(), to())
        }
        _ => format!("? {op:#04x}"),
    }
}
