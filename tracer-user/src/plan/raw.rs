//! Raw tracepoint plans: build an event's record from the arguments of its tracepoint.
//!
//! A perf tracepoint passes a record that the kernel has already built. A raw tracepoint runs before that, so a hit
//! that the filter drops costs less. In return, the source of each field must be known: [`super::raw_table`] lists it
//! in names and types, and this module checks the table against the kernel's BTF. Arguments are found by type and
//! order, never by number or kernel version (the arguments of `sched_switch` have moved twice). Names are checked
//! where BTF has them. If an event does not fit, planning returns a [`Refusal`], and the engine uses the perf
//! tracepoint.
//!
//! A plan is still a hypothesis. `engine::verify` runs both programs on hits that a thread of the tracer provokes
//! ([`Provoke`]). The engine uses the plan only if the records agree.

use super::raw_table::{self, Entry, From, Param};
use super::source::{CompatArgs, FieldSource, Source, SwitchState, SyscallArgs, UserData};
use crate::event::{Field, Format};
use crate::kernel::btf::{Kind, Prototype, TypeInfo};
use crate::kernel::syscalls::{Compat, Registers};
use crate::kernel::{Btf, Error};

/// The sources of an event's record at a raw tracepoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RawPlan {
    /// The tracepoint to attach to.
    pub tracepoint: String,
    /// Every field of the record.
    pub fields: Vec<FieldSource>,
    /// The mark of 32-bit system calls, if their hits are skipped, because the kernel omits them from the event.
    pub skip_compat: Option<Compat>,
    /// The event that replaces this one in the check at start: itself, or the event whose plan it shares.
    pub stand_in: (String, String),
    /// The action by which a thread of the tracer provokes that event.
    pub provoke: Provoke,
}

/// An action by which a thread of the tracer provokes an event in itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Provoke {
    /// `syscall(SYS_getppid, a, b, c, d, e, f)` with six different values left in the argument registers.
    Getppid,
    /// Sleeps (`clock_nanosleep`) until it was switched out and in.
    Sleep,
    /// Wakes another thread of the tracer that waits in a futex, both bound to one CPU.
    Wake,
    /// Starts a thread that ends at once, and joins it; the new thread's own hits count too.
    Thread,
    /// Creates a timerfd, arms it for one hour ahead, disarms it, closes it.
    Timerfd,
    /// Opens and closes a pipe.
    Pipe,
    /// Maps a page of fresh memory, writes to it, unmaps it.
    Fault,
    /// Sends a datagram to a UDP socket of the tracer on 127.0.0.1 and receives it.
    Loopback,
    /// Computes for up to 25 ms, so that a timer tick interrupts it.
    Spin,
}

/// Why an event has no raw plan.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    /// The table does not list the event.
    #[error("the table has no sources for the fields of {0}")]
    NotListed(String),
    /// The table does not fit this kernel.
    #[error("{event}: {why}")]
    Unfit {
        /// `system:name`.
        event: String,
        /// Reason.
        why: String,
    },
    /// The kernel's types could not be read.
    #[error(transparent)]
    Kernel(#[from] Error),
}

/// The events in the table, as `(system, name)`; events of `syscalls` need no entry.
pub fn listed() -> impl Iterator<Item = (&'static str, &'static str)> {
    raw_table::TABLE.iter().map(|entry| (entry.system, entry.name))
}

