//! Assembler: instructions in order, labels for jumps, notes for the listing.
//!
//! [`Assembler::finish`] removes unreachable code, which the verifier refuses, and shortens jumps to jumps. A label out
//! of reach of a 16-bit offset is reached through an island: a second jump within reach of the first. The 32-bit
//! `gotol` of later instruction sets would be shorter, but Linux 6.1 does not have it.

mod insn;
mod map_ref;
mod resolve;

pub use insn::{
    Alu, Atomic, CALL, Cond, EXIT, FETCH, Helper, INSN_SIZE, Insn, JA, LD_IMM64, Operand, PSEUDO_CALL,
    PSEUDO_FUNC, PSEUDO_KFUNC, PSEUDO_MAP_FD, PSEUDO_MAP_VALUE, Reg, SOURCE_REG, Width, class,
};
pub use map_ref::{MapRef, bind};

use std::collections::BTreeMap;

/// A position in the code, which jumps may name before or after it is bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Label(u32);

/// A finished function, which `code::link` appends to a template.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Function {
    /// Symbol.
    pub name: String,
    /// Instructions; a 64-bit immediate takes two.
    pub insns: Vec<Insn>,
    /// References to other functions: the slot of a call or the first slot of a 64-bit immediate, and the function's
    /// name.
    pub addresses: Vec<(usize, String)>,
    /// Notes by the slot that they precede.
    pub notes: BTreeMap<usize, Vec<String>>,
}

impl Function {
    /// The code as bytes, little endian.
    pub fn bytes(&self) -> Vec<u8> {
        self.insns.iter().flat_map(|insn| insn.encode()).collect()
    }

    /// The slots of references to maps, and the maps' symbols in the template's object.
    pub fn maps(&self) -> impl Iterator<Item = (usize, &str)> {
        let insns = self.insns.iter().enumerate();
        insns.filter_map(|(slot, insn)| Some((slot, insn.map?.symbol().unwrap_or("a map without a symbol"))))
    }
}

/// One instruction with its unresolved parts.
#[derive(Clone, Debug)]
struct Item {
    insn: Insn,
    /// Second slot of a 64-bit immediate.
    second: Option<Insn>,
    /// Target of a jump.
    target: Option<Label>,
    /// The function that is called, or whose address a 64-bit immediate is.
    address: Option<String>,
    notes: Vec<String>,
}

/// Collects the instructions of one function.
#[derive(Clone, Debug, Default)]
pub struct Assembler {
    items: Vec<Item>,
    /// For each label, the item that it precedes.
    labels: Vec<Option<usize>>,
    notes: Vec<String>,
}

impl Assembler {
    /// An empty function.
    pub fn new() -> Self {
        Self::default()
    }

    /// Creates a label that is not bound yet.
    pub fn label(&mut self) -> Label {
        self.labels.push(None);
        Label(self.labels.len() as u32 - 1)
    }

    /// Binds the label to the next instruction.
    ///
    /// # Panics
    /// If the label is already bound.
    pub fn bind(&mut self, label: Label) {
        let place = &mut self.labels[label.0 as usize];
        assert!(place.is_none(), "a label is bound once");
        *place = Some(self.items.len());
    }

    /// Adds a note before the next instruction.
    pub fn note(&mut self, text: impl Into<String>) {
        self.notes.push(text.into());
    }

    /// Appends an instruction unchanged.
    pub fn push(&mut self, insn: Insn) {
        self.item(insn, None, None, None);
    }

    /// Appends the two slots of a 64-bit immediate unchanged.
    pub fn push_wide(&mut self, first: Insn, second: Insn) {
        self.item(first, Some(second), None, None);
    }

    /// `dst = *(width *)(src + off)`
    pub fn load(&mut self, width: Width, dst: Reg, src: Reg, off: i16) {
        self.push(Insn::load(width, dst, src, off));
    }

    /// `*(width *)(dst + off) = value`
    pub fn store(&mut self, width: Width, dst: Reg, off: i16, value: impl Into<Operand>) {
        self.push(Insn::store(width, dst, off, value.into()));
    }

