//! Parser and writer of `format` files.
//!
//! The text is a kernel interface (the `trace_event_format` seq file). It contains a name, an id, the common fields,
//! a blank line, the event's own fields, and the `print fmt` line, whose strings may contain newlines.

use super::{Field, FieldClass};

/// The layout of an event's record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Format {
    /// Subsystem: the directory that contains the event.
    pub system: String,
    /// Event name.
    pub name: String,
    /// Id, `common_type` of the records.
    pub id: u16,
    /// `common_type`, `common_flags`, `common_preempt_count`, `common_pid`.
    pub common: Vec<Field>,
    /// The event's own fields, in the file's order.
    pub fields: Vec<Field>,
    /// Everything after `print fmt: `.
    pub print_fmt: String,
}

/// Why a format file could not be parsed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("format of {system}: line {line}: {what}")]
pub struct FormatError {
    /// Subsystem passed by the caller.
    pub system: String,
    /// Line of the text, from 1.
    pub line: usize,
    /// The defect in the line.
    pub what: &'static str,
}

impl Format {
    /// Parses the text of `events/SYSTEM/NAME/format`.
    ///
    /// # Errors
    /// If a line is missing or does not have the form that the kernel writes.
    pub fn parse(system: &str, text: &str) -> Result<Self, FormatError> {
        let fail = |line, what| FormatError { system: system.to_owned(), line, what };
        let mut format = Self {
            system: system.to_owned(),
            name: String::new(),
            id: 0,
            common: Vec::new(),
            fields: Vec::new(),
            print_fmt: String::new(),
        };
        let mut seen_id = false;
        let mut rest = text;
        let mut number = 0;
        while !rest.is_empty() {
            number += 1;
            let (line, after) = rest.split_once('\n').unwrap_or((rest, ""));
            if let Some(fmt) = rest.strip_prefix("print fmt: ") {
                fmt.strip_suffix('\n').unwrap_or(fmt).clone_into(&mut format.print_fmt);
                break;
            }
            rest = after;
            if let Some(name) = line.strip_prefix("name: ") {
                name.clone_into(&mut format.name);
            } else if let Some(id) = line.strip_prefix("ID: ") {
                format.id =
                    id.trim().parse().map_err(|_| fail(number, "the id is not a number below 65536"))?;
                seen_id = true;
            } else if let Some(body) = line.strip_prefix("\tfield:") {
                let field = parse_field(body).map_err(|what| fail(number, what))?;
                if field.name.starts_with("common_") && format.fields.is_empty() {
                    format.common.push(field);
                } else {
                    format.fields.push(field);
                }
            } else if line == "format:" || line.trim().is_empty() {
            } else {
                return Err(fail(number, "not a line of a format file"));
            }
        }
        if format.name.is_empty() {
            return Err(fail(number, "no name"));
        }
        if !seen_id {
            return Err(fail(number, "no id"));
        }
        Ok(format)
    }

    /// The field of this name. Like the kernel, searches the event's own fields before the common ones.
    pub fn field(&self, name: &str) -> Option<&Field> {
        self.fields.iter().chain(&self.common).find(|field| field.name == name)
    }

    /// Bytes of the record's fixed part: the end of its last field, common fields included.
    pub fn fixed_size(&self) -> usize {
        self.fields.iter().map(Field::end).fold(tracer_abi::COMMON_SIZE, usize::max)
    }

    /// Whether records have data after the fixed part, which words in the fixed part locate.
    pub fn is_variable(&self) -> bool {
        self.fields.iter().any(|field| field.is_data_loc() || field.is_rel_loc())
    }

    /// Whether the last field is an array without a length (`char buf[]`). The writer determines the length of such a
    /// record; its content does not state it.
    pub fn is_open(&self) -> bool {
        self.fields.last().is_some_and(|field| field.size == 0 && field.ty.ends_with("[]"))
    }

    /// `system:name`.
    pub fn full_name(&self) -> String {
        format!("{}:{}", self.system, self.name)
    }

    /// The text of the `format` file of an event that is defined at run time (`f_show()`, kernel/trace/trace_events.c).
    pub fn text(&self) -> String {
        self.written(false)
    }

    /// As [`Format::text`], with the lengths of arrays.
    pub fn text_with_lengths(&self) -> String {
        self.written(true)
    }