/// Plans an event's record from raw arguments. `syscall` is the call's number for an event of `syscalls`
/// ([`crate::kernel::syscalls::Numbers`]).
///
/// # Errors
/// A [`Refusal`] contains the reason why the perf tracepoint must be used.
pub fn plan(format: &Format, btf: &Btf, syscall: Option<u32>) -> Result<RawPlan, Refusal> {
    let unfit = |why: String| Refusal::Unfit { event: format.full_name(), why };
    if format.system == "syscalls" {
        return plan_syscall(format, btf, syscall);
    }
    let entry = raw_table::find(&format.system, &format.name)
        .ok_or_else(|| Refusal::NotListed(format.full_name()))?;
    let prototype = btf
        .tracepoint(&format.name)?
        .ok_or_else(|| unfit(format!("BTF has no btf_trace_{}", format.name)))?;
    let bound = Bound { entry, prototype: &prototype, btf };
    let mut fields = Vec::with_capacity(format.fields.len());
    for field in &format.fields {
        let source = bound.source(field).map_err(|trouble| match trouble {
            SourceError::Unfit(why) => unfit(format!("{}: {why}", field.name)),
            SourceError::Kernel(error) => error.into(),
        })?;
        fields.push(FieldSource { offset: field.offset as u16, size: field.size as u16, source });
    }
    Ok(RawPlan {
        tracepoint: format.name.clone(),
        fields,
        skip_compat: None,
        stand_in: (format.system.clone(), format.name.clone()),
        provoke: entry.provoke,
    })
}

/// Plans an event of one system call on raw `sys_enter` or `sys_exit`. The layout is that of
/// `struct syscall_trace_enter` and `syscall_trace_exit`, `kernel/trace/trace.h`.
fn plan_syscall(format: &Format, btf: &Btf, number: Option<u32>) -> Result<RawPlan, Refusal> {
    let unfit = |why: &str| Refusal::Unfit { event: format.full_name(), why: why.to_owned() };
    let number = number.ok_or_else(|| unfit("the call's number is not known"))?;
    let registers =
        Registers::find(btf)?.ok_or_else(|| unfit("struct pt_regs is not one of x86-64 or arm64"))?;
    let entering = format.name.starts_with("sys_enter_");
    let tracepoint = if entering { "sys_enter" } else { "sys_exit" };
    let prototype = btf.tracepoint(tracepoint)?.ok_or_else(|| unfit("BTF has no such raw tracepoint"))?;
    let types: Vec<_> = prototype.params.iter().map(|param| param.ty.as_str()).collect();
    if types != ["struct pt_regs *", "long"] {
        return Err(unfit("the raw tracepoint has other arguments"));
    }
    let [first, rest @ ..] = format.fields.as_slice() else { return Err(unfit("no fields")) };
    if (first.name.as_str(), first.offset, first.size) != ("__syscall_nr", 8, 4) {
        return Err(unfit("the record does not start with the call's number"));
    }
    let mut fields = vec![FieldSource { offset: 8, size: 4, source: Source::Const(u64::from(number)) }];
    let whole = |field: &Field| field.size == 8 && !field.is_data_loc() && !field.is_rel_loc();
    if entering {
        let (args, data) = rest.split_at(rest.iter().take_while(|field| whole(field)).count());
        if args.len() > registers.args.len() {
            return Err(unfit("more than six arguments"));
        }
        for (index, (field, register)) in args.iter().zip(registers.args).enumerate() {
            if field.offset != 16 + 8 * index {
                return Err(unfit("a field is not one of the call's arguments"));
            }
            let source = Source::Memory { arg: 0, path: vec![register] };
            fields.push(FieldSource { offset: field.offset as u16, size: 8, source });
        }
        for (index, field) in data.iter().enumerate() {
            let register = |number: usize| registers.args.get(number).copied();
            let found = pointer_of(field, args).and_then(|pointer| {
                let length = length_of(&format.name, pointer).and_then(register);
                Some(UserData { regs: 0, pointer: register(pointer)?, length })
            });
            let is_next = field.offset == 16 + 8 * args.len() + 4 * index;
            let (Some(found), true, true) = (found, is_next, field.is_data_loc()) else {
                return Err(unfit("a field is not the data at one of the call's arguments"));
            };
            let source = Source::UserData(found);
            fields.push(FieldSource { offset: field.offset as u16, size: 4, source });
        }
    } else {
        let [ret] = rest else { return Err(unfit("there is more than a return value")) };
        if (ret.name.as_str(), ret.offset) != ("ret", 16) || !whole(ret) {
            return Err(unfit("the second field is not the return value"));
        }
        fields.push(FieldSource { offset: 16, size: 8, source: Source::Arg(1) });
    }
    Ok(RawPlan {
        tracepoint: tracepoint.to_owned(),
        fields,
        skip_compat: Some(registers.compat),
        stand_in: ("raw_syscalls".to_owned(), tracepoint.to_owned()),
        provoke: Provoke::Getppid,
    })
}

