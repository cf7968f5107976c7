//! The text of system call events' records whose arguments point to data in user memory. It follows the kernel's
//! functions instead of the print fmt (`print_syscall_enter()` and `sys_enter_openat_print()`,
//! kernel/trace/trace_syscalls.c).

use crate::{
    event::{Field, Format},
    render::text_buffer::TextBuffer,
};

/// Marks data that are not recorded completely.
const OMISSION: &[u8] = b"...";
/// Arguments up to this value have no prefix.
const PLAIN: u64 = 9;
/// Position of the flags of openat(2) among its arguments, and of the mode.
const OPEN_FLAGS: usize = 2;
const OPEN_MODE: usize = 3;

/// How the entries of a system call are printed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CallText {
    /// `sys_NAME(`.
    start: String,
    args: Vec<Arg>,
    /// Names of the flags of openat(2), which is printed in its own form.
    open_flags: Option<Vec<(u64, String)>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Arg {
    name: String,
    ty: String,
    offset: usize,
    data: Option<Data>,
}

/// The data that an argument points to.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Data {
    /// Byte offset in the record of the location of the data.
    offset: usize,
    /// Byte offset in the record of the argument with the number of bytes; `None` for a text.
    length: Option<usize>,
}

impl CallText {
    /// The text of the entries of a system call; `None` if its arguments point to no data.
    pub(crate) fn of(format: &Format) -> Option<Self> {
        let name = format.name.strip_prefix("sys_enter_")?;
        let (_, fields) = format.fields.split_first()?;
        let (args, data): (Vec<&Field>, Vec<&Field>) = fields.iter().partition(|field| !field.is_data_loc());
        if data.is_empty() {
            return None;
        }
        let data_of = |arg: &Field| {
            let name = format!("__{}_val", arg.name);
            let found = data.iter().find(|data| data.name == name)?;
            // Of these the argument after the address has the length.
            let is_bytes = format.print_fmt.contains(&format!("__print_dynamic_array({name}, 1)"));
            let length = args.iter().position(|other| other.name == arg.name).and_then(|at| args.get(at + 1));
            let length = length.filter(|_| is_bytes).map(|length| length.offset);
            Some(Data { offset: found.offset, length })
        };
        let arg = |field: &&Field| Arg {
            name: field.name.clone(),
            ty: field.ty.clone(),
            offset: field.offset,
            data: data_of(field),
        };
        let open_flags =
            (name == "openat").then(|| flags(&format.print_fmt)).filter(|flags| !flags.is_empty());
        Some(Self { start: format!("sys_{name}("), args: args.iter().map(arg).collect(), open_flags })
    }

    /// Writes the text of a record. With `verbose`, arguments have their types, and each system call has the same form.
    pub(crate) fn write(&self, record: &[u8], verbose: bool, out: &mut TextBuffer) {
        let open_flags = self.open_flags.as_deref().filter(|_| !verbose);
        out.bytes(self.start.as_bytes());
        for (number, arg) in self.args.iter().enumerate() {
            if number > 0 {
                out.bytes(b", ");
            }
            if verbose {
                out.bytes(arg.ty.as_bytes());
                out.byte(b' ');
            }
            out.bytes(arg.name.as_bytes());
            out.bytes(b": ");
            let value = word(record, arg.offset);
            match (open_flags, number) {
                (Some(flags), OPEN_FLAGS) => {
                    if !open(value, flags, out) {
                        break;
                    }
                    continue;
                }
                (Some(_), OPEN_MODE) => {
                    out.with(|out| out.extend(format!("0{:03o}", value as u32).bytes()));
                    continue;
                }
                (Some(_), _) => out.decimal(value),
                (None, _) if value <= PLAIN => out.decimal(value),
                (None, _) => {
                    out.bytes(b"0x");
                    out.hex(value);
                }
            }
            if let Some(data) = &arg.data {
                data.write(record, out);
            }
        }
        out.byte(b')');
    }
}

