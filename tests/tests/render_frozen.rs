//! Rendering of every event of the frozen kernels, with no kernel needed: each print fmt parses and compiles, and no
//! bytes whatever make rendering panic.

use tracer_tests::facts::Facts;
use tracer_user::render::Printer;
use tracer_user::render::fmt::parse;

/// Events of a frozen kernel that print field by field, with the reason; everything else is rendered.
const UNRENDERED: &[(&str, &str)] = &[];

#[test]
fn every_print_fmt_parses() {
    for facts in Facts::all().unwrap() {
        assert!(facts.formats.len() > 1000, "{} has only {} events", facts.release, facts.formats.len());
        for format in &facts.formats {
            if let Err(error) = parse(&format.print_fmt) {
                panic!("{} {}: {error}\n{}", facts.release, format.full_name(), format.print_fmt);
            }
        }
    }
}

#[test]
fn every_event_is_rendered_but_those_listed() {
    for facts in Facts::all().unwrap() {
        let unrendered: Vec<_> = facts
            .formats
            .iter()
            .map(|format| (format.full_name(), Printer::compile(format, &facts)))
            .filter_map(|(name, printer)| Some((name, printer.reason()?.to_owned())))
            .collect();
        let unlisted: Vec<_> = unrendered
            .iter()
            .filter(|(name, reason)| !UNRENDERED.iter().any(|(n, r)| n == name && r == reason))
            .collect();
        assert!(unlisted.is_empty(), "{} {}: {unlisted:#?}", facts.release, facts.arch);
    }
}
