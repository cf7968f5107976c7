//! Fuzzes print fmts over records. The target checks that parsing, compiling and rendering never panic, and that
//! rendering twice produces the same text.
//!
//! The first 64 bytes are the record; the remaining bytes are the print fmt.
#![no_main]

mod event;

use event::EVENT;
use libfuzzer_sys::fuzz_target;
use tracer_user::event::Format;
use tracer_user::render::{KernelFacts, Member, Printer};

/// Answers every query, so that a missing fact never ends the compilation early.
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
