//! Generates random definitions of dynamic events, valid and invalid ones. The same seed makes the same line.

use super::Rng;

/// Group of all generated events, which separates them from other events and allows their removal.
pub const GROUP: &str = "tracerdef";

/// Kinds of probes that a kernel has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `f`
    Fprobe,
    /// `t`
    Tracepoint,
    /// `p` and `r` at kernel functions
    Kprobe,
    /// `p` and `r` in a file
    Uprobe,
    /// `e`
    Eprobe,
}

const HEADS: &[&str] = &["", "", "", "", "", "", "5", "0", "4096", "4097", "0x10", "9x", "x", "99999999999"];
const NAMES: &[&str] = &[
    "tracerdef/a",
    "tracerdef/a",
    "tracerdef/a",
    "tracerdef/b",
    "tracerdef/",
    "tracerdef.c",
    "a",
    "",
    "/a",
    "1/a",
    "tracerdef/1",
    "tracerdef/b-c",
    "trac-def/b",
    "tracerdef/a/b",
    "tracerdef/a.b",
    "tracerdef/n23456789012345678901234567890123456789012345678901234567890123",
    "tracerdef/n2345678901234567890123456789012345678901234567890123456789012",
];
const FUNCTIONS: &[&str] = &[
    "vfs_read",
    "vfs_open",
    "vfs_write",
    "kfree",
    "do_exit",
    "vfs_read%return",
    "vfs_open%return",
    "vfs_read%ret",
    "vfs_*",
    "no_such_function",
    "schedule_timeout%return",
    "kfree%return",
    "ksys_read",
    "vfs_fstat%return",
];
const TRACEPOINTS: &[&str] = &[
    "sched_switch",
    "sched_process_exec",
    "sys_enter",
    "no_such_tracepoint",
    "sched:x",
    "sched_switch%return",
    "9x",
    "vfs_read",
    "irq_handler_entry",
];
const PLACES: &[&str] = &[
    "vfs_read",
    "vfs_open",
    "vfs_read%return",
    "vfs_read+0",
    "vfs_read+x",
    "vfs_read-1",
    "vfs_read+9%return",
    "no_such_function",
    "nomodule:function",
    "vfs_read%x",
    "vfs_read%return+4",
    "jiffies",
    "vfs_read+4294967296",
];
const SUFFIXES: &[&str] = &[
    "0x1040",
    "64",
    "0x1040%return",
    "4(8)",
    "4(0x10)",
    "4%return(8)",
    "4(",
    "4(8)x",
    "4(x)",
    "4x",
    "4%ret",
    "main",
    "",
    "99999999999999999999",
    "08",
    "4%return%",
    "4)",
];
const EVENTS: &[&str] = &[
    "sched/sched_switch",
    "sched.sched_switch",
    "sched/none",
    "sched",
    "/x",
    "sched/",
    "ftrace/function",
    "irq/irq_handler_entry",
];
const FETCHES: &[&str] = &[
    "$arg1",
    "$arg2",
    "$arg3",
    "$arg*",
    "$arg0",
    "$arg99",
    "$argx",
    "$arg1x",
    "$arg*",
    "$retval",
    "$retvalx",
    "$stack",
    "$stack3",
    "$stack2048",
    "$stack2049",
    "$stackx",
    "$stack0x1",
    "$comm",
    "$COMM",
    "$current",
    "$current->comm",
    "$current->mm->total_vm",
    "$current->mm.x",
    "$current-x",
    "$currentx",
    "(file)file->f_mode",
    "(file)buf->f_inode->i_ino",
    "(file)(pos)->f_mode",
    "(task_struct)$current->comm",
    "(task_struct)$retval->pid",
    "(task_struct,tasks)pos->comm",
    "(task_struct,tasks.next)$arg1->pid",
    "(task_struct,in_execve)pos->pid",
    "(task_struct,mm->pgd)pos->pid",
    "(task_struct,none)pos->pid",
    "(task_struct)+8(buf)->pid",
    "(task_struct)+8buf->pid",
    "(task_struct)this_cpu_read(@runqueues)->pid",
    "(task_struct)prev_pid->comm",
    "(none)file->x",
    "(file)file",
    "(file)(file)",
    "(file)((file)buf->f_inode)->f_mode",
    "(file)@jiffies+8->f_mode",
    "(file)@jiffies->f_mode",
    "(file)file->none",
    "(file)file->f_mode->x",
    "(file",
    "(file)(file",
    "this_cpu_ptr(@runqueues)",
    "this_cpu_read(@runqueues)",
    "this_cpu_read(+8(@runqueues))",
    "this_cpu_read($arg1)",
    "this_cpu_ptr($comm)",
    "this_cpu_read(@runqueues",
    "this_cpu_rea(file)",
    "prev_pid",
    "next_comm",
    "$foo",
    "$",
    "file",
    "buf",
    "count",
    "pos",
    "path",
    "next",
    "prev",
    "preempt",
    "file->f_mode",
    "file->f_inode",
    "file->f_path.dentry",
    "file->f_path.dentry->d_name.name",
    "file->f_inode->i_sb->s_type->name",
    "next->comm",
    "prev->pid",
    "next->none",
    "file.f_mode",
    "file-f_mode",
    "file->",
    "file->f_path.dentry-x",
    "path->dentry",
    "count->x",
    "buf->x",
    "prev->in_execve",
    "next->sched_reset_on_fork",
    "prev->policy",
    "file->f_path.x",
    "file->f_mode.x",
    "$retval->x",
    "$retval.x",
    "%ax",
    "%di",
    "%orig_ax",
    "%rax",
    "%",
    "%x0",
    "@0x1000",
    "@jiffies",
    "@jiffies+8",
    "@jiffies-8",
    "@jiffies+x",
    "@no_such_symbol",
    "@",
    "@0x",
    "@+8",
    "@+x",
    "@99999999999999999999",
    "\\1",
    "\\-5",
    "\\+5",
    "\\x",
    "\\",
    "\\0x10000000000000000",
    "\\\"abc\"",
    "\\\"abc",
    "\\\"\"",
    "$next_comm",
    "$prev_pid",
    "$irq",
    "$common_pid",
    "()",
    "1",
    "",
    "_x",
    "\u{e9}x",
];
const OFFSETS: &[&str] = &[
    "+0",
    "+8",
    "-8",
    "+u0",
    "-u8",
    "+0x10",
    "+x",
    "-",
    "+",
    "+u",
    "+-8",
    "++8",
    "+99999999999999999999",
    "+8a",
];
const TYPES: &[&str] = &[
    "u8",
    "u16",
    "u32",
    "u64",
    "s8",
    "s16",
    "s32",
    "s64",
    "x8",
    "x16",
    "x32",
    "x64",
    "char",
    "string",
    "ustring",
    "symbol",
    "symstr",
    "u128",
    "",
    "%pd",
    "%pD",
    "b1@2/8",
    "b3@2/32",
    "b0@1/8",
    "b8@1/8",
    "b1@/8",
    "b1/8",
    "b1@2/9",
    "b",
    "strings",
    "b0x2@010/16",
    "b64@0/64",
    "string8",
];
const COUNTS: &[&str] =
    &["[1]", "[2]", "[4]", "[64]", "[65]", "[0]", "[x]", "[", "[4", "[4]x", "[]", "]", "[0x4]"];
