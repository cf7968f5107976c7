//! Rendering of every event of the frozen kernels, independent of the running kernel: each print fmt parses and
//! compiles, frozen records give the kernel's text, and no record bytes make the rendering panic.

use std::sync::OnceLock;

use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use tracer_tests::frozen::facts::{self, Facts};
use tracer_tests::frozen::golden::{Golden, WithVariables};
use tracer_tests::host;
use tracer_user::event::Format;
use tracer_user::render::fmt::parse;
use tracer_user::render::line::{Options, Stamp, line};
use tracer_user::render::{Printer, json};

/// Events of the frozen kernels that are printed field by field, and what the reason names; all others are rendered.
const UNRENDERED: &[(&str, &str)] = &[
    ("intel_iommu:prq_report", "decode_prq_descriptor"),
    ("nvme:nvme_setup_cmd", "nvme_fabrics_command"),
    ("nvme:nvme_setup_cmd", "nvme_trace_parse_fabrics_cmd"),
    ("xen:xen_mc_entry", "xen_hypercall_name"),
    ("xen:xen_mc_extend_args", "xen_hypercall_name"),
];

/// The frozen kernels, read once for all tests.
fn frozen() -> &'static [Facts] {
    static FACTS: OnceLock<Vec<Facts>> = OnceLock::new();
    FACTS.get_or_init(|| Facts::all().unwrap())
}

#[test]
fn every_print_fmt_parses() {
    for facts in frozen() {
        assert!(facts.formats.len() > 1000, "{} has only {} events", facts.release, facts.formats.len());
        for format in &facts.formats {
            if let Err(error) = parse(&format.print_fmt) {
                panic!("{} {}: {error}\n{}", facts.release, format.full_name(), format.print_fmt);
            }
        }
    }
}

#[test]
fn every_event_except_the_listed_ones_is_rendered() {
    for facts in frozen() {
        let unlisted: Vec<_> = facts
            .formats
            .iter()
            .map(|format| (format.full_name(), Printer::compile(format, facts)))
            .filter_map(|(name, printer)| Some((name, printer.reason()?.to_owned())))
            .filter(|(name, reason)| {
                let names = |what| {
                    *reason == format!("calls {what}(), which runs only in the kernel")
                        || *reason == format!("the value of the kernel's {what} is not known")
                };
                !UNRENDERED.iter().any(|(event, what)| event == name && names(*what))
            })
            .collect();
        assert!(unlisted.is_empty(), "{} {}: {unlisted:#?}", facts.release, facts.arch);
    }
}

#[test]
fn frozen_records_give_the_kernels_text() {
    let dir = facts::dir().unwrap();
    let mut seen = 0;
    for facts in frozen() {
        let (major, minor) = tracer_user::kernel::version_of(&facts.release);
        let path = dir.join(format!("{major}.{minor}-{}.golden.txt", facts.arch));
        if !path.exists() {
            continue;
        }
        let golden = Golden::read(&path).unwrap();
        assert!(golden.records.len() >= 60, "{} has only {} records", path.display(), golden.records.len());
        for (name, record, expected) in &golden.records {
            let format = facts.format(name).unwrap_or_else(|| panic!("no format of {name}"));
            let printer = Printer::compile(format, &WithVariables(facts, &golden));
            let mut text = Vec::new();
            printer.event(record, &golden, false, &mut text);
            assert_eq!(String::from_utf8_lossy(&text), *expected, "{name}");
        }
        seen += 1;
    }
    assert!(seen > 0, "no golden file in {}", dir.display());
}

/// Bytes of any length: random ones, and small numbers, which are more often offsets and lengths inside the record.
fn records() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        prop::collection::vec(any::<u8>(), 0..600),
        prop::collection::vec(0u8..64, 0..600),
        prop::collection::vec(prop_oneof![Just(0u8), Just(0xff), any::<u8>()], 0..600),
    ]
}

fn config(cases: u32) -> ProptestConfig {
    ProptestConfig {
        cases: host::share(cases),
        rng_seed: RngSeed::Fixed(0x7472_6163),
        failure_persistence: None,
        ..Default::default()
    }
}

#[test]
fn no_record_makes_rendering_panic() {
    let printers: Vec<_> = frozen()
        .iter()
        .flat_map(|facts| {
            facts.formats.iter().map(|format| Printer::compile(format, facts)).collect::<Vec<_>>()
        })
        .collect();
    let every = [
        Options::default(),
        Options { fields: true, print_tgid: true, lazy_flag: false, ..Options::default() },
        Options { hex: true, ..Options::default() },
    ];
    proptest!(config(24), |(record in records(), cpu in any::<u32>(), time in any::<u64>())| {
        let mut out = Vec::new();
        for printer in &printers {
            out.clear();
            for options in &every {
                line(&mut out, options, printer, &record, Stamp { cpu, time }, &(), &());
            }
            let start = out.len();
            json::object(&mut out, printer, &record, Stamp { cpu, time }, true, &(), &());
            let object = std::str::from_utf8(&out[start..]).expect("JSON is UTF-8");
            prop_assert!(object.starts_with('{') && object.ends_with("}\n"), "{object}");
        }
    });
}

#[test]
fn no_print_fmt_makes_the_engine_panic() {
    let facts = &frozen()[0];
    let formats = &facts.formats;
    // A real text, cut, with an inserted piece of another and a changed byte.
    proptest!(config(3000), |(
        one in any::<prop::sample::Index>(),
        other in any::<prop::sample::Index>(),
        cuts in any::<[prop::sample::Index; 4]>(),
        byte in prop::sample::select(b"\"%*(){}[]?:,;->&|!~0123456789xuUlLsdpcnRECaz \\'".to_vec()),
        record in records(),
    )| {
        let format = &formats[one.index(formats.len())];
        let from = &formats[other.index(formats.len())].print_fmt;
        let mut text: Vec<char> = format.print_fmt.chars().collect();
        let piece: Vec<char> = from.chars().collect();
        if !text.is_empty() && !piece.is_empty() {
            let (a, b) = (cuts[0].index(piece.len()), cuts[1].index(piece.len()));
            let at = cuts[2].index(text.len());
            text.splice(at..at, piece[a.min(b)..a.max(b)].iter().copied());
            let at = cuts[3].index(text.len());
            text[at] = char::from(byte);
        }
        let mutated = Format { print_fmt: text.into_iter().collect(), ..format.clone() };
        Printer::compile(&mutated, facts).event(&record, &(), true, &mut Vec::new());
    });
}
