//! One eBPF instruction: its fields, its encoding and its parts.
//!
//! Opcodes follow the instruction set standard (`Documentation/bpf/standardization/instruction-set.rst`,
//! `include/uapi/linux/bpf.h`). Only opcodes that lowering emits have names. All others decode too, so that a
//! template's instructions can be listed and checked.

use super::MapRef;

/// Bytes of an encoded instruction.
pub const INSN_SIZE: usize = 8;

/// Instruction classes: low three bits of an opcode.
pub mod class {
    /// Immediate and absolute loads; here only the two-slot 64-bit immediate.
    pub const LD: u8 = 0x00;
    /// Load from memory into a register.
    pub const LDX: u8 = 0x01;
    /// Store of an immediate.
    pub const ST: u8 = 0x02;
    /// Store of a register.
    pub const STX: u8 = 0x03;
    /// 32-bit arithmetic.
    pub const ALU: u8 = 0x04;
    /// 64-bit jumps.
    pub const JMP: u8 = 0x05;
    /// 32-bit jumps (5.1 and later).
    pub const JMP32: u8 = 0x06;
    /// 64-bit arithmetic.
    pub const ALU64: u8 = 0x07;
}

/// Bit of an arithmetic or jump opcode: the source is a register instead of the immediate.
pub const SOURCE_REG: u8 = 0x08;
/// Addressing mode of plain loads and stores.
const MODE_MEM: u8 = 0x60;
/// Addressing mode of atomic operations.
const MODE_ATOMIC: u8 = 0xc0;
/// Mask of the mode bits of an opcode.
const MODES: u8 = 0xe0;
/// Bit of an atomic operation's immediate: the source register receives the old value.
pub const FETCH: i32 = 0x01;
/// Opcode of the two-slot 64-bit immediate load.
pub const LD_IMM64: u8 = 0x18;
/// Opcode of a call.
pub const CALL: u8 = 0x85;
/// Opcode of the return from a function.
pub const EXIT: u8 = 0x95;
/// Opcode of the unconditional jump with a 16-bit offset.
pub const JA: u8 = 0x05;
/// Source register of a [`LD_IMM64`] that loads a map: `BPF_PSEUDO_MAP_FD`.
pub const PSEUDO_MAP_FD: u8 = 1;
/// Source register of a [`CALL`] that calls a function of the program: `BPF_PSEUDO_CALL`.
pub const PSEUDO_CALL: u8 = 1;
/// Source register of a [`CALL`] that calls a function of the kernel: `BPF_PSEUDO_KFUNC_CALL`.
pub const PSEUDO_KFUNC: u8 = 2;
/// Source register of a [`LD_IMM64`] that loads a function's address: `BPF_PSEUDO_FUNC`.
pub const PSEUDO_FUNC: u8 = 4;
/// Source register of a [`LD_IMM64`] that loads the address of a map's value: `BPF_PSEUDO_MAP_VALUE`.
pub const PSEUDO_MAP_VALUE: u8 = 2;

/// A register. R0 is the result, R1 to R5 are arguments that a call clobbers, R6 to R9 survive a call, R10 is the
/// frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(missing_docs, reason = "they have no other names")]
pub enum Reg {
    R0,
    R1,
    R2,
    R3,
    R4,
    R5,
    R6,
    R7,
    R8,
    R9,
    R10,
}

/// Width of a memory access: one, two, four or eight bytes. Its value is the opcode's size bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
#[allow(missing_docs, reason = "their letters are those of the instruction set")]
pub enum Width {
    B = 0x10,
    H = 0x08,
    W = 0x00,
    D = 0x18,
}

impl Width {
    /// The width of this many bytes.
    pub fn of(size: usize) -> Option<Self> {
        [Self::B, Self::H, Self::W, Self::D].into_iter().find(|width| width.bytes() == size)
    }