impl Data {
    fn write(&self, record: &[u8], out: &mut TextBuffer) {
        let location = number(record, self.offset);
        let (start, length) = ((location & 0xffff) as usize, (location >> 16) as usize);
        let bytes = record.get(start..).unwrap_or_default();
        let bytes = bytes.get(..length).unwrap_or(bytes);
        let Some(whole) = self.length else {
            out.bytes(b" \"");
            out.until_nul(bytes);
            out.byte(b'"');
            return;
        };
        // The kernel compares signed numbers of 32 bits.
        let is_cut = (length as i32) < number(record, whole).cast_signed();
        out.bytes(b" (");
        for (at, byte) in bytes.iter().enumerate() {
            if at > 0 {
                out.byte(b':');
            }
            for digit in [byte >> 4, byte & 15] {
                out.byte(if digit < 10 { b'0' + digit } else { b'a' + digit - 10 });
            }
        }
        if is_cut {
            out.bytes(b", ");
            out.bytes(OMISSION);
        }
        out.byte(b')');
        let is_printable = |byte: &u8| (b' '..=b'~').contains(byte);
        if !bytes.iter().any(is_printable) {
            return;
        }
        out.bytes(b" \"");
        for byte in bytes {
            out.byte(if is_printable(byte) { *byte } else { b'.' });
        }
        out.byte(b'"');
        if is_cut {
            out.bytes(OMISSION);
        }
    }
}

/// Writes the flags of openat(2). Returns whether the mode follows.
fn open(value: u64, flags: &[(u64, String)], out: &mut TextBuffer) -> bool {
    const ACCESS_MODE: u64 = 3;
    // `__O_TMPFILE`, include/uapi/asm-generic/fcntl.h, the same for x86-64 and arm64.
    const NEW_TMPFILE: u64 = 0o20_000_000;
    let of = |name: &str| flags.iter().find(|(_, known)| known == name).map_or(0, |(flag, _)| *flag);
    let tmpfile = NEW_TMPFILE | of("O_DIRECTORY");
    // The kernel keeps the flags in an int.
    let value = i64::from(value as i32).cast_unsigned();
    let makes = value & (of("O_CREAT") | tmpfile) != 0;
    if value == 0 {
        out.bytes(b"O_RDONLY");
        return makes;
    }
    if value & ACCESS_MODE == 0 {
        out.bytes(b"O_RDONLY|");
    }
    let mut left = value;
    let mut is_first = true;
    let known = std::iter::once((tmpfile, "O_TMPFILE"))
        .chain(flags.iter().map(|(flag, name)| (*flag, name.as_str())));
    for (flag, name) in known.filter(|(flag, _)| *flag != 0) {
        if left & flag != flag {
            continue;
        }
        if !is_first {
            out.byte(b'|');
        }
        is_first = false;
        out.bytes(name.as_bytes());
        left &= !flag;
    }
    if left != 0 {
        if !is_first {
            out.byte(b'|');
        }
        out.bytes(b"0x");
        out.hex(left);
    }
    makes
}

/// The flags that a print fmt names: `{ 0x1, "O_WRONLY" }`.
fn flags(print_fmt: &str) -> Vec<(u64, String)> {
    let entry = |text: &str| {
        let (number, name) = text.split_once(',')?;
        let number = u64::from_str_radix(number.trim().strip_prefix("0x")?, 16).ok()?;
        let name = name.trim().strip_prefix('"')?.split_once('"')?.0;
        Some((number, name.to_owned()))
    };
    print_fmt.split('{').skip(1).filter_map(entry).collect()
}

fn word(record: &[u8], offset: usize) -> u64 {
    let bytes = record.get(offset..).and_then(<[u8]>::first_chunk);
    bytes.map_or(0, |bytes| u64::from_ne_bytes(*bytes))
}

