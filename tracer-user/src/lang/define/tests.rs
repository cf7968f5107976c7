//! Tests of valid and invalid definitions with their outcomes, in `cases.txt`.
//!
//! A line of input starts with `> `. `> @LANGUAGE` selects a language, `> !` removes the existing events (after
//! `> @alone` before every line), and `> ?` lists them. `cargo xtask bless` writes the outcomes.
//! `tests/tests/language/define.rs` compares them with the kernel.

use std::fmt::Write as _;

use proptest::prelude::*;

use super::super::Span;
use super::super::facts::{Arch, Fixed, Language};
use super::super::fetch::{Argument, At, Cast, Fetch, FetchKind, Path as Names, Step, TypeSpec, parse};
use super::*;
use crate::event::dynamic::latin1;

/// Path of the cases, relative to the package's directory, where cargo starts its tests.
const CASES: &str = "src/lang/define/cases.txt";

/// Returns the input lines of a text, each with its outcome.
fn outcomes(cases: &str) -> String {
    let (mut facts, mut set, mut text) = (Fixed::small(), Set::default(), String::new());
    let mut alone = false;
    let inputs = cases.lines().filter_map(|line| Some((line, line.strip_prefix("> ")?)));
    for (whole, input) in inputs {
        let _ = writeln!(text, "{whole}");
        match input {
            "@6.1" => facts.language = Language::v6_1(),
            "@6.12" => facts.language = Language::v6_12(),
            "@newest" => facts.language = Language::newest(),
            "@full" => facts.language = Language::full(),
            "@arm64" => facts.arch = Arch::Arm64,
            "@alone" => alone = true,
            "@together" => alone = false,
            "!" => set = Set::default(),
            "?" => text += &latin1(&set.listing(File::Dynamic)),
            _ => {
                text += &outcome(&mut set, input, &facts);
                if alone {
                    set = Set::default();
                }
            }
        }
        text.push('\n');
    }
    text
}

fn outcome(set: &mut Set, input: &str, facts: &Fixed) -> String {
    match set.apply(&Line::split(input.as_bytes()), File::Dynamic, facts) {
        Ok(Change::Nothing) => "nothing\n".to_owned(),
        Ok(Change::Deleted(gone)) => {
            let name = |probe: &Probe| format!("deleted {}:{}\n", probe.event.group, probe.event.name);
            gone.iter().map(name).collect::<Vec<_>>().concat()
        }
        Ok(Change::Added { .. }) => {
            let probe = &set.probes()[set.probes().len() - 1].probe;
            let mut text = latin1(&probe.event.read_back());
            let format = probe.event.format(1).text();
            let own =
                format.lines().skip_while(|line| !line.is_empty()).skip(1).filter(|line| !line.is_empty());
            for line in own {
                let _ = writeln!(text, "{line}");
            }
            for checked in &probe.args {
                let _ = writeln!(text, "{}: {}", checked.arg.name, checked.program);
            }
            if !probe.saved_args.is_empty() {
                let _ = writeln!(text, "saved arguments: {:?}", probe.saved_args);
            }
            text
        }
        Err(refusal) => {
            let mut text = format!("errno {}\n", refusal.errno().raw_os_error());
            let entries = refusal.log_entries();
            for entry in &entries {
                text += &latin1(entry);
            }
            if entries.is_empty() {
                let _ = writeln!(text, "{refusal}");
            }
            text
        }
    }
}

#[test]
fn cases() {
    let expected = std::fs::read_to_string(CASES).unwrap();
    let found = outcomes(&expected);
    if std::env::var_os("INSTA_UPDATE").is_some_and(|update| update == "always") {
        std::fs::write(CASES, found).unwrap();
        return;
    }
    for (found, expected) in found.split("\n> ").zip(expected.split("\n> ")) {
        assert_eq!(found.trim_end(), expected.trim_end());
    }
    assert_eq!(found, expected);
}