    /// Size in bytes.
    pub fn bytes(self) -> usize {
        match self {
            Self::B => 1,
            Self::H => 2,
            Self::W => 4,
            Self::D => 8,
        }
    }

    /// Reads the size bits of a load or store opcode.
    pub fn of_opcode(op: u8) -> Self {
        match op & 0x18 {
            0x00 => Self::W,
            0x08 => Self::H,
            0x10 => Self::B,
            _ => Self::D,
        }
    }
}

/// Arithmetic operation; its value is the opcode's high four bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
#[allow(missing_docs, reason = "they are their names")]
pub enum Alu {
    Add = 0x00,
    Sub = 0x10,
    Mul = 0x20,
    /// Unsigned; division by 0 yields 0.
    Div = 0x30,
    Or = 0x40,
    And = 0x50,
    Lsh = 0x60,
    Rsh = 0x70,
    Neg = 0x80,
    Xor = 0xa0,
    Mov = 0xb0,
    /// Shift right, filling with the sign.
    Arsh = 0xc0,
}

impl Alu {
    /// The operation of an arithmetic opcode, if it has a name here.
    pub fn of_opcode(op: u8) -> Option<Self> {
        use Alu::{Add, And, Arsh, Div, Lsh, Mov, Mul, Neg, Or, Rsh, Sub, Xor};
        let all = [Add, Sub, Mul, Div, Or, And, Lsh, Rsh, Neg, Xor, Mov, Arsh];
        all.into_iter().find(|operation| *operation as u8 == op & 0xf0)
    }
}

/// Atomic operation; its value is the immediate. All but [`Atomic::AddOnly`] and [`Atomic::OrOnly`] return
/// the old value (5.12 and later).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
#[allow(missing_docs, reason = "they are their names")]
pub enum Atomic {
    AddOnly = 0x00,
    OrOnly = 0x40,
    Add = FETCH,
    Or = 0x40 | FETCH,
    And = 0x50 | FETCH,
    Exchange = 0xe0 | FETCH,
    /// If R0 equals the value in memory, the operation stores the new value. R0 receives the old value.
    CompareExchange = 0xf0 | FETCH,
}

/// Condition of a jump; its value is the opcode's high four bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Cond {
    /// `==`
    Eq = 0x10,
    /// unsigned `>`
    Gt = 0x20,
    /// unsigned `>=`
    Ge = 0x30,
    /// `&`: at least one common bit
    Set = 0x40,
    /// `!=`
    Ne = 0x50,
    /// signed `>`
    SGt = 0x60,
    /// signed `>=`
    SGe = 0x70,
    /// unsigned `<`
    Lt = 0xa0,
    /// unsigned `<=`
    Le = 0xb0,
    /// signed `<`
    SLt = 0xc0,
    /// signed `<=`
    SLe = 0xd0,
}

impl Cond {
    /// The condition of a conditional jump's opcode.
    pub fn of_opcode(op: u8) -> Option<Self> {
        use Cond::{Eq, Ge, Gt, Le, Lt, Ne, SGe, SGt, SLe, SLt, Set};
        let all = [Eq, Gt, Ge, Set, Ne, SGt, SGe, Lt, Le, SLt, SLe];
        all.into_iter().find(|cond| *cond as u8 == op & 0xf0)
    }

    /// The opposite condition; [`Cond::Set`] has none.
    pub fn inverse(self) -> Option<Self> {
        Some(match self {
            Self::Eq => Self::Ne,
            Self::Ne => Self::Eq,
            Self::Gt => Self::Le,
            Self::Le => Self::Gt,
            Self::Ge => Self::Lt,
            Self::Lt => Self::Ge,
            Self::SGt => Self::SLe,
            Self::SLe => Self::SGt,
            Self::SGe => Self::SLt,
            Self::SLt => Self::SGe,
            Self::Set => return None,
        })
    }
}

/// Second operand of arithmetic, jumps and stores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operand {
    /// A register.
    Reg(Reg),
    /// A sign-extended 32-bit number.
    Imm(i32),
}

