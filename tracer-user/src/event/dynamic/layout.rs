//! The record of a dynamic event: fields and print fmt.
//!
//! A record consists of the common fields, one or two addresses of the hit (none for an event probe), the arguments
//! one after the other, unaligned, and finally the texts.

use std::fmt::Write as _;

use super::{Arg, Event, Kind};
use crate::event::{Field, FieldClass, Format};

/// The common fields: type, name, offset, size, sign (`trace_define_common_fields()`).
const COMMON: [(&str, &str, usize, usize, bool); 4] = [
    ("unsigned short", "common_type", 0, 2, false),
    ("unsigned char", "common_flags", 2, 1, false),
    ("unsigned char", "common_preempt_count", 3, 1, false),
    ("int", "common_pid", 4, 4, true),
];

/// Names that no argument may have: `reserved_field_names`.
pub(crate) const RESERVED: [&str; 8] = [
    "common_type",
    "common_flags",
    "common_preempt_count",
    "common_pid",
    "common_tgid",
    "__probe_ip",
    "__probe_ret_ip",
    "__probe_func",
];

impl Event {
    /// Names of the words before the arguments.
    fn head(&self) -> &'static [&'static str] {
        if self.kind() == Kind::Eprobe {
            &[]
        } else if self.is_exit() {
            &["__probe_func", "__probe_ret_ip"]
        } else {
            &["__probe_ip"]
        }
    }

    /// Bytes before the first argument, common fields included.
    pub fn head_size(&self) -> usize {
        tracer_abi::COMMON_SIZE + 8 * self.head().len()
    }

    /// The event's own fields.
    pub fn fields(&self) -> Vec<Field> {
        let head = self
            .head()
            .iter()
            .enumerate()
            .map(|(at, name)| field("unsigned long", name, tracer_abi::COMMON_SIZE + 8 * at, 8, false));
        let args = self.args.iter().map(|arg| {
            let offset = self.head_size() + arg.offset as usize;
            field(&arg.field_type(), &arg.name, offset, arg.size() as usize, arg.ty.signed)
        });
        head.chain(args).collect()
    }

    /// The event's format, as used by the rest of the program.
    pub fn format(&self, id: u16) -> Format {
        Format {
            system: self.group.clone(),
            name: self.name.clone(),
            id,
            common: common_fields(),
            fields: self.fields(),
            print_fmt: self.print_fmt(),
        }
    }

    /// The print fmt (`__set_print_fmt()`).
    pub fn print_fmt(&self) -> String {
        let (conversion, values) = match self.head().len() {
            0 => ("", ""),
            1 => ("(%lx)", ", REC->__probe_ip"),
            _ => ("(%lx <- %lx)", ", REC->__probe_func, REC->__probe_ret_ip"),
        };
        let mut text = format!("\"{conversion}");
        for arg in &self.args {
            let one = arg.ty.conversion;
            let _ = match arg.count {
                0 => write!(text, " {}={one}", arg.name),
                count => write!(text, " {}={{{}}}", arg.name, vec![one; count as usize].join(",")),
            };
        }
        let _ = write!(text, "\"{values}");
        for arg in &self.args {
            let elements = if arg.count == 0 {
                vec![String::new()]
            } else {
                (0..arg.count).map(|n| format!("[{n}]")).collect()
            };
            for element in elements {
                let _ = if arg.ty.string {
                    write!(text, ", __get_str({}{element})", arg.name)
                } else {
                    write!(text, ", REC->{}{element}", arg.name)
                };
            }
        }
        text
    }
}

impl Arg {
    /// C type of the field, with an array's length after it.
    fn field_type(&self) -> String {
        match self.count {
            0 => self.ty.field.to_owned(),
            count => format!("{}[{count}]", self.ty.field),
        }
    }
}

/// The common fields, with which every record starts.
pub(crate) fn common_fields() -> Vec<Field> {
    COMMON.iter().map(|(ty, name, offset, size, signed)| field(ty, name, *offset, *size, *signed)).collect()
}

/// A field of an event that is defined at run time.
pub(crate) fn field(ty: &str, name: &str, offset: usize, size: usize, signed: bool) -> Field {
    let array = ty.split_once('[').and_then(|(_, length)| length.strip_suffix(']')?.parse().ok());
    Field { name: name.to_owned(), ty: ty.to_owned(), offset, size, signed, array, class: FieldClass::of(ty) }
}
