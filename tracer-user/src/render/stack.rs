//! Records of stacks: `kernel_stack` and `user_stack`, whose print fmts differ from their lines in `trace`
//! (`trace_stack_print()` and `trace_user_stack_print()`, kernel/trace/trace_output.c). Also addresses with the options
//! `sym-offset` and `sym-addr`.

use super::{RenderEnv, line};

/// Offset of the addresses in both records (`struct stack_entry`, `struct userstack_entry`).
const ADDRESSES: usize = 16;
/// Largest number of addresses in a user stack (`FTRACE_STACK_ENTRIES`).
const USER_MAX: usize = 8;

/// The kind of stack in a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stack {
    /// The kernel stack.
    Kernel,
    /// The thread's user stack.
    User,
}

impl Stack {
    /// The name of the record's event in the system `ftrace`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Kernel => "kernel_stack",
            Self::User => "user_stack",
        }
    }

    /// Writes a record as `trace` shows it.
    pub fn line(
        self,
        out: &mut Vec<u8>,
        options: &line::Options,
        record: &[u8],
        stamp: line::Stamp,
        tasks: &dyn line::Tasks,
        env: &dyn RenderEnv,
    ) {
        if options.hex || options.bin {
            return line::plain(out, options, record, stamp);
        }
        line::lead(out, options, record, stamp, tasks);
        if options.raw {
            return line::kind(out, record);
        }
        let (words, _) = record.get(ADDRESSES..).unwrap_or_default().as_chunks();
        let addresses = words.iter().copied().map(u64::from_ne_bytes);
        match self {
            Self::Kernel => {
                out.extend_from_slice(b"<stack trace>\n");
                for address in addresses.take_while(|address| *address != u64::MAX) {
                    out.extend_from_slice(b" => ");
                    symbol(out, address, options, env);
                    out.push(b'\n');
                }
            }
            Self::User => {
                out.extend_from_slice(b"<user stack trace>\n");
                let process = process(record).filter(|_| options.sym_userobj);
                for address in addresses.take(USER_MAX).take_while(|address| *address != 0) {
                    out.extend_from_slice(b" => ");
                    user(out, address, process, options, env);
                    out.push(b'\n');
                }
            }
        }
    }
}

/// The process of a user stack record.
pub fn process(record: &[u8]) -> Option<u32> {
    record.get(8..)?.first_chunk().copied().map(u32::from_ne_bytes)
}

/// Writes a kernel address as its symbol (`seq_print_ip_sym()`).
pub fn symbol(out: &mut Vec<u8>, address: u64, options: &line::Options, env: &dyn RenderEnv) {
    if address == 0 {
        return out.push(b'0');
    }
    let text = match env.symbol(address) {
        Some(symbol) if options.sym_offset => symbol.to_string(),
        Some(symbol) => symbol.name.to_owned(),
        None if options.sym_offset => format!("0x{address:x}"),
        None => format!("0x{address:08x}"),
    };
    out.extend_from_slice(text.as_bytes());
    if options.sym_addr {
        out.extend_from_slice(format!(" <{address:016x}>").as_bytes());
    }
}

/// Writes a user space address with the file mapped there (`seq_print_user_ip()`).
fn user(out: &mut Vec<u8>, address: u64, process: Option<u32>, options: &line::Options, env: &dyn RenderEnv) {
    let object = process.and_then(|process| env.object(process, address));
    if let Some((path, offset)) = &object {
        out.extend_from_slice(path);
        out.extend_from_slice(format!("[+0x{offset:x}]").as_bytes());
    }
    if options.sym_addr || object.is_none() {
        out.extend_from_slice(format!(" <{address:016x}>").as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::render::Symbol;

    struct Env;

    impl RenderEnv for Env {
        fn symbol(&self, address: u64) -> Option<Symbol<'_>> {
            let module = (address == 0x200).then_some("mod");
            let symbol = Symbol { name: "f", offset: address & 0xff, size: Some(0x40), module };
            (address < 0x300).then_some(symbol)
        }

        fn object(&self, process: u32, address: u64) -> Option<(Vec<u8>, u64)> {
            (process == 7 && address < 0x100).then(|| (b"/bin/true".to_vec(), address))
        }
    }

    fn record(head: u32, addresses: &[u64]) -> Vec<u8> {
        let mut record = vec![4, 0, 0, 0, 9, 0, 0, 0];
        record.extend(head.to_ne_bytes());
        record.extend([0; 4]);
        record.extend(addresses.iter().flat_map(|address| address.to_ne_bytes()));
        record
    }

    fn shown(stack: Stack, record: &[u8], options: &line::Options) -> String {
        let mut out = Vec::new();
        let bare = line::Options { context_info: false, ..*options };
        stack.line(&mut out, &bare, record, line::Stamp { cpu: 0, time: 0 }, &(), &Env);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn kernel_stacks() {
        let kernel = record(4, &[0x110, 0x200, 0, 0xffff_0000, u64::MAX, 0x110]);
        let plain = line::Options::default();
        assert_eq!(
            shown(Stack::Kernel, &kernel, &plain),
            "<stack trace>\n => f\n => f\n => 0\n => 0xffff0000\n"
        );
        let long = line::Options { sym_offset: true, sym_addr: true, ..plain };
        assert_eq!(
            shown(Stack::Kernel, &kernel, &long),
            "<stack trace>\n => f+0x10/0x40 <0000000000000110>\n => f+0x0/0x40 [mod] <0000000000000200>\n => 0\n \
             => 0xffff0000 <00000000ffff0000>\n"
        );
        assert_eq!(shown(Stack::Kernel, &kernel, &line::Options { raw: true, ..plain }), "type: 4\n");
    }

    #[test]
    fn user_stacks() {
        let user = record(7, &[0x50, 0x1234, 0, 0x50]);
        let plain = line::Options::default();
        let text = "<user stack trace>\n =>  <0000000000000050>\n =>  <0000000000001234>\n";
        assert_eq!(shown(Stack::User, &user, &plain), text);
        let objects = line::Options { sym_userobj: true, ..plain };
        let text = "<user stack trace>\n => /bin/true[+0x50]\n =>  <0000000000001234>\n";
        assert_eq!(shown(Stack::User, &user, &objects), text);
    }
}
