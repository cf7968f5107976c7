//! Fuzzes format files and the records that they print. The target checks that nothing panics and that fields of any
//! accepted offset and size print.
//!
//! The first byte is the length of the record, which consists of bytes of the format text itself.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tracer_user::event::Format;
use tracer_user::render::line::{Options, Stamp, line};
use tracer_user::render::{Printer, json};

fuzz_target!(|data: &[u8]| {
    let Some((&length, rest)) = data.split_first() else { return };
    let Ok(text) = std::str::from_utf8(rest) else { return };
    for system in ["x", "syscalls"] {
        let Ok(format) = Format::parse(system, text) else { return };
        assert!(format.field("common_nothing_of_this_name").is_none());
        let _ = (format.fixed_size(), format.is_variable(), format.full_name());
        let printer = Printer::compile(&format, &());
        let record = &rest[..rest.len().min(usize::from(length))];
        let stamp = Stamp { cpu: 0, time: u64::from(length) };
        let mut out = Vec::new();
        for fields in [false, true] {
            let options = Options { fields, ..Options::default() };
            line(&mut out, &options, &printer, record, stamp, &(), &());
        }
        let start = out.len();
        json::object(&mut out, &printer, record, stamp, true, &(), &());
        assert!(std::str::from_utf8(&out[start..]).is_ok());
    }
});
