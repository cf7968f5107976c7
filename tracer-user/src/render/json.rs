//! A record as one JSON object on one line.
//!
//! ```json
//! {"time":1526933273,"cpu":1,"comm":"sh","pid":42,"flags":"d..2.","system":"sched","event":"sched_waking",
//!  "fields":{"comm":"sh","pid":42,"prio":120,"target_cpu":1},"text":"comm=sh pid=42 prio=120 target_cpu=001"}
//! ```
//!
//! Numbers are JSON integers of up to 64 bits. Text is a string, with invalid UTF-8 replaced. Arrays of bytes, and
//! values of unknown C type, are hexadecimal digits. A CPU mask is a list (`"0-3,8"`), and a pointer is a number.

use super::env::RenderEnv;
use super::line::{Entry, Stamp, Tasks, comm, latency_flags};
use super::printer::Printer;
use super::printf::pointer::bitmap_list;
use super::printf::{
    hex::hex_pair,
    number::{decimal, hex_bytes},
};
use super::value::{self, FieldValue};
use crate::event::Field;

/// Writes one record with its newline. `time` is the stamp's time, in nanoseconds unless the clock counts otherwise.
pub fn object(
    out: &mut Vec<u8>,
    printer: &Printer,
    record: &[u8],
    stamp: Stamp,
    lazy_flag: bool,
    tasks: &dyn Tasks,
    env: &dyn RenderEnv,
) {
    let entry = Entry::of(record);
    let format = printer.format();
    out.extend_from_slice(b"{\"time\":");
    decimal(out, stamp.time);
    out.extend_from_slice(b",\"cpu\":");
    decimal(out, stamp.cpu);
    out.extend_from_slice(b",\"comm\":");
    string(out, comm(entry.pid, tasks));
    out.extend_from_slice(b",\"pid\":");
    decimal(out, entry.pid);
    if let Some(tgid) = tasks.tgid(entry.pid) {
        out.extend_from_slice(b",\"tgid\":");
        decimal(out, tgid);
    }
    out.extend_from_slice(b",\"flags\":");
    string(out, &latency_flags(entry.flags, entry.preempt_count, lazy_flag));
    out.extend_from_slice(b",\"system\":");
    string(out, format.system.as_bytes());
    out.extend_from_slice(b",\"event\":");
    string(out, format.name.as_bytes());
    out.extend_from_slice(b",\"fields\":{");
    for (i, field) in format.fields.iter().enumerate() {
        if i > 0 {
            out.push(b',');
        }
        string(out, field.name.as_bytes());
        out.push(b':');
        value(out, field, record);
    }
    out.extend_from_slice(b"},\"text\":");
    let mut text = Vec::new();
    printer.text(record, env, &mut text);
    string(out, &text);
    out.extend_from_slice(b"}\n");
}

/// Writes a field's value; `null` if it is outside of the record.
fn value(out: &mut Vec<u8>, field: &Field, record: &[u8]) {
    match value::of(field, record) {
        None => out.extend_from_slice(b"null"),
        Some(FieldValue::Text(text)) => string(out, text),
        Some(FieldValue::Cpus(cpus)) => {
            out.push(b'"');
            bitmap_list(out, cpus.bytes(), (cpus.bytes().len() * 8) as i32);
            out.push(b'"');
        }
        Some(FieldValue::Bool(true)) => out.extend_from_slice(b"true"),
        Some(FieldValue::Bool(false)) => out.extend_from_slice(b"false"),
        Some(FieldValue::Unsigned(value)) => decimal(out, value),
        Some(FieldValue::Signed(value)) => decimal(out, value),
        Some(FieldValue::Bytes(bytes)) => {
            out.push(b'"');
            hex_bytes(out, bytes, None);
            out.push(b'"');
        }
        Some(FieldValue::Numbers(numbers)) => {
            out.push(b'[');
            for (i, value) in numbers.iter().enumerate() {
                if i > 0 {
                    out.push(b',');
                }
                match value {
                    FieldValue::Signed(value) => decimal(out, value),
                    other => decimal(out, other.as_u64().unwrap_or_default()),
                }
            }
            out.push(b']');
        }
    }
}

