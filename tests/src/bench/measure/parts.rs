//! Measures the instructions and helpers of which the cost of a hit consists, in programs that the kernel runs many
//! times in one call (`BPF_PROG_TEST_RUN`). The time of a part is the difference between a program with
//! [`COPIES`] of it and one without, divided by their number.

#![allow(unsafe_code)]

use std::fmt::Write as _;
use std::os::fd::{AsFd, AsRawFd};

use anyhow::{Context, Result, ensure};
use tracer_user::code::asm::{
    Alu, Assembler, Atomic, CALL, Function, Helper, Insn, LD_IMM64, PSEUDO_MAP_FD, PSEUDO_MAP_VALUE, Reg,
    Width,
};
use tracer_user::code::join::join;
use tracer_user::sys::bpf::map::{Map, MapKind, MapSpec};
use tracer_user::sys::bpf::prog::{Prog, ProgKind};

use crate::bench::raw::{At, RawData};
use crate::bench::statistics::{median, spread};

const TITLE: &str = "Parts of a hit";

/// Copies of a part in one program.
const COPIES: u32 = 64;
/// Runs of a program in one call of the kernel.
const REPEAT: u32 = 20_000;
/// Fewer runs of a program that fills a ring buffer, so that it does not become full.
const REPEAT_FILLING: u32 = 2_000;
/// Bytes of such a ring buffer.
const RING: u32 = 32 << 20;
/// Calls of the kernel. Disturbances only add time, so the smallest result counts.
const TRIES: usize = 15;

/// `BPF_PROG_TEST_RUN`, and its arguments in `union bpf_attr` (include/uapi/linux/bpf.h).
const TEST_RUN: libc::c_long = 10;
#[repr(C)]
#[derive(Default)]
struct TestRun {
    program: u32,
    result: u32,
    input_bytes: u32,
    output_bytes: u32,
    input: u64,
    output: u64,
    repeat: u32,
    /// Mean nanoseconds of a run; the kernel sets it.
    duration: u32,
}

/// The map that a part uses; its address is in R6.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Uses {
    Nothing,
    /// The map itself, with keys of four bytes and values of eight. Its first key is in R10-8.
    Map(MapKind),
    /// The first value of an array.
    Value,
    /// A ring buffer; R7 has no meaning.
    Ring,
    /// Nothing in R6; R7 has the current task.
    Task,
}

/// A part: its name, what it uses, and the instructions of one copy.
struct Piece {
    name: &'static str,
    uses: Uses,
    copy: fn(&mut Assembler),
}

/// Helpers that the project's programs do not call.
const GET_COARSE_NS: i32 = 160;
const RINGBUF_RESERVE: i32 = 131;
const RINGBUF_SUBMIT: i32 = 132;
/// `BPF_RB_NO_WAKEUP`
const NO_WAKEUP: i32 = 1;
/// Bytes of a record in a ring buffer.
const RECORD: i32 = 64;

