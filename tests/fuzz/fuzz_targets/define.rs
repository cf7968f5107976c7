//! Fuzzes the language of dynamic events. The target checks that nothing panics, that spans are inside the line and
//! that every error renders. A listed event must define the same event again, and a printed argument must parse to
//! the same tree.
//!
//! The first four bytes choose the features of the language. The remaining bytes are written to `dynamic_events`, line
//! by line.
#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use tracer_user::lang::define::{Change, File, Line, Set, lines};
use tracer_user::lang::facts::{Feature, Fixed, Language};
use tracer_user::lang::fetch::{At, parse};

static KERNEL: LazyLock<Fixed> = LazyLock::new(Fixed::small);

fuzz_target!(|data: &[u8]| {
    let Some((head, written)) = data.split_at_checked(4) else { return };
    let mask = u32::from_le_bytes([head[0], head[1], head[2], head[3]]);
    let absent = Feature::ALL.into_iter().enumerate().filter(|(at, _)| mask & (1 << at) != 0);
    let language = absent.fold(Language::full(), |language, (_, feature)| language.without(feature));
    let facts = Fixed { language, ..KERNEL.clone() };
    let mut set = Set::default();
    for line in lines(written).filter_map(Result::ok) {
        let line = Line::split(line);
        match set.apply(&line, File::Dynamic, &facts) {
            Ok(Change::Added { .. }) => {
                let event = &set.probes()[set.probes().len() - 1].probe.event;
                // The listing omits the filter, so only the other parts of the definition are read back.
                let listed = event.read_back();
                let mut again = Set::default();
                if again.apply(&Line::split(listed.trim_ascii_end()), File::Dynamic, &facts).is_ok() {
                    assert_eq!(again.listing(File::Dynamic), listed);
                }
                let _ = event.format(1).text();
                assert_eq!(event.fields().len(), event.format(1).fields.len());
            }
            Ok(_) => {}
            Err(refusal) => {
                for finding in refusal.findings() {
                    assert!(finding.span.start <= finding.span.end && finding.span.end <= line.text().len());
                }
                let _ = (refusal.log_entries(), refusal.to_string());
            }
        }
        for word in line.words() {
            for at in [At::KprobeEntry, At::FprobeExit, At::UserExit, At::Event] {
                let Ok(tree) = parse(word, at, language).tree() else { continue };
                let printed = tree.to_bytes();
                // A printed number may be longer than the argument limit allows.
                if let Ok(again) = parse(&printed, at, language).tree() {
                    assert_eq!(again.without_places(), tree.without_places());
                }
            }
        }
    }
});