impl From<Reg> for Operand {
    fn from(reg: Reg) -> Self {
        Self::Reg(reg)
    }
}

impl From<i32> for Operand {
    fn from(imm: i32) -> Self {
        Self::Imm(imm)
    }
}

/// Kernel helper functions that generated code calls; their values are the numbers in `include/uapi/linux/bpf.h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
#[allow(missing_docs, reason = "they are their names")]
pub enum Helper {
    MapLookupElem = 1,
    MapUpdateElem = 2,
    MapDeleteElem = 3,
    KtimeGetNs = 5,
    GetSmpProcessorId = 8,
    TailCall = 12,
    GetCurrentPidTgid = 14,
    GetCurrentComm = 16,
    GetCurrentTask = 35,
    GetStack = 67,
    ProbeReadUser = 112,
    ProbeReadKernel = 113,
    ProbeReadUserStr = 114,
    ProbeReadKernelStr = 115,
    RingbufOutput = 130,
    /// Only in sleepable programs; since 5.10, in programs of uprobes since 6.0.
    CopyFromUser = 148,
    /// Since 5.11.
    GetCurrentTaskBtf = 158,
    /// Since 5.13.
    Snprintf = 165,
    /// Since 5.15; in programs of uprobes since 6.6.
    GetFuncIp = 173,
    /// Since 5.15.
    GetAttachCookie = 174,
    /// Since 5.16, in programs that user space runs.
    KallsymsLookupName = 179,
    /// Since 5.17.
    Loop = 181,
}

impl Helper {
    /// The helper's name in the uapi header, for numbers that generated code or a template is likely to call.
    pub fn name(number: i32) -> Option<&'static str> {
        Some(match number {
            1 => "bpf_map_lookup_elem",
            2 => "bpf_map_update_elem",
            3 => "bpf_map_delete_elem",
            4 => "bpf_probe_read",
            5 => "bpf_ktime_get_ns",
            6 => "bpf_trace_printk",
            8 => "bpf_get_smp_processor_id",
            12 => "bpf_tail_call",
            14 => "bpf_get_current_pid_tgid",
            15 => "bpf_get_current_uid_gid",
            16 => "bpf_get_current_comm",
            25 => "bpf_perf_event_output",
            27 => "bpf_get_stackid",
            35 => "bpf_get_current_task",
            67 => "bpf_get_stack",
            80 => "bpf_get_current_cgroup_id",
            112 => "bpf_probe_read_user",
            113 => "bpf_probe_read_kernel",
            114 => "bpf_probe_read_user_str",
            115 => "bpf_probe_read_kernel_str",
            125 => "bpf_ktime_get_boot_ns",
            130 => "bpf_ringbuf_output",
            131 => "bpf_ringbuf_reserve",
            132 => "bpf_ringbuf_submit",
            133 => "bpf_ringbuf_discard",
            134 => "bpf_ringbuf_query",
            148 => "bpf_copy_from_user",
            158 => "bpf_get_current_task_btf",
            160 => "bpf_ktime_get_coarse_ns",
            165 => "bpf_snprintf",
            173 => "bpf_get_func_ip",
            174 => "bpf_get_attach_cookie",
            179 => "bpf_kallsyms_lookup_name",
            181 => "bpf_loop",
            195 => "bpf_map_lookup_percpu_elem",
            208 => "bpf_ktime_get_tai_ns",
            _ => return None,
        })
    }
}

/// One instruction slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Insn {
    /// Opcode.
    pub op: u8,
    /// Destination register's number.
    pub dst: u8,
    /// Source register's number.
    pub src: u8,
    /// Offset: bytes for a memory access, slots for a jump.
    pub off: i16,
    /// Immediate.
    pub imm: i32,
    /// The map that a [`LD_IMM64`] refers to, until it is bound to a descriptor.
    pub map: Option<MapRef>,
}