const PIECES: &[Piece] = &[
    Piece {
        name: "`bpf_get_smp_processor_id`",
        uses: Uses::Nothing,
        copy: |asm| asm.call(Helper::GetSmpProcessorId),
    },
    Piece {
        name: "`bpf_get_current_task`",
        uses: Uses::Nothing,
        copy: |asm| asm.call(Helper::GetCurrentTask),
    },
    Piece {
        name: "`bpf_get_current_pid_tgid`",
        uses: Uses::Nothing,
        copy: |asm| asm.call(Helper::GetCurrentPidTgid),
    },
    Piece { name: "`bpf_ktime_get_ns`", uses: Uses::Nothing, copy: |asm| asm.call(Helper::KtimeGetNs) },
    Piece {
        name: "`bpf_ktime_get_coarse_ns`",
        uses: Uses::Nothing,
        copy: |asm| asm.push(Insn { op: CALL, imm: GET_COARSE_NS, ..Insn::default() }),
    },
    Piece { name: "call of a BPF function", uses: Uses::Nothing, copy: |asm| asm.call_function(CALLED) },
    Piece {
        name: "`bpf_probe_read_kernel` of 8 bytes",
        uses: Uses::Task,
        copy: |asm| {
            asm.address(Reg::R1, Reg::R10, -16);
            asm.mov(Reg::R2, 8);
            asm.mov(Reg::R3, Reg::R7);
            asm.call(Helper::ProbeReadKernel);
        },
    },
    Piece { name: "lookup in an array", uses: Uses::Map(MapKind::Array), copy: lookup },
    Piece { name: "lookup in a per-CPU array", uses: Uses::Map(MapKind::PerCpuArray), copy: lookup },
    Piece { name: "lookup in a hash", uses: Uses::Map(MapKind::Hash), copy: lookup },
    Piece {
        name: "addition in an array, three instructions",
        uses: Uses::Value,
        copy: |asm| {
            asm.load(Width::D, Reg::R1, Reg::R6, 0);
            asm.alu(Alu::Add, Reg::R1, 1);
            asm.store(Width::D, Reg::R6, 0, Reg::R1);
        },
    },
    Piece {
        name: "atomic addition",
        uses: Uses::Value,
        copy: |asm| {
            asm.mov(Reg::R1, 1);
            asm.atomic(Width::D, Atomic::AddOnly, Reg::R6, 0, Reg::R1);
        },
    },
    Piece {
        name: "atomic exchange",
        uses: Uses::Value,
        copy: |asm| {
            asm.mov(Reg::R1, 1);
            asm.atomic(Width::D, Atomic::Exchange, Reg::R6, 0, Reg::R1);
        },
    },
    Piece {
        name: "atomic compare and exchange",
        uses: Uses::Value,
        copy: |asm| {
            asm.mov(Reg::R0, 0);
            asm.mov(Reg::R1, 1);
            asm.atomic(Width::D, Atomic::CompareExchange, Reg::R6, 0, Reg::R1);
        },
    },
    Piece {
        name: "`bpf_ringbuf_output` of 64 bytes",
        uses: Uses::Ring,
        copy: |asm| {
            asm.mov(Reg::R1, Reg::R6);
            asm.address(Reg::R2, Reg::R10, -(RECORD + 16));
            asm.mov(Reg::R3, RECORD);
            asm.mov(Reg::R4, NO_WAKEUP);
            asm.call(Helper::RingbufOutput);
        },
    },
    Piece {
        name: "`bpf_ringbuf_reserve` of 64 bytes and `bpf_ringbuf_submit`",
        uses: Uses::Ring,
        copy: |asm| {
            let full = asm.label();
            asm.mov(Reg::R1, Reg::R6);
            asm.mov(Reg::R2, RECORD);
            asm.mov(Reg::R3, 0);
            asm.push(Insn { op: CALL, imm: RINGBUF_RESERVE, ..Insn::default() });
            asm.jump_if(tracer_user::code::asm::Cond::Eq, Reg::R0, 0, full);
            asm.mov(Reg::R1, Reg::R0);
            asm.mov(Reg::R2, NO_WAKEUP);
            asm.push(Insn { op: CALL, imm: RINGBUF_SUBMIT, ..Insn::default() });
            asm.bind(full);
        },
    },
];

/// The name of the called function.
const CALLED: &str = "called";

fn lookup(asm: &mut Assembler) {
    asm.mov(Reg::R1, Reg::R6);
    asm.address(Reg::R2, Reg::R10, -8);
    asm.call(Helper::MapLookupElem);
}

/// Measures all parts, and returns the table.
pub(crate) fn run(raw: &mut RawData) -> Result<String> {
    let mut table = format!(
        "\n### {TITLE}\n\nNanoseconds of one copy of {COPIES} in a program that the kernel runs {REPEAT} times in a \
         call (smallest of {TRIES}\ncalls; median, smallest and largest in the last column). The programs with a ring buffer run \
         {REPEAT_FILLING} times, and their records\nare in memory that was not used before.\n\n| part | ns | all |\n|---|---:|---:|\n"
    );
    for piece in PIECES {
        if let Err(error) = piece.time(0).and_then(|_| piece.time(COPIES)) {
            eprintln!("{}: {error:#}", piece.name);
            let _ = writeln!(table, "| {} | not possible in this kernel | |", piece.name);
            continue;
        }
        let mut times = Vec::with_capacity(TRIES);
        for _ in 0..TRIES {
            let [with, without] = [piece.time(COPIES)?, piece.time(0)?];
            times.push((with - without) / f64::from(COPIES));
        }
        raw.keep(At { table: TITLE, row: piece.name, column: "part" }, "one copy", "ns", &times);
        let least = times.iter().copied().fold(f64::INFINITY, f64::min);
        eprintln!("{}: {least:.1} ns (median {:.1})", piece.name, median(&times));
        let _ = writeln!(table, "| {} | {least:.1} | {} |", piece.name, spread(&times));
    }
    Ok(table)
}