/// The table has a case for every error that a line alone can cause, with its caret.
#[test]
fn every_error_has_a_case() {
    let cases = std::fs::read_to_string(CASES).unwrap();
    // This error needs a kernel without modules or with broken types.
    let unreachable = [ErrorKind::NoTracepoint];
    let kinds = ErrorKind::ALL.iter().filter(|kind| !unreachable.contains(kind));
    for words in kinds.filter_map(|kind| kind.wording()) {
        assert!(cases.contains(&format!("error: {words}\n")), "no case with {words:?}");
    }
}

#[test]
fn a_listed_event_defines_the_same_event() {
    let cases = std::fs::read_to_string(CASES).unwrap();
    let facts = Fixed { language: Language::full(), ..Fixed::small() };
    let mut count = 0;
    for input in cases.lines().filter_map(|line| line.strip_prefix("> ")) {
        let mut set = Set::default();
        if !matches!(
            set.apply(&Line::split(input.as_bytes()), File::Dynamic, &facts),
            Ok(Change::Added { .. })
        ) {
            continue;
        }
        let listing = set.listing(File::Dynamic);
        let mut again = Set::default();
        again.apply(&Line::split(listing.trim_ascii_end()), File::Dynamic, &facts).unwrap();
        assert_eq!(again.listing(File::Dynamic), listing, "{input}");
        let (a, b) = (&set.probes()[0].probe, &again.probes()[0].probe);
        assert_eq!(a.event.format(1).text(), b.event.format(1).text(), "{input}");
        let programs = |probe: &Probe| probe.args.iter().map(|arg| arg.program.clone()).collect::<Vec<_>>();
        assert_eq!(programs(a), programs(b), "{input}");
        let event = &a.event;
        let deletion = format!("-:{}/{}", event.group, event.name);
        again.apply(&Line::split(deletion.as_bytes()), File::Dynamic, &facts).unwrap();
        assert!(again.probes().is_empty());
        count += 1;
    }
    assert!(count > 40, "only {count} definitions");
}

#[test]
fn busy_events_stay() {
    let facts = Fixed::small();
    let mut set = Set::default();
    let apply = |set: &mut Set, line: &str, file| {
        set.apply(&Line::split(line.as_bytes()), file, &facts).map_err(|refusal| refusal.errno())
    };
    apply(&mut set, "f:g/a vfs_read", File::Dynamic).unwrap();
    apply(&mut set, "f:g/a vfs_open", File::Dynamic).unwrap();
    apply(&mut set, "p:g/b vfs_open", File::Kprobe).unwrap();
    set.set_busy(|group, name| (group, name) == ("g", "a"));
    assert_eq!(set.clear(File::Dynamic), Err(Errno::BUSY));
    assert_eq!(set.clear(File::Kprobe).unwrap().len(), 1);
    assert_eq!(apply(&mut set, "-:g/a", File::Kprobe), Err(Errno::NOENT));
    // The first of two probes is deleted; the last one is busy.
    assert_eq!(apply(&mut set, "-:g/a", File::Dynamic), Err(Errno::BUSY));
    assert_eq!(set.probes().len(), 1);
    set.set_busy(|_, _| false);
    assert!(matches!(apply(&mut set, "-:g/", File::Dynamic), Ok(Change::Deleted(gone)) if gone.len() == 1));
    assert_eq!(apply(&mut set, "f:g/a vfs_read", File::Kprobe), Err(Errno::INVAL));
}

fn name() -> impl Strategy<Value = Vec<u8>> {
    "[a-z_][a-z0-9_]{0,5}".prop_map(String::into_bytes)
}

fn path() -> impl Strategy<Value = Names> {
    let step = (any::<bool>(), name()).prop_map(|(arrow, name)| Step { arrow, name, span: Span::default() });
    (name(), proptest::collection::vec(step, 0..3)).prop_map(|(root, steps)| Names {
        root,
        steps,
        hyphen: None,
    })
}

/// Members of a structure whose address is known.
fn members() -> impl Strategy<Value = Names> {
    path().prop_map(|Names { root, mut steps, hyphen }| {
        steps.insert(0, Step { arrow: true, name: root, span: Span::default() });
        Names { root: Vec::new(), steps, hyphen }
    })
}