const FILTERS: &[&str] =
    &["prev_pid == 1", "prev_pid ==", "", "none == 1", "next_comm ~ \"a*\" && prev_pid > 0"];

/// Generates a definition; `file` is a valid target of uprobes.
pub fn definition(kind: Kind, file: &str, rng: &mut Rng) -> Vec<u8> {
    // Most parts are valid, so that the parser reaches the later parts as well.
    let mut odd = |from: &[&'static str], right: usize| {
        if rng.once_in(6) { rng.pick(from) } else { from[rng.below(right)] }
    };
    let (letter, place) = match kind {
        Kind::Fprobe => ("f", odd(FUNCTIONS, 7).to_owned()),
        Kind::Tracepoint => ("t", odd(TRACEPOINTS, 3).to_owned()),
        Kind::Kprobe => (odd(&["p", "r"], 2), odd(PLACES, 3).to_owned()),
        Kind::Uprobe => {
            let path =
                odd(&["FILE", "FILE", "/no/such/file", "/", "/dev/null", "FILE:x"], 1).replace("FILE", file);
            (odd(&["p", "r"], 2), format!("{path}:{}", odd(SUFFIXES, 6)))
        }
        Kind::Eprobe => ("e", odd(EVENTS, 2).to_owned()),
    };
    let (head, name) = (odd(HEADS, 5), odd(NAMES, 4));
    let mut line = format!("{letter}{head}:{name} {place}");
    let count = [0, 1, 1, 2, 2, 3, 4, 6][rng.below(8)];
    for _ in 0..count {
        line.push(' ');
        line += &argument(rng);
    }
    if kind == Kind::Eprobe && rng.once_in(4) {
        line.push_str(" if ");
        line.push_str(rng.pick(FILTERS));
    }
    let mut bytes: Vec<u8> = line.chars().map(|c| c as u8).collect();
    if rng.once_in(8) {
        let at = rng.below(bytes.len());
        match rng.below(3) {
            0 => bytes[at] = b" :/+-()%$@[]=.\\\"x1"[rng.below(18)],
            1 => drop(bytes.remove(at)),
            _ => bytes.insert(at, b":/+-()%$@[]=.\\\"x1"[rng.below(17)]),
        }
    }
    bytes
}

fn argument(rng: &mut Rng) -> String {
    let name = match rng.below(6) {
        0 => format!("n{}=", rng.below(4)),
        1 => rng
            .pick(&[
                "a=",
                "b=",
                "c=",
                "a=",
                "__probe_ip=",
                "1=",
                "=",
                "a-b=",
                "n2345678901234567890123456789012345=",
            ])
            .to_owned(),
        _ => String::new(),
    };
    let mut fetch = rng.pick(FETCHES).to_owned();
    let depth = [0, 0, 0, 0, 1, 1, 2, 3, 7, 8, 9, 12, 14][rng.below(13)];
    for _ in 0..depth {
        let offset = if depth > 3 { "+0" } else { rng.pick(OFFSETS) };
        let close = if rng.once_in(40) { "" } else { ")" };
        fetch = format!("{offset}({fetch}{close}");
    }
    let ty = match rng.below(5) {
        0 | 1 => String::new(),
        2 => format!(":{}{}", rng.pick(TYPES), rng.pick(COUNTS)),
        _ => format!(":{}", rng.pick(TYPES)),
    };
    format!("{name}{fetch}{ty}")
}