/// Number of the argument that points to the data of a field: that of `__NAME_val` is `NAME`.
fn pointer_of(field: &Field, args: &[Field]) -> Option<usize> {
    let name = field.name.strip_prefix("__")?.strip_suffix("_val")?;
    args.iter().position(|arg| arg.name == name)
}

/// Number of the argument with the length of the data at argument `pointer`, for the system calls whose data are not a
/// text that ends with its first NUL (`check_faultable_syscall()`, kernel/trace/trace_syscalls.c). The format does not
/// tell it. Of `kexec_file_load` the kernel takes the argument after the command line's address for its address.
fn length_of(event: &str, pointer: usize) -> Option<usize> {
    let (known, length) = match event.strip_prefix("sys_enter_")? {
        "write" | "pwrite64" | "mq_timedsend" => (1, 2),
        "sethostname" | "setdomainname" => (0, 1),
        "kexec_file_load" => (4, 3),
        _ => return None,
    };
    (known == pointer).then_some(length)
}

/// Turns the plan of one system call's event into a plan for all calls of its shape: the program reads the number at
/// the hit.
pub fn for_any_call(fields: &mut [FieldSource], entering: bool, registers: &Registers) {
    let number = fields.iter_mut().find(|field| matches!(field.source, Source::Const(_)));
    if let Some(number) = number {
        number.source = if entering {
            Source::Arg(1)
        } else {
            let (path, width) = (vec![registers.number], registers.number_width);
            Source::Extended { arg: 0, path, width, signed: true }
        };
    }
}

/// A table entry checked against a tracepoint's actual prototype.
struct Bound<'a> {
    entry: &'static Entry,
    prototype: &'a Prototype,
    btf: &'a Btf,
}

#[derive(Debug, thiserror::Error)]
enum SourceError {
    #[error("{0}")]
    Unfit(String),
    #[error(transparent)]
    Kernel(#[from] Error),
}

fn unfit<T>(why: impl Into<String>) -> Result<T, SourceError> {
    Err(SourceError::Unfit(why.into()))
}

impl Bound<'_> {
    /// The source of a field of the event's actual format.
    fn source(&self, field: &Field) -> Result<Source, SourceError> {
        if field.is_data_loc() || field.is_rel_loc() {
            return unfit("its length varies");
        }
        let Some((_, from)) = self.entry.fields.iter().find(|(name, _)| *name == field.name) else {
            return unfit("the table does not list it");
        };
        match from {
            From::Arg(param) => {
                let (arg, info) = self.param(param)?;
                match info.kind {
                    Kind::Pointer { .. } if field.size == 8 => Ok(Source::Arg(arg)),
                    Kind::Number { .. } if field.size == info.size as usize => Ok(Source::Arg(arg)),
                    // The kernel zero-extends arguments to u64, signed ones too (`__CAST_TO_U64`).
                    Kind::Number { signed: false } if field.size > info.size as usize && field.size <= 8 => {
                        Ok(Source::Arg(arg))
                    }
                    _ => unfit(format!("argument {arg} has {} bytes, the field {}", info.size, field.size)),
                }
            }
            From::Read(param, paths) => self.read(field, param, paths),
            From::Target(param) => {
                let (arg, info) = self.param(param)?;
                let Kind::Pointer { to } = info.kind else {
                    let fits = info.size as usize == field.size;
                    let whole = || unfit(format!("the argument has {} bytes", info.size));
                    return if fits { Ok(Source::Arg(arg)) } else { whole() };
                };
                let target = self.btf.info(to)?;
                if target.size as usize == field.size {
                    Ok(Source::Memory { arg, path: vec![0] })
                } else {
                    unfit(format!("its target has {} bytes", target.size))
                }
            }
            From::SwitchState { preempt, state, task } => {
                let (preempt, _) = self.param(preempt)?;
                let (state, info) = self.param(state)?;
                let (task, _) = self.param(task)?;
                if info.size != 4 || field.size != 8 {
                    return unfit("the state has another width");
                }
                let Some(exit) = self.btf.member("task_struct", "exit_state")? else {
                    return unfit("struct task_struct has no exit_state");
                };
                Ok(Source::SwitchState(SwitchState { preempt, state, task, exit_state: exit.offset }))
            }
            From::SyscallNumber(param) => {
                let (arg, _) = self.param(param)?;
                let registers = self.registers()?;
                let source = Source::Extended {
                    arg,
                    path: vec![registers.number],
                    width: registers.number_width,
                    signed: true,
                };
                Ok(source)
            }
            From::SyscallArgs(param) => {
                let (regs, _) = self.param(param)?;
                if field.size != 48 {
                    return unfit(format!("{} bytes are not six arguments", field.size));
                }
                let Registers { args: native, compat, .. } = self.registers()?;
                let compat = compat.args.map(|args| CompatArgs {
                    task_offset: compat.task_offset,
                    mask: compat.mask,
                    regs: args,
                });
                Ok(Source::SyscallArgs(SyscallArgs { regs, native, compat }))
            }
        }
    }