/// A cast. Without parentheses the address has no arrow, and its parentheses are pairs.
fn cast(inner: Fetch) -> impl Strategy<Value = FetchKind> {
    let plain = matches!(inner.kind, FetchKind::Variable(_) | FetchKind::Register(_) | FetchKind::Memory(_));
    (name(), proptest::option::of(members()), any::<bool>(), members()).prop_map(
        move |(structure, member, enclosed, path)| {
            let (inner, enclosed) = (inner.clone(), enclosed || !plain);
            FetchKind::Cast(Box::new(Cast { structure, member, inner, enclosed, path }))
        },
    )
}

fn fetch() -> impl Strategy<Value = Fetch> {
    let leaf = prop_oneof![
        prop_oneof!["stack", "stack1", "comm", "arg3", "x"]
            .prop_map(|name| FetchKind::Variable(name.into_bytes())),
        path().prop_map(|path| FetchKind::Retval(Names { root: b"$retval".to_vec(), ..path })),
        path().prop_map(FetchKind::Named),
        path().prop_map(|Names { mut steps, .. }| {
            if let Some(first) = steps.first_mut() {
                first.arrow = true;
            }
            FetchKind::Current(Names { root: b"$current".to_vec(), steps, hyphen: None })
        }),
        name().prop_map(FetchKind::Register),
        any::<u64>().prop_map(FetchKind::Memory),
        "[a-z]{1,5}([+-][0-9]{1,3})?".prop_map(|name| FetchKind::Symbol(name.into_bytes())),
        any::<u64>().prop_map(FetchKind::Immediate),
        "[ -9;-~]{0,6}".prop_map(|text| FetchKind::Text(text.replace('=', "").into_bytes())),
    ];
    let place = |kind| Fetch { kind, span: Span::default(), offset: 0 };
    leaf.prop_map(place).prop_recursive(2, 4, 1, move |inner| {
        let deref = (any::<bool>(), -999i64..999, inner.clone())
            .prop_map(|(user, offset, inner)| FetchKind::Deref { user, offset, inner: Box::new(inner) });
        let this_cpu = (any::<bool>(), inner.clone())
            .prop_map(|(read, inner)| FetchKind::ThisCpu { read, inner: Box::new(inner) });
        let is_paired = |inner: &Fetch| !inner.to_string().contains('"');
        let cast = inner.prop_filter("a text can contain parentheses", is_paired).prop_flat_map(cast);
        prop_oneof![3 => deref, 1 => this_cpu, 2 => cast].prop_map(place)
    })
}

fn argument() -> impl Strategy<Value = Argument> {
    let ty = ("(u8|x64|string|b3@2/32|any)", 0u32..=64).prop_map(|(name, count)| TypeSpec {
        name: name.into_bytes(),
        count,
        span: Span::default(),
    });
    (proptest::option::of(name()), fetch(), proptest::option::of(ty)).prop_map(|(name, fetch, ty)| Argument {
        name,
        fetch,
        ty,
    })
}

proptest! {
    #[test]
    fn a_printed_argument_parses_to_the_same_tree(argument in argument()) {
        let text = argument.to_bytes();
        prop_assume!(text.len() <= 60);
        let again = parse(&text, At::KprobeExit, Language::full()).tree();
        prop_assert_eq!(again.map(Argument::without_places), Ok(argument), "{}", latin1(&text));
    }

    #[test]
    fn nothing_panics(line in "[fptre]([0-9]{1,2})?(:[a-z/.-]{0,5})? (vfs_read|sched_switch|/bin/true:1|sched.sched_switch)[a-z%$@+:()\\[\\]>=.,_\\\\\" 0-9-]{0,40}") {
        let facts = Fixed::small();
        let line = Line::split(line.as_bytes());
        if let Err(refusal) = read(&line, File::Dynamic, &facts) {
            for finding in refusal.findings() {
                prop_assert!(finding.span.start <= finding.span.end && finding.span.end <= line.text().len());
            }
            let _ = (refusal.log_entries(), refusal.to_string());
        }
    }
}