/// Writes a quoted string; invalid UTF-8 becomes U+FFFD.
fn string(out: &mut Vec<u8>, bytes: &[u8]) {
    out.push(b'"');
    for chunk in bytes.utf8_chunks() {
        for &byte in chunk.valid().as_bytes() {
            match byte {
                b'"' => out.extend_from_slice(b"\\\""),
                b'\\' => out.extend_from_slice(b"\\\\"),
                b'\n' => out.extend_from_slice(b"\\n"),
                b'\t' => out.extend_from_slice(b"\\t"),
                0..0x20 => {
                    out.extend_from_slice(b"\\u00");
                    out.extend_from_slice(&hex_pair(byte));
                }
                _ => out.push(byte),
            }
        }
        if !chunk.invalid().is_empty() {
            out.extend_from_slice("\u{fffd}".as_bytes());
        }
    }
    out.push(b'"');
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::Format;

    const FORMAT: &str = "name: ev\nID: 7\nformat:\n\
        \tfield:char comm[4];\toffset:8;\tsize:4;\tsigned:0;\n\
        \tfield:int number;\toffset:12;\tsize:4;\tsigned:1;\n\
        \tfield:unsigned long big;\toffset:16;\tsize:8;\tsigned:0;\n\
        \tfield:bool yes;\toffset:24;\tsize:1;\tsigned:0;\n\
        \tfield:u8 mac[3];\toffset:25;\tsize:3;\tsigned:0;\n\
        \tfield:__data_loc char[] name;\toffset:28;\tsize:4;\tsigned:0;\n\
        \tfield:__data_loc cpumask_t cpus;\toffset:32;\tsize:4;\tsigned:0;\n\
        \tfield:__data_loc u16[] list;\toffset:36;\tsize:4;\tsigned:0;\n\
        \tfield:short pair[2];\toffset:40;\tsize:4;\tsigned:1;\n\
        \tfield:__data_loc char[] lost;\toffset:44;\tsize:4;\tsigned:0;\n\n\
        print fmt: \"%s\\t%d\", REC->comm, REC->number\n";

    #[test]
    fn every_kind_of_field() {
        let mut record = 7u16.to_ne_bytes().to_vec();
        record.extend([1, 0]);
        record.extend(42i32.to_ne_bytes());
        record.extend(b"a\"\xff\0");
        record.extend((-3i32).to_ne_bytes());
        record.extend(u64::MAX.to_ne_bytes());
        record.extend([1, 0xaa, 0xbb, 0xcc]);
        for (length, offset) in [(3u32, 48u32), (8, 56), (4, 52)] {
            record.extend(((length << 16) + offset).to_ne_bytes());
        }
        record.extend([(-1i16).to_ne_bytes(), 2i16.to_ne_bytes()].concat());
        record.extend(((9u32 << 16) + 4000).to_ne_bytes());
        record.extend(b"hi\0\0");
        record.extend([1u16.to_ne_bytes(), 0x200u16.to_ne_bytes()].concat());
        record.extend(0b1011u64.to_ne_bytes());
        let printer = Printer::compile(&Format::parse("sys", FORMAT).unwrap(), &());
        let mut out = Vec::new();
        object(&mut out, &printer, &record, Stamp { cpu: 1, time: 5 }, true, &(), &());
        let text = String::from_utf8(out).unwrap();
        insta::assert_snapshot!(text, @r#"{"time":5,"cpu":1,"comm":"<...>","pid":42,"flags":"d....","system":"sys","event":"ev","fields":{"comm":"a\"�","number":-3,"big":18446744073709551615,"yes":true,"mac":"aabbcc","name":"hi","cpus":"0-1,3","list":[1,512],"pair":[-1,2],"lost":null},"text":"a\"�\t-3"}"#);
        serde_json::from_str::<serde_json::Value>(&text).unwrap();
    }

    #[test]
    fn an_array_without_a_length_is_text_up_to_its_nul() {
        let format = "name: print\nID: 5\nformat:\n\tfield:char buf[];\toffset:8;\tsize:0;\tsigned:0;\n\n\
            print fmt: \"%s\", REC->buf\n";
        let printer = Printer::compile(&Format::parse("ftrace", format).unwrap(), &());
        let record = b"\x05\0\0\0\0\0\0\0hello\n\0x";
        let mut out = Vec::new();
        object(&mut out, &printer, record, Stamp { cpu: 0, time: 0 }, true, &(), &());
        let text = String::from_utf8(out).unwrap();
        assert!(text.ends_with("\"fields\":{\"buf\":\"hello\\n\"},\"text\":\"hello\\n\"}\n"), "{text}");
    }
}