    /// A value at a pointer argument, by the first path whose names exist in this kernel.
    fn read(&self, field: &Field, param: &Param, paths: &[&str]) -> Result<Source, SourceError> {
        let (arg, info) = self.param(param)?;
        let Kind::Pointer { to } = info.kind else { return unfit("the argument is not a pointer") };
        for path in paths {
            let Some((path, value)) = self.btf.walk(to, path)? else { continue };
            let plain = matches!(value.kind, Kind::Number { .. } | Kind::Pointer { .. } | Kind::Array { .. });
            if !plain || value.size as usize != field.size {
                return unfit(format!(
                    "argument {arg} points to {} bytes, the field has {}",
                    value.size, field.size
                ));
            }
            return Ok(Source::Memory { arg, path });
        }
        unfit(format!("BTF has none of {}", paths.join(", ")))
    }

    fn registers(&self) -> Result<Registers, SourceError> {
        match Registers::find(self.btf)? {
            Some(registers) => Ok(registers),
            None => unfit("struct pt_regs is not one of x86-64 or arm64"),
        }
    }

    /// The number and type of an argument.
    fn param(&self, wanted: &Param) -> Result<(u8, TypeInfo), SourceError> {
        let of_type = |ty: &str| wanted.ty.split('|').any(|one| one == ty);
        let mut fitting = self.prototype.params.iter().enumerate().filter(|(_, param)| of_type(&param.ty));
        let Some((index, param)) = fitting.nth(usize::from(wanted.nth)) else {
            return unfit(format!("the tracepoint has no argument {} of type {}", wanted.name, wanted.ty));
        };
        if let Some(name) = &param.name
            && name != wanted.name
        {
            return unfit(format!("argument {index} is {name}, not {}", wanted.name));
        }
        Ok((index as u8, param.info))
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;

    use super::*;
    use crate::kernel::btf::build::Build;

    const SWITCH: &str = "name: sched_switch\nID: 372\nformat:\n\
        \tfield:char prev_comm[16];\toffset:8;\tsize:16;\tsigned:0;\n\
        \tfield:pid_t prev_pid;\toffset:24;\tsize:4;\tsigned:1;\n\
        \tfield:long prev_state;\toffset:32;\tsize:8;\tsigned:1;\n\
        \tfield:pid_t next_pid;\toffset:56;\tsize:4;\tsigned:1;\n";

    /// Types of a kernel whose `sched_switch` takes these arguments: `b`ool, `t`ask, `u`nsigned int, with names.
    fn kernel(test: &str, arguments: &[(&str, char)]) -> Btf {
        let mut build = Build::new();
        let int = build.int("int", 4, true);
        let unsigned = build.int("unsigned int", 4, false);
        let byte = build.int("_Bool", 1, false);
        let truth = build.typedef("bool", byte);
        let chars = build.array(byte, 16);
        let members = [("exit_state", int, 32), ("pid", int, 64), ("comm", chars, 128)];
        let task = build.aggregate("task_struct", 64, &members);
        let task = build.pointer(task);
        let of = |ty| match ty {
            'b' => truth,
            't' => task,
            _ => unsigned,
        };
        let arguments: Vec<_> = arguments.iter().map(|(name, ty)| (*name, of(*ty))).collect();
        build.tracepoint("sched_switch", &arguments);
        build.read(test)
    }

    fn refusal(format: &str, btf: &Btf) -> String {
        plan(&Format::parse("sched", format).unwrap(), btf, None).unwrap_err().to_string()
    }

    #[test]
    fn arguments_are_found_by_name_at_any_position() {
        let format = Format::parse("sched", SWITCH).unwrap();
        // 5.18 had `prev_state` second; since 5.19 it is last.
        let early = [("preempt", 'b'), ("prev_state", 'u'), ("prev", 't'), ("next", 't')];
        let late = [("preempt", 'b'), ("prev", 't'), ("next", 't'), ("prev_state", 'u')];
        for (test, arguments, prev, next, state) in [("early", early, 2, 3, 1), ("late", late, 1, 2, 3)] {
            let found = plan(&format, &kernel(test, &arguments), None).unwrap();
            let field = |offset, size, source| FieldSource { offset, size, source };
            let switch = SwitchState { preempt: 0, state, task: prev, exit_state: 4 };
            assert_eq!(
                found.fields,
                [
                    field(8, 16, Source::Memory { arg: prev, path: vec![16] }),
                    field(24, 4, Source::Memory { arg: prev, path: vec![8] }),
                    field(32, 8, Source::SwitchState(switch)),
                    field(56, 4, Source::Memory { arg: next, path: vec![8] }),
                ]
            );
            assert_eq!((found.tracepoint.as_str(), found.provoke), ("sched_switch", Provoke::Sleep));
        }
    }

    #[test]
    fn unsupported_events_are_refused_with_a_reason() {
        let late = [("preempt", 'b'), ("prev", 't'), ("next", 't'), ("prev_state", 'u')];
        let btf = kernel("refused", &late);
        let swapped =
            kernel("swapped", &[("preempt", 'b'), ("next", 't'), ("prev", 't'), ("prev_state", 'u')]);
        let stateless = kernel("stateless", &late[..3]);
        for (format, btf, expected) in [
            (SWITCH.to_owned(), &swapped, "sched:sched_switch: prev_comm: argument 1 is next, not prev"),
            (
                SWITCH.to_owned(),
                &stateless,
                "sched:sched_switch: prev_state: the tracepoint has no argument prev_state of type unsigned int",
            ),
            (
                SWITCH.replace("prev_comm[16];\toffset:8;\tsize:16", "prev_comm[32];\toffset:8;\tsize:32"),
                &btf,
                "sched:sched_switch: prev_comm: argument 1 points to 16 bytes, the field has 32",
            ),
            (
                SWITCH.replace("char prev_comm[16]", "__data_loc char[] prev_comm"),
                &btf,
                "sched:sched_switch: prev_comm: its length varies",
            ),
            (
                SWITCH.replace("next_pid", "next_tgid"),
                &btf,
                "sched:sched_switch: next_tgid: the table does not list it",
            ),
            (
                SWITCH.replace("sched_switch", "sched_waking"),
                &btf,
                "sched:sched_waking: BTF has no btf_trace_sched_waking",
            ),
            (
                SWITCH.replace("sched_switch", "sched_other"),
                &btf,
                "the table has no sources for the fields of sched:sched_other",
            ),
        ] {
            assert_eq!(refusal(&format, btf), expected);
        }
    }

    /// Types of a kernel with the registers of system calls.
    fn kernel_with_calls(test: &str) -> Btf {
        let mut build = Build::new();
        let long = build.int("long int", 8, true);
        let status = build.int("unsigned int", 4, false);
        let names = ["r10", "r8", "r9", "bx", "cx", "dx", "si", "di", "bp", "orig_ax"];
        let members: Vec<_> = names.iter().zip(0..).map(|(name, at)| (*name, long, at * 64)).collect();
        let regs = build.aggregate("pt_regs", 80, &members);
        let regs = build.pointer(regs);
        let info = build.aggregate("thread_info", 8, &[("status", status, 32)]);
        build.aggregate("task_struct", 16, &[("thread_info", info, 0)]);
        build.tracepoint("sys_enter", &[("regs", regs), ("id", long)]);
        build.read(test)
    }

    #[test]
    fn a_syscall_event_is_its_number_and_registers() {
        let btf = kernel_with_calls("syscall");
        let text = "name: sys_enter_close\nID: 9\nformat:\n\
            \tfield:int __syscall_nr;\toffset:8;\tsize:4;\tsigned:1;\n\
            \tfield:unsigned int fd;\toffset:16;\tsize:8;\tsigned:0;\n";
        let format = Format::parse("syscalls", text).unwrap();
        let found = plan(&format, &btf, Some(3)).unwrap();
        assert_eq!(found.tracepoint, "sys_enter");
        assert_eq!(
            found.fields,
            [
                FieldSource { offset: 8, size: 4, source: Source::Const(3) },
                // di is the eighth register above.
                FieldSource { offset: 16, size: 8, source: Source::Memory { arg: 0, path: vec![56] } },
            ]
        );
        let compat = found.skip_compat.unwrap();
        assert_eq!((compat.task_offset, compat.mask), (4, 2));
        assert_eq!(
            plan(&format, &btf, None).unwrap_err().to_string(),
            "syscalls:sys_enter_close: the call's number is not known"
        );
    }

    #[test]
    fn data_in_user_memory_are_found_by_their_names() {
        let btf = kernel_with_calls("user_data");
        // di, si and dx are at these places of the registers above.
        let (first, second, third) = (56, 48, 40);
        let plan = |name: &str, args: &[&str], data: &[&str]| {
            let mut text = format!(
                "name: sys_enter_{name}\nID: 9\nformat:\n\tfield:int __syscall_nr;\toffset:8;\tsize:4;\tsigned:1;\n"
            );
            let words = args.iter().map(|arg| ("long", *arg, 8));
            let mut offset = 16;
            for (ty, field, size) in words.chain(data.iter().map(|data| ("__data_loc char[]", *data, 4))) {
                writeln!(text, "\tfield:{ty} {field};\toffset:{offset};\tsize:{size};\tsigned:0;").unwrap();
                offset += size;
            }
            let planned = super::plan(&Format::parse("syscalls", &text).unwrap(), &btf, Some(3));
            let of = |field: &FieldSource| match field.source {
                Source::UserData(data) => Some((field.offset, data.pointer, data.length)),
                _ => None,
            };
            planned
                .map(|plan| plan.fields.iter().filter_map(of).collect::<Vec<_>>())
                .map_err(|error| error.to_string())
        };
        let rename = plan("rename", &["oldname", "newname"], &["__oldname_val", "__newname_val"]);
        assert_eq!(rename, Ok(vec![(32, first, None), (36, second, None)]));
        assert_eq!(
            plan("write", &["fd", "buf", "count"], &["__buf_val"]),
            Ok(vec![(40, second, Some(third))])
        );
        let hostname = plan("sethostname", &["name", "len"], &["__name_val"]);
        assert_eq!(hostname, Ok(vec![(32, first, Some(second))]));
        let odd = "syscalls:sys_enter_chdir: a field is not the data at one of the call's arguments";
        assert_eq!(plan("chdir", &["path"], &["__other_val"]), Err(odd.to_owned()));
        assert_eq!(plan("chdir", &["path"], &["path_val"]), Err(odd.to_owned()));
    }
}