impl Insn {
    /// `dst = *(width *)(src + off)`
    pub fn load(width: Width, dst: Reg, src: Reg, off: i16) -> Self {
        let op = class::LDX | MODE_MEM | width as u8;
        Self { op, dst: dst as u8, src: src as u8, off, ..Self::default() }
    }

    /// `*(width *)(dst + off) = value`
    pub fn store(width: Width, dst: Reg, off: i16, value: Operand) -> Self {
        let (class, src, imm) = match value {
            Operand::Reg(src) => (class::STX, src as u8, 0),
            Operand::Imm(imm) => (class::ST, 0, imm),
        };
        Self { op: class | MODE_MEM | width as u8, dst: dst as u8, src, off, imm, map: None }
    }

    /// `value = atomic operation on *(width *)(dst + off) with value`, four or eight bytes wide.
    pub fn atomic(width: Width, op: Atomic, dst: Reg, off: i16, value: Reg) -> Self {
        let (imm, op) = (op as i32, class::STX | MODE_ATOMIC | width as u8);
        Self { op, dst: dst as u8, src: value as u8, off, imm, map: None }
    }

    /// 64-bit arithmetic.
    pub fn alu(op: Alu, dst: Reg, value: Operand) -> Self {
        Self::two_operands(class::ALU64 | op as u8, dst, value)
    }

    /// 32-bit arithmetic; the upper half becomes zero.
    pub fn alu32(op: Alu, dst: Reg, value: Operand) -> Self {
        Self::two_operands(class::ALU | op as u8, dst, value)
    }

    /// A conditional jump whose offset is filled in later.
    pub fn jump_if(wide: bool, cond: Cond, dst: Reg, value: Operand) -> Self {
        Self::two_operands(if wide { class::JMP } else { class::JMP32 } | cond as u8, dst, value)
    }

    /// An unconditional jump whose offset is filled in later.
    pub fn jump() -> Self {
        Self { op: JA, ..Self::default() }
    }

    /// A call of a helper.
    pub fn call(helper: Helper) -> Self {
        Self { op: CALL, imm: helper as i32, ..Self::default() }
    }

    /// A call of a function of the kernel, by its BTF id.
    pub fn call_kernel(function: u32) -> Self {
        Self { op: CALL, src: PSEUDO_KFUNC, imm: function.cast_signed(), ..Self::default() }
    }

    /// Return.
    pub fn exit() -> Self {
        Self { op: EXIT, ..Self::default() }
    }

    /// The two slots of a 64-bit immediate.
    pub fn imm64(dst: Reg, value: u64) -> [Self; 2] {
        [
            Self { op: LD_IMM64, dst: dst as u8, imm: value as i32, ..Self::default() },
            Self { imm: (value >> 32) as i32, ..Self::default() },
        ]
    }

    fn two_operands(op: u8, dst: Reg, value: Operand) -> Self {
        let (source, src, imm) = match value {
            Operand::Reg(src) => (SOURCE_REG, src as u8, 0),
            Operand::Imm(imm) => (0, 0, imm),
        };
        Self { op: op | source, dst: dst as u8, src, imm, ..Self::default() }
    }

    /// Instruction class.
    pub fn class(self) -> u8 {
        self.op & 0x07
    }

    /// Whether it is the first of the two slots of a 64-bit immediate.
    pub fn is_wide(self) -> bool {
        self.op == LD_IMM64
    }

    /// Whether it is an atomic operation.
    pub fn is_atomic(self) -> bool {
        self.class() == class::STX && self.op & MODES == MODE_ATOMIC
    }

    /// Whether it calls a function of the program.
    pub fn calls_function(self) -> bool {
        self.op == CALL && self.src == PSEUDO_CALL
    }

    /// Whether it calls a function of the program, or loads the address of one.
    pub fn refers_to_function(self) -> bool {
        self.calls_function() || self.is_wide() && self.src == PSEUDO_FUNC
    }