impl Piece {
    /// Nanoseconds of a run of a program with this many copies.
    fn time(&self, copies: u32) -> Result<f64> {
        let map = self.uses.map()?;
        let code = self.program(copies, map.as_ref());
        let bytes: Vec<u8> = code.iter().flat_map(|insn| insn.encode()).collect();
        let program = Prog::load(ProgKind::SocketFilter, &bytes, "part").with_context(|| self.name)?;
        let repeat = if self.uses == Uses::Ring { REPEAT_FILLING } else { REPEAT };
        run_repeatedly(&program, repeat)
    }

    /// The program: puts what the part uses into registers, has the copies, and returns 0.
    fn program(&self, copies: u32, map: Option<&Map>) -> Vec<Insn> {
        let mut main = Assembler::new();
        for offset in (-(RECORD + 16)..0).step_by(8) {
            main.store(Width::D, Reg::R10, offset as i16, 0);
        }
        if let Some(map) = map {
            let source = if self.uses == Uses::Value { PSEUDO_MAP_VALUE } else { PSEUDO_MAP_FD };
            let descriptor = map.as_fd().as_raw_fd();
            let first =
                Insn { op: LD_IMM64, dst: Reg::R6 as u8, src: source, imm: descriptor, ..Insn::default() };
            main.push_wide(first, Insn::default());
        }
        if self.uses == Uses::Task {
            main.call(Helper::GetCurrentTask);
            main.mov(Reg::R7, Reg::R0);
        }
        for _ in 0..copies {
            (self.copy)(&mut main);
        }
        main.mov(Reg::R0, 0);
        main.exit();
        let mut functions: Vec<Function> = vec![main.finish("main")];
        if functions.iter().any(|function| !function.addresses.is_empty()) {
            let mut called = Assembler::new();
            called.mov(Reg::R0, 0);
            called.exit();
            functions.push(called.finish(CALLED));
        }
        join(&functions, &[])
    }
}

impl Uses {
    fn map(self) -> Result<Option<Map>> {
        let (kind, key_size, value_size, max_entries) = match self {
            Self::Nothing | Self::Task => return Ok(None),
            Self::Map(kind) => (kind, 4, 8, 16),
            Self::Value => (MapKind::Array, 4, 8, 1),
            Self::Ring => (MapKind::RingBuf, 0, 0, RING),
        };
        let map = Map::create(&MapSpec {
            kind,
            key_size,
            value_size,
            max_entries,
            flags: 0,
            inner: None,
            name: "part",
        })?;
        if self == Self::Map(MapKind::Hash) {
            map.update(&[0; 4], &[0; 8])?;
        }
        Ok(Some(map))
    }
}

/// Runs a program in the kernel, and returns the mean nanoseconds of a run.
fn run_repeatedly(program: &Prog, repeat: u32) -> Result<f64> {
    // At least an Ethernet header.
    let packet = [0_u8; 64];
    let mut attributes = TestRun {
        program: program.as_fd().as_raw_fd().cast_unsigned(),
        input_bytes: packet.len() as u32,
        input: packet.as_ptr() as u64,
        repeat,
        ..TestRun::default()
    };
    // SAFETY: the attributes and the packet live longer than the call, and their sizes are those passed.
    let result = unsafe { libc::syscall(libc::SYS_bpf, TEST_RUN, &raw mut attributes, size_of::<TestRun>()) };
    ensure!(result == 0, "BPF_PROG_TEST_RUN: {}", std::io::Error::last_os_error());
    Ok(f64::from(attributes.duration))
}