    /// `value = atomic operation on *(width *)(dst + off) with value`
    pub fn atomic(&mut self, width: Width, op: Atomic, dst: Reg, off: i16, value: Reg) {
        self.push(Insn::atomic(width, op, dst, off, value));
    }

    /// 64-bit arithmetic.
    pub fn alu(&mut self, op: Alu, dst: Reg, value: impl Into<Operand>) {
        self.push(Insn::alu(op, dst, value.into()));
    }

    /// 32-bit arithmetic.
    pub fn alu32(&mut self, op: Alu, dst: Reg, value: impl Into<Operand>) {
        self.push(Insn::alu32(op, dst, value.into()));
    }

    /// `dst = value`
    pub fn mov(&mut self, dst: Reg, value: impl Into<Operand>) {
        self.alu(Alu::Mov, dst, value);
    }

    /// `dst = value`, in the shortest encoding.
    pub fn constant(&mut self, dst: Reg, value: u64) {
        if let Ok(imm) = i32::try_from(value.cast_signed()) {
            self.mov(dst, imm);
        } else if let Ok(low) = u32::try_from(value) {
            self.alu32(Alu::Mov, dst, low.cast_signed());
        } else {
            let [first, second] = Insn::imm64(dst, value);
            self.push_wide(first, second);
        }
    }

    /// `dst = reg + off`, for an offset of any sign.
    pub fn address(&mut self, dst: Reg, reg: Reg, off: i32) {
        self.mov(dst, reg);
        if off != 0 {
            self.alu(Alu::Add, dst, off);
        }
    }

    /// `dst = address of function`
    pub fn function(&mut self, dst: Reg, name: impl Into<String>) {
        let [mut first, second] = Insn::imm64(dst, 0);
        first.src = PSEUDO_FUNC;
        self.item(first, Some(second), None, Some(name.into()));
    }

    /// `dst = map`
    pub fn map(&mut self, dst: Reg, map: MapRef) {
        self.map_immediate(dst, PSEUDO_MAP_FD, map);
    }

    /// `dst = address of the first value of map`
    pub fn map_value(&mut self, dst: Reg, map: MapRef) {
        self.map_immediate(dst, PSEUDO_MAP_VALUE, map);
    }

    fn map_immediate(&mut self, dst: Reg, kind: u8, map: MapRef) {
        let [mut first, second] = Insn::imm64(dst, 0);
        (first.src, first.map) = (kind, Some(map));
        self.push_wide(first, second);
    }

    /// Unconditional jump.
    pub fn jump(&mut self, to: Label) {
        self.item(Insn::jump(), None, Some(to), None);
    }

    /// 64-bit compare and jump.
    pub fn jump_if(&mut self, cond: Cond, dst: Reg, value: impl Into<Operand>, to: Label) {
        self.item(Insn::jump_if(true, cond, dst, value.into()), None, Some(to), None);
    }

    /// Compare and jump on the low 32 bits.
    pub fn jump32_if(&mut self, cond: Cond, dst: Reg, value: impl Into<Operand>, to: Label) {
        self.item(Insn::jump_if(false, cond, dst, value.into()), None, Some(to), None);
    }

    /// Call of a helper.
    pub fn call(&mut self, helper: Helper) {
        self.push(Insn::call(helper));
    }

    /// Call of a function that [`join`](super::join) adds to the program.
    pub fn call_function(&mut self, name: impl Into<String>) {
        let insn = Insn { op: CALL, src: PSEUDO_CALL, imm: -1, ..Insn::default() };
        self.item(insn, None, None, Some(name.into()));
    }

    /// Return.
    pub fn exit(&mut self) {
        self.push(Insn::exit());
    }

    fn item(&mut self, insn: Insn, second: Option<Insn>, target: Option<Label>, address: Option<String>) {
        self.items.push(Item { insn, second, target, address, notes: std::mem::take(&mut self.notes) });
    }
}