    /// Whether control may continue at a slot of the function other than the next one.
    pub fn is_jump(self) -> bool {
        matches!(self.class(), class::JMP | class::JMP32) && self.op != CALL && self.op != EXIT
    }

    /// Whether control never falls through to the next slot.
    pub fn ends_block(self) -> bool {
        self.op == EXIT || self.op == JA
    }

    /// Encodes the instruction in eight bytes, little endian.
    pub fn encode(self) -> [u8; INSN_SIZE] {
        let mut bytes = [0; INSN_SIZE];
        bytes[0] = self.op;
        bytes[1] = self.dst & 0x0f | self.src << 4;
        bytes[2..4].copy_from_slice(&self.off.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.imm.to_le_bytes());
        bytes
    }

    /// Decodes eight bytes, little endian.
    #[cfg(any(test, feature = "internals"))]
    pub fn decode(bytes: [u8; INSN_SIZE]) -> Self {
        Self {
            op: bytes[0],
            dst: bytes[1] & 0x0f,
            src: bytes[1] >> 4,
            off: i16::from_le_bytes([bytes[2], bytes[3]]),
            imm: i32::from_le_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]),
            map: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encodings_are_the_standard_ones() {
        // Each expected byte string is what clang emits for the statement (llvm-objdump of a C source).
        let insns: [(Insn, [u8; 8]); 11] = [
            (Insn::atomic(Width::D, Atomic::Add, Reg::R2, 0, Reg::R0), [0xdb, 0x02, 0, 0, 1, 0, 0, 0]),
            (
                Insn::atomic(Width::W, Atomic::Exchange, Reg::R1, 8, Reg::R3),
                [0xc3, 0x31, 8, 0, 0xe1, 0, 0, 0],
            ),
            (Insn::load(Width::D, Reg::R2, Reg::R1, 8), [0x79, 0x12, 8, 0, 0, 0, 0, 0]),
            (Insn::load(Width::B, Reg::R0, Reg::R10, -4), [0x71, 0xa0, 0xfc, 0xff, 0, 0, 0, 0]),
            (
                Insn::store(Width::W, Reg::R10, -8, Operand::Reg(Reg::R3)),
                [0x63, 0x3a, 0xf8, 0xff, 0, 0, 0, 0],
            ),
            (Insn::store(Width::D, Reg::R7, 16, Operand::Imm(-1)), [0x7a, 7, 16, 0, 0xff, 0xff, 0xff, 0xff]),
            (Insn::alu(Alu::Mov, Reg::R6, Operand::Reg(Reg::R1)), [0xbf, 0x16, 0, 0, 0, 0, 0, 0]),
            (Insn::alu32(Alu::Lsh, Reg::R2, Operand::Imm(24)), [0x64, 2, 0, 0, 24, 0, 0, 0]),
            (Insn::jump_if(true, Cond::Ne, Reg::R2, Operand::Imm(5)), [0x55, 2, 0, 0, 5, 0, 0, 0]),
            (Insn::jump_if(false, Cond::SLt, Reg::R2, Operand::Reg(Reg::R3)), [0xce, 0x32, 0, 0, 0, 0, 0, 0]),
            (Insn::exit(), [0x95, 0, 0, 0, 0, 0, 0, 0]),
        ];
        for (insn, bytes) in insns {
            assert_eq!(insn.encode(), bytes);
            assert_eq!(Insn::decode(bytes), insn);
        }
    }

    #[test]
    fn inverses_are_mutual() {
        for cond in [Cond::Eq, Cond::Gt, Cond::Ge, Cond::Ne, Cond::SGt, Cond::SGe, Cond::Lt, Cond::Le] {
            assert_eq!(cond.inverse().and_then(Cond::inverse), Some(cond));
            assert_ne!(cond.inverse(), Some(cond));
        }
    }
}