fn number(record: &[u8], offset: usize) -> u32 {
    let bytes = record.get(offset..).and_then(<[u8]>::first_chunk);
    bytes.map_or(0, |bytes| u32::from_ne_bytes(*bytes))
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;

    use super::*;

    fn format(name: &str, fields: &[(&str, &str)], print_fmt: &str) -> Format {
        let mut text = format!(
            "name: sys_enter_{name}\nID: 1\nformat:\n\tfield:int __syscall_nr;\toffset:8;\tsize:4;\tsigned:1;\n"
        );
        let mut offset = 16;
        for (ty, field) in fields {
            let size = if ty.starts_with("__data_loc") { 4 } else { 8 };
            writeln!(text, "\tfield:{ty} {field};\toffset:{offset};\tsize:{size};\tsigned:0;").unwrap();
            offset += size;
        }
        Format::parse("syscalls", &(text + "\nprint fmt: " + print_fmt + "\n")).unwrap()
    }

    /// A record of these arguments, followed by data.
    fn record(args: &[u64], data: &[&[u8]]) -> Vec<u8> {
        let mut record = vec![0; 16];
        record.extend(args.iter().flat_map(|arg| arg.to_ne_bytes()));
        let mut at = (record.len() + 4 * data.len()) as u32;
        for bytes in data {
            record.extend((at | (bytes.len() as u32) << 16).to_ne_bytes());
            at += bytes.len() as u32;
        }
        record.extend(data.concat());
        record
    }

    fn shown(format: &Format, record: &[u8], verbose: bool) -> String {
        let mut out = TextBuffer::after(Vec::new());
        CallText::of(format).unwrap().write(record, verbose, &mut out);
        String::from_utf8(out.into_text()).unwrap()
    }

    #[test]
    fn texts_follow_their_addresses() {
        let fields = [
            ("const char *", "oldname"),
            ("const char *", "newname"),
            ("__data_loc char[]", "__oldname_val"),
            ("__data_loc char[]", "__newname_val"),
        ];
        let print_fmt = r#""x", __get_str(__oldname_val), __get_str(__newname_val)"#;
        let rename = format("rename", &fields, print_fmt);
        let both = record(&[0x7f00, 9], &[b"/a\0", b"\0"]);
        assert_eq!(shown(&rename, &both, false), r#"sys_rename(oldname: 0x7f00 "/a", newname: 9 "")"#);
        assert_eq!(
            shown(&rename, &both, true),
            r#"sys_rename(const char * oldname: 0x7f00 "/a", const char * newname: 9 "")"#
        );
        // A location that points outside of the record shows nothing.
        let mut odd = both;
        odd[32..36].copy_from_slice(&0xffff_fff0_u32.to_ne_bytes());
        assert_eq!(shown(&rename, &odd, false), r#"sys_rename(oldname: 0x7f00 "", newname: 9 "")"#);
        assert!(CallText::of(&format("close", &[("unsigned int", "fd")], r#""x""#)).is_none());
    }

    #[test]
    fn bytes_are_shown_as_digits_and_as_text() {
        let fields = [
            ("unsigned int", "fd"),
            ("const char *", "buf"),
            ("size_t", "count"),
            ("__data_loc char[]", "__buf_val"),
        ];
        let write = format("write", &fields, r#""x", __print_dynamic_array(__buf_val, 1)"#);
        let of = |count: u64, bytes: &[u8]| shown(&write, &record(&[1, 0x10, count], &[bytes]), false);
        assert_eq!(of(3, b"ab\n"), r#"sys_write(fd: 1, buf: 0x10 (61:62:0a) "ab.", count: 3)"#);
        assert_eq!(of(4, b"ab\n"), r#"sys_write(fd: 1, buf: 0x10 (61:62:0a, ...) "ab."..., count: 4)"#);
        assert_eq!(of(1, b"\x80"), "sys_write(fd: 1, buf: 0x10 (80), count: 1)");
        assert_eq!(of(0, b""), "sys_write(fd: 1, buf: 0x10 (), count: 0)");
    }

    #[test]
    fn openat_names_its_flags() {
        let fields = [
            ("int", "dfd"),
            ("const char *", "filename"),
            ("int", "flags"),
            ("umode_t", "mode"),
            ("__data_loc char[]", "__filename_val"),
        ];
        let print_fmt = r#""x", REC->flags ? __print_flags(REC->flags, "|", { 0x1, "O_WRONLY" }, { 0x40, "O_CREAT" }, { 0x10000, "O_DIRECTORY" }, { 0x80000, "O_CLOEXEC" }) : "O_RDONLY", x"#;
        let openat = format("openat", &fields, print_fmt);
        let of = |flags: u64| shown(&openat, &record(&[3, 16, flags, 0o644], &[b"a\0"]), false);
        let text = |flags: &str| format!(r#"sys_openat(dfd: 3, filename: 16 "a", flags: {flags})"#);
        assert_eq!(of(0), text("O_RDONLY"));
        assert_eq!(of(0x80000), text("O_RDONLY|O_CLOEXEC"));
        assert_eq!(of(0x41), text("O_WRONLY|O_CREAT, mode: 0644"));
        assert_eq!(of(0x2_0000), text("O_RDONLY|0x20000"));
        assert_eq!(of(0o20_000_000 | 0x10000 | 1), text("O_TMPFILE|O_WRONLY, mode: 0644"));
        let verbose = shown(&openat, &record(&[3, 16, 1, 0o644], &[b"a\0"]), true);
        assert_eq!(
            verbose,
            r#"sys_openat(int dfd: 3, const char * filename: 0x10 "a", int flags: 1, umode_t mode: 0x1a4)"#
        );
    }
}