    fn written(&self, lengths: bool) -> String {
        let lines = |fields: &[Field]| fields.iter().map(|field| line(field, lengths)).collect::<String>();
        let Self { name, id, print_fmt, .. } = self;
        let (common, own) = (lines(&self.common), lines(&self.fields));
        format!("name: {name}\nID: {id}\nformat:\n{common}\n{own}\nprint fmt: {print_fmt}\n")
    }
}

/// A field's line in a format file. The kernel stores no length for the arrays of dynamic events: empty brackets follow
/// the name, except if the type starts with `__data_loc`.
fn line(field: &Field, lengths: bool) -> String {
    let bracket = field.ty.find('[').filter(|_| !field.is_data_loc());
    let (ty, brackets) = match bracket.and_then(|at| field.ty.split_at_checked(at)) {
        Some((ty, brackets)) => (ty, if lengths { brackets } else { "[]" }),
        None => (field.ty.as_str(), ""),
    };
    let Field { name, offset, size, .. } = field;
    let signed = u8::from(field.signed);
    format!("\tfield:{ty} {name}{brackets};\toffset:{offset};\tsize:{size};\tsigned:{signed};\n")
}

/// Parses the text after `field:` up to the line's end.
fn parse_field(body: &str) -> Result<Field, &'static str> {
    let (declaration, attributes) = body.split_once(';').ok_or("no semicolon after the declaration")?;
    let declaration = declaration.trim();
    let (bare, brackets) = match declaration.find('[') {
        // `__data_loc char[] name` has its brackets inside the type.
        Some(at) if declaration.ends_with(']') => declaration.split_at(at),
        _ => (declaration, ""),
    };
    let cut = bare.rfind([' ', '\t', '*']).ok_or("no type before the field's name")?;
    let (ty, name) = bare.split_at(cut + 1);
    if name.is_empty() {
        return Err("no field name");
    }
    let ty = format!("{}{brackets}", ty.trim_end());
    let number = |key: &str| {
        attributes
            .split(';')
            .find_map(|attribute| attribute.trim().strip_prefix(key))
            // No record is longer, and the sum of two such values cannot overflow.
            .and_then(|value| value.trim().parse::<u16>().ok())
            .map(usize::from)
    };
    let array = brackets.trim_matches(['[', ']']).parse().ok();
    Ok(Field {
        name: name.to_owned(),
        class: FieldClass::of(&ty),
        ty,
        offset: number("offset:").ok_or("no offset")?,
        size: number("size:").ok_or("no size")?,
        // Kernels before 2.6.32 lack `signed`; a missing one reads as unsigned.
        signed: number("signed:").unwrap_or(0) != 0,
        array,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const OPENAT: &str = "name: sys_enter_openat\nID: 782\nformat:\n\
        \tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;\n\
        \tfield:int common_pid;\toffset:4;\tsize:4;\tsigned:1;\n\n\
        \tfield:int __syscall_nr;\toffset:8;\tsize:4;\tsigned:1;\n\
        \tfield:const char * filename;\toffset:24;\tsize:8;\tsigned:0;\n\
        \tfield:__data_loc char[] name;\toffset:32;\tsize:4;\tsigned:0;\n\
        \tfield:char comm[16];\toffset:36;\tsize:16;\tsigned:0;\n\
        \tfield:unsigned long args[6];\toffset:56;\tsize:48;\tsigned:0;\n\n\
        print fmt: \"x\n y %d\", REC->a\n";

    #[test]
    fn fields_types_and_print_fmt() {
        let format = Format::parse("syscalls", OPENAT).unwrap();
        assert_eq!((format.name.as_str(), format.id), ("sys_enter_openat", 782));
        assert_eq!(format.common.len(), 2);
        let seen: Vec<_> =
            format.fields.iter().map(|f| (f.name.as_str(), f.ty.as_str(), f.class, f.array)).collect();
        assert_eq!(
            seen,
            [
                ("__syscall_nr", "int", FieldClass::Number, None),
                ("filename", "const char *", FieldClass::PtrString, None),
                ("name", "__data_loc char[]", FieldClass::DynString, None),
                ("comm", "char[16]", FieldClass::StaticString, Some(16)),
                ("args", "unsigned long[6]", FieldClass::Number, Some(6)),
            ]
        );
        assert_eq!(format.print_fmt, "\"x\n y %d\", REC->a");
        assert_eq!(format.fixed_size(), 104);
        assert!(format.is_variable());
    }

    #[test]
    fn a_broken_file_names_the_line() {
        let error = Format::parse("s", "name: x\nID: y\n").unwrap_err();
        assert_eq!(error.to_string(), "format of s: line 2: the id is not a number below 65536");
    }
}
