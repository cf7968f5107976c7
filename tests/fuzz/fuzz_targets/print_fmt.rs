//! A print fmt of any bytes over a record of any bytes: parsing, compiling and rendering never panic, and what is
//! rendered twice is the same.
//!
//! The first 64 bytes are the record, the rest is the print fmt.
#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use tracer_user::event::Format;
use tracer_user::render::{KernelFacts, Member, Printer};

const FORMAT: &str = "name: x\nID: 1\nformat:\n\
    \tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;\n\
    \tfield:int common_pid;\toffset:4;\tsize:4;\tsigned:1;\n\n\
    \tfield:char s[4];\toffset:8;\tsize:4;\tsigned:0;\n\
    \tfield:u8 b;\toffset:12;\tsize:1;\tsigned:0;\n\
    \tfield:short h;\toffset:14;\tsize:2;\tsigned:1;\n\
    \tfield:u64 q;\toffset:16;\tsize:8;\tsigned:0;\n\
    \tfield:const char * p;\toffset:24;\tsize:8;\tsigned:0;\n\
    \tfield:__data_loc char[] d;\toffset:32;\tsize:4;\tsigned:0;\n\
    \tfield:__rel_loc u32[] r;\toffset:36;\tsize:4;\tsigned:0;\n\
    \tfield:__data_loc cpumask_t m;\toffset:40;\tsize:4;\tsigned:0;\n\
    \tfield:u8 a[6];\toffset:44;\tsize:6;\tsigned:0;\n\nprint fmt: \"\"\n";

static EVENT: LazyLock<Format> = LazyLock::new(|| Format::parse("x", FORMAT).expect("a format"));

/// Answers everything, so that no reason ends the compilation early.
struct Facts;

impl KernelFacts for Facts {
    fn constant(&self, name: &str) -> Option<i64> {
        Some(name.len() as i64 - 4)
    }

    fn type_size(&self, name: &str) -> Option<(u64, bool)> {
        Some((name.len() as u64, name.len().is_multiple_of(2)))
    }

    fn member(&self, aggregate: &str, member: &str) -> Option<Member> {
        let bits = (member.len() as u32 * 7) % 70;
        Some(Member { bit_offset: aggregate.len() as u32 * 5, bits, signed: member.len().is_multiple_of(2) })
    }

    fn hz(&self) -> Option<u32> {
        Some(300)
    }
}

fuzz_target!(|data: &[u8]| {
    let Some((record, text)) = data.split_at_checked(64) else { return };
    let Ok(text) = std::str::from_utf8(text) else { return };
    let format = Format { print_fmt: text.to_owned(), ..EVENT.clone() };
    for facts in [&Facts as &dyn KernelFacts, &()] {
        let printer = Printer::compile(&format, facts);
        let (mut once, mut again) = (Vec::new(), Vec::new());
        printer.event(record, &(), false, &mut once);
        printer.event(record, &(), false, &mut again);
        assert_eq!(once, again);
        printer.event(&record[..usize::from(record[0] & 63)], &(), true, &mut again);
    }
});
