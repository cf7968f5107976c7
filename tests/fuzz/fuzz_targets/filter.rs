//! Fuzzes the event filter language. The target checks that nothing panics, that positions are inside the text and
//! that every error renders. A printed tree must parse to the same tree and the same plan, and a plan must evaluate
//! on any record.
//!
//! The first byte chooses the features of the kernel's filter language, and the next 16 bytes are the record. The
//! remaining bytes are the filter.
#![no_main]

mod event;

use std::sync::LazyLock;

use event::{EVENT, FORMAT};
use libfuzzer_sys::fuzz_target;
use tracer_user::event::Format;
use tracer_user::lang::filter::{Dialect, Feature, Request, parse, request};
use tracer_user::plan::eval::{EvalEnv, matches};
use tracer_user::plan::resolve::{self, Fixed};

static FUNCTION: LazyLock<Format> = LazyLock::new(|| {
    let text = FORMAT.replace("name: x", "name: function").replace("u64 q", "u64 ip");
    Format::parse("ftrace", &text).expect("a format")
});

fuzz_target!(|data: &[u8]| {
    let Some((head, written)) = data.split_at_checked(17) else { return };
    let dialect = Dialect::detect(|feature| {
        let index = Feature::ALL.iter().position(|other| *other == feature)?;
        Some(head[0] & (1 << index) != 0)
    });
    let Request::Set(text) = request(written) else { return };
    if let Ok(tree) = parse(text, &dialect) {
        let printed = tree.to_bytes();
        let again = parse(&printed, &dialect).expect("a printed tree parses");
        assert_eq!(again.without_spans(), tree.without_spans());
        assert_eq!(again.to_bytes(), printed);
    }
    let symbols = [(0x1000, "main"), (0x2000, "f"), (0x3000, "end")];
    let symbols = symbols.map(|(address, name)| (address, name.to_owned())).to_vec();
    let env = Fixed { dialect, cpu_ids: 70, symbols };
    for format in [&*EVENT, &*FUNCTION] {
        match resolve::stages(text, format, &env) {
            Ok(stages) => {
                let printed = stages.tree.to_bytes();
                let again = resolve::filter(&printed, format, &env).expect("a printed tree resolves");
                assert_eq!(again, stages.filter);
                let _ = stages.filter.to_string();
                // The 16 bytes repeat, so that every field has data.
                let record: Vec<u8> = head[1..].iter().copied().cycle().take(96).collect();
                let read =
                    |address: u64, user: bool| (address % 3 != 0).then(|| vec![b'a' + u8::from(user); 3]);
                let hit =
                    EvalEnv { cpu: u32::from(head[1]), comm: *b"bash\0\0\0\0\0\0\0\0\0\0\0\0", read: &read };
                matches(&stages.filter, &record, &hit);
            }
            Err(error) => {
                assert!(error.span().start <= error.span().end && error.span().end <= text.len());
                // The kernel's position is one past the current byte, or two past it for a missing brace.
                assert!(error.fault().position <= text.len() + 2);
                assert!(error.filter_file().len() <= dialect.message_max());
                let _ = (error.log_entry(), error.to_string());
            }
        }
    }
});
