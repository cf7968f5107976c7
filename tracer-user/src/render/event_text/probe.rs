//! The text of dynamic events' records. It follows the kernel's functions instead of the print fmt
//! (`print_kprobe_event()` and similar, kernel/trace/trace_kprobe.c, trace_uprobe.c, trace_fprobe.c, trace_eprobe.c;
//! `trace_probe_print_args()`, kernel/trace/trace_probe.c).

use tracer_abi::COMMON_SIZE;

use crate::render::env::{RenderEnv, Symbol};
use crate::render::printf::number::{decimal, prefixed_hex};
use crate::render::printf::pointer::{take, until_nul};

/// Trampolines to which probed functions return, in kernels with and without rethook.
const TRAMPOLINES: [&str; 2] = ["arch_rethook_trampoline", "__kretprobe_trampoline"];

/// The text in parentheses before the arguments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProbeHead {
    /// A kernel address.
    Kernel,
    /// The return address and the address of a kernel function.
    KernelReturn,
    /// A user space address.
    User,
    /// The return address and the address of a user space function.
    UserReturn,
    /// The name of another event.
    Event(String),
}

/// One argument.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProbeValue {
    /// A space, the argument's name, and `=`.
    pub label: String,
    /// Name of the type.
    pub ty: &'static str,
    /// Byte offset in the record.
    pub offset: usize,
    /// Bytes per element.
    pub size: usize,
    /// Number of elements of an array; 0 for a single value.
    pub count: usize,
}

/// How a dynamic event's records are printed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ProbeText {
    pub(crate) head: ProbeHead,
    pub(crate) values: Vec<ProbeValue>,
}

impl ProbeText {
    /// Writes the text after the event's name.
    pub(crate) fn write(&self, record: &[u8], env: &dyn RenderEnv, out: &mut Vec<u8>) {
        let word = |at: usize| u64::from_ne_bytes(take(record.get(COMMON_SIZE + 8 * at..).unwrap_or(&[])));
        out.push(b'(');
        match &self.head {
            ProbeHead::Kernel => symbol(out, word(0), true, env),
            ProbeHead::KernelReturn => {
                symbol(out, word(1), true, env);
                out.extend_from_slice(b" <- ");
                symbol(out, word(0), false, env);
            }
            ProbeHead::User => prefixed_hex(out, word(0)),
            ProbeHead::UserReturn => {
                prefixed_hex(out, word(1));
                out.extend_from_slice(b" <- ");
                prefixed_hex(out, word(0));
            }
            ProbeHead::Event(name) => out.extend_from_slice(name.as_bytes()),
        }
        out.push(b')');
        for value in &self.values {
            out.extend(value.label.chars().map(|c| c as u8));
            if value.count == 0 {
                value.write(record, value.offset, env, out);
                continue;
            }
            for element in 0..value.count {
                out.push(if element == 0 { b'{' } else { b',' });
                value.write(record, value.offset + element * value.size, env, out);
            }
            out.push(b'}');
        }
    }
}

impl ProbeValue {
    fn write(&self, record: &[u8], at: usize, env: &dyn RenderEnv, out: &mut Vec<u8>) {
        let bytes: [u8; 8] = take(record.get(at..(at + self.size).min(record.len())).unwrap_or(&[]));
        let value = u64::from_le_bytes(bytes);
        let unused = 64 - 8 * self.size.clamp(1, 8);
        match self.ty.as_bytes() {
            b"string" | b"ustring" | b"symstr" => text(record, value as u32, out),
            b"symbol" => symbol(out, value, true, env),
            b"char" => {
                out.push(b'\'');
                // `%c` writes a NUL as it is, and trace output continues after it.
                out.push(value as u8);
                out.push(b'\'');
            }
            [b'x', ..] => prefixed_hex(out, value),
            [b's', ..] => decimal(out, (value << unused).cast_signed() >> unused),
            _ => decimal(out, value),
        }
    }
}

/// Writes a text that is stored after the fixed part; `place` has its length and offset.
fn text(record: &[u8], place: u32, out: &mut Vec<u8>) {
    let (length, offset) = ((place >> 16) as usize, (place & 0xffff) as usize);
    if length == 0 {
        return out.extend_from_slice(b"(fault)");
    }
    out.push(b'"');
    out.extend_from_slice(until_nul(record.get(offset..).unwrap_or(&[])));
    out.push(b'"');
}

/// Writes an address as its symbol with offset and module, or as the name alone (`seq_print_ip_sym()`).
fn symbol(out: &mut Vec<u8>, address: u64, offset: bool, env: &dyn RenderEnv) {
    let Some(symbol) = env.symbol(address) else {
        return prefixed_hex(out, address);
    };
    // Another probe of the function's return replaced the return address (`kretprobed()`).
    if symbol.offset == 0 && TRAMPOLINES.contains(&symbol.name) {
        return out.extend_from_slice(b"[unknown/kretprobe'd]");
    }
    if offset {
        with_offset(out, &symbol);
    } else {
        out.extend_from_slice(symbol.name.as_bytes());
    }
}

/// Writes a symbol with its offset, its size if it is known, and its module.
pub(crate) fn with_offset(out: &mut Vec<u8>, symbol: &Symbol<'_>) {
    let Symbol { name, offset, size, module } = symbol;
    out.extend(format!("{name}+{offset:#x}").bytes());
    if let Some(size) = size {
        out.extend(format!("/{size:#x}").bytes());
    }
    if let Some(module) = module {
        out.extend(format!(" [{module}]").bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct One;

    impl RenderEnv for One {
        fn symbol(&self, address: u64) -> Option<Symbol<'_>> {
            (0x1000..0x1100).contains(&address).then(|| Symbol {
                name: "vfs_read",
                offset: address - 0x1000,
                size: Some(0x100),
                module: None,
            })
        }
    }

    fn value(ty: &'static str, offset: usize, size: usize, count: usize) -> ProbeValue {
        ProbeValue { label: format!(" {ty}="), ty, offset, size, count }
    }

    #[test]
    fn records_as_the_kernel_prints_them() {
        let mut record = vec![0; 8];
        record.extend(0x1000_u64.to_ne_bytes());
        record.extend(0x10_u64.to_ne_bytes());
        record.extend((-2_i16).to_ne_bytes());
        record.extend([b'A', 0xff]);
        record.extend(((3_u32 << 16) + 36).to_ne_bytes());
        record.extend(0_u32.to_ne_bytes());
        record.extend(b"ab\0");
        let show = |head, values| {
            let mut out = Vec::new();
            ProbeText { head, values }.write(&record, &One, &mut out);
            String::from_utf8(out).unwrap()
        };
        let values = vec![
            value("s16", 24, 2, 0),
            value("char", 26, 1, 0),
            value("x8", 26, 1, 2),
            value("u8", 27, 1, 0),
            value("string", 28, 4, 2),
            value("symbol", 8, 8, 0),
        ];
        assert_eq!(
            show(ProbeHead::Kernel, values),
            "(vfs_read+0x0/0x100) s16=-2 char='A' x8={0x41,0xff} u8=255 string={\"ab\",(fault)} \
             symbol=vfs_read+0x0/0x100"
        );
        assert_eq!(show(ProbeHead::KernelReturn, vec![]), "(0x10 <- vfs_read)");
        assert_eq!(show(ProbeHead::UserReturn, vec![]), "(0x10 <- 0x1000)");
        assert_eq!(show(ProbeHead::Event("a.b".to_owned()), vec![]), "(a.b)");
    }
}
