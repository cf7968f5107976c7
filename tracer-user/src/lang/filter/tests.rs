//! Tests of the filter language without an event: tokens, trees, printing, requests.

use proptest::prelude::*;

use super::ast::Expr;
use super::*;

fn parsed(text: &str) -> Expr {
    parse(text.as_bytes(), &Dialect::newest()).unwrap_or_else(|error| panic!("{error}"))
}

/// Prints the structure of the tree.
fn shape(expr: &Expr) -> String {
    let many = |parts: &[Expr]| parts.iter().map(shape).collect::<Vec<_>>().join(" ");
    match expr {
        Expr::Predicate(predicate) => String::from_utf8_lossy(&predicate.field.text).into_owned(),
        Expr::Not(inner) => format!("(! {})", shape(inner)),
        Expr::Group(inner) => format!("[{}]", shape(inner)),
        Expr::And(parts) => format!("(& {})", many(parts)),
        Expr::Or(parts) => format!("(| {})", many(parts)),
    }
}

#[test]
fn precedence() {
    for (text, expected) in [
        ("a==1 || b==1 && c==1", "(| a (& b c))"),
        ("a==1 && b==1 || c==1", "(| (& a b) c)"),
        ("a==1 && (b==1 || c==1)", "(& a [(| b c)])"),
        ("!a==1 && b==1", "(& (! a) b)"),
        ("!(a==1 && b==1) || !!c==1", "(| (! [(& a b)]) (! (! c)))"),
        ("! ( ! ( a==1 ) )", "(! [(! [a])])"),
    ] {
        assert_eq!(shape(&parsed(text)), expected, "{text}");
    }
}

#[test]
fn tokens() {
    let text = b"!(pid != -1) && f.ustring ~ 'a*'||x.function == y z";
    let counts = balance::check(text).unwrap();
    let lexed = lex(text, counts, &Dialect::newest(), false);
    let shown = |token: &Token| format!("{:?} {}", token.kind, String::from_utf8_lossy(token.span.of(text)));
    let seen: Vec<_> = lexed.tokens.iter().map(shown).collect();
    assert_eq!(
        seen.join(", "),
        "Not !, Open (, Field pid, Op(Ne) !=, Value(Number) -1, Close ), And &&, \
         Field f, UserText .ustring, Op(Glob) ~, Value(Text(39)) 'a*', Or ||, \
         Field x, Function .function, Op(Eq) ==, Value(Symbol) y"
    );
    assert_eq!(lexed.fault.map(|fault| fault.kind), Some(ErrorKind::TooManyTerms));
}

#[test]
fn printing() {
    for (text, printed) in [
        ("a==1&&b!='x y'", "a == 1 && b != 'x y'"),
        ("( a & CPUS{0-1} )", "(a & CPUS{0-1})"),
        ("(a.function==main )", "(a.function == main )"),
        ("!( a.ustring ~ \"*\" )", "!(a.ustring ~ \"*\")"),
    ] {
        assert_eq!(parsed(text).to_string(), printed);
    }
}

#[test]
fn requests() {
    assert_eq!(request(b" 0 \n"), Request::Clear);
    assert_eq!(request(b"0\0junk"), Request::Clear);
    assert_eq!(request(b" a == 1\n"), Request::Set(b" a == 1"));
    assert_eq!(request(b"00"), Request::Set(b"00"));
    assert_eq!(request(b""), Request::Set(b""));
    assert_eq!(request(&[b' '; WRITE_MAX]), Request::TooLong);
}

/// Valid and nearly valid filters: elements of the language in any order, with and without spaces.
fn nearly() -> impl Strategy<Value = String> {
    let short = [
        "a", "b_1", "==", "!=", "~", "<=", "&", "&&", "||", "!", "(", ")", "'x*'", "\"y\"", "1", "-0x2", "'",
        "\"", "CPUS{", ".ustring", " ", "\n", "main", "\u{e9}", "{", "}", "|", " && ", " || ", " !", " (",
        " )",
    ];
    let long = ["CPUS{0-1}", ".function", " a == 1 ", " b_1 ~ \"z*\" ", " c.function == main "];
    let piece = prop::sample::select([&short[..], &long].concat());
    prop::collection::vec(piece, 0..24).prop_map(|pieces| pieces.concat())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4000, rng_seed: proptest::test_runner::RngSeed::Fixed(2), ..ProptestConfig::default() })]

    #[test]
    fn a_printed_filter_parses_to_the_same_tree(text in nearly()) {
        if let Ok(tree) = parse(text.as_bytes(), &Dialect::newest()) {
            let printed = tree.to_bytes();
            let again = parse(&printed, &Dialect::newest()).expect("a printed tree parses");
            prop_assert_eq!(again.without_spans(), tree.without_spans());
            prop_assert_eq!(again.to_bytes(), printed);
        }
    }

    #[test]
    fn faults_lie_in_the_text(text in nearly()) {
        if let Err(error) = parse(text.as_bytes(), &Dialect::newest()) {
            prop_assert!(error.span().end <= text.len());
            prop_assert!(error.fault().position <= text.len() + 2);
            let _ = (error.filter_file(), error.log_entry(), error.to_string());
        }
    }
}

/// The kernel's algorithm to compile a filter (the three passes of `predicate_parse()`).
///
/// Each entry tests a term, and on one outcome continues after its target. The program must compute the value of the
/// tree.
mod program {
    use super::*;

    struct Entry {
        branch_when: bool,
        target: isize,
        inverted: bool,
    }

    #[derive(Clone, Copy, Default)]
    struct Level {
        inverted: bool,
        and: bool,
        or: bool,
    }

    fn update(entries: &mut [Entry], last: usize, branch_when: bool) {
        let junction = entries[last].target as usize;
        let before = entries[junction].target;
        entries[junction].branch_when = branch_when;
        entries[junction].target = last as isize;
        entries[last].target = before;
    }

    /// Updates the entries between terms and at the end. `next` is the junction; `None` for a parenthesis or the end.
    fn settle(entries: &mut [Entry], level: &mut Level, next: Option<TokenKind>) {
        let last = entries.len() - 1;
        if std::mem::take(&mut level.and) {
            update(entries, last, level.inverted);
        }
        if next == Some(TokenKind::And) {
            level.and = true;
            return;
        }
        if std::mem::take(&mut level.or) {
            update(entries, last, !level.inverted);
        }
        level.or = next == Some(TokenKind::Or);
    }

    fn make(tokens: &[Token]) -> Vec<Entry> {
        let mut entries: Vec<Entry> = Vec::new();
        let mut levels = vec![Level::default()];
        let mut invert = false;
        for token in tokens {
            let level = levels.len() - 1;
            match token.kind {
                TokenKind::Open => levels.push(Level { inverted: invert, ..Level::default() }),
                TokenKind::Not => invert = !invert,
                TokenKind::Field => {
                    let target = entries.len() as isize - 1;
                    entries.push(Entry { branch_when: false, target, inverted: invert });
                    invert = levels[level].inverted;
                }
                TokenKind::Close => {
                    settle(&mut entries, &mut levels[level], None);
                    levels.pop();
                    invert = levels[level - 1].inverted;
                }
                kind @ (TokenKind::And | TokenKind::Or) => {
                    settle(&mut entries, &mut levels[level], Some(kind));
                    invert = levels[level].inverted;
                }
                _ => {}
            }
        }
        settle(&mut entries, &mut levels[0], None);
        let n = entries.len();
        entries[n - 1].target = n as isize;
        entries[n - 1].branch_when = false;
        for at in (0..n - 1).rev() {
            let target = entries[at].target as usize;
            let (when, further) = (entries[target].branch_when, entries[target].target);
            if entries[at].branch_when == when {
                entries[at].target = further;
            }
        }
        for (at, entry) in entries.iter_mut().enumerate() {
            entry.branch_when ^= entry.inverted;
            assert!(entry.target > at as isize, "the program goes forward");
        }
        entries
    }

    fn run(entries: &[Entry], terms: u64) -> bool {
        let n = entries.len();
        let mut at = 0;
        while at < n {
            let holds = terms & (1 << at) != 0;
            at = if holds == entries[at].branch_when { entries[at].target as usize + 1 } else { at + 1 };
        }
        // An entry for true and one for false follow the program.
        at == n
    }

    fn holds(expr: &Expr, terms: u64, next: &mut u32) -> bool {
        match expr {
            Expr::Predicate(_) => {
                let held = terms & (1 << *next) != 0;
                *next += 1;
                held
            }
            Expr::Not(inner) => !holds(inner, terms, next),
            Expr::Group(inner) => holds(inner, terms, next),
            // Evaluates all parts, because `next` counts the terms.
            Expr::And(parts) => parts.iter().fold(true, |all, part| all & holds(part, terms, next)),
            Expr::Or(parts) => parts.iter().fold(false, |any, part| any | holds(part, terms, next)),
        }
    }

    fn expression(depth: u32) -> impl Strategy<Value = String> {
        let term = Just("a == 1".to_owned());
        term.prop_recursive(depth, 10, 4, |inner| {
            prop_oneof![
                inner.clone().prop_map(|inner| format!("!{inner}")),
                inner.clone().prop_map(|inner| format!("({inner})")),
                inner.clone().prop_map(|inner| format!("!({inner})")),
                prop::collection::vec((inner, any::<bool>()), 1..4).prop_map(|parts| {
                    let mut text = String::new();
                    for (part, and) in parts {
                        if !text.is_empty() {
                            text += if and { " && " } else { " || " };
                        }
                        text += &part;
                    }
                    text
                }),
            ]
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 3000, rng_seed: proptest::test_runner::RngSeed::Fixed(3), ..ProptestConfig::default() })]

        #[test]
        fn the_program_computes_the_value_of_the_tree(text in expression(5), seed: u64) {
            let counts = balance::check(text.as_bytes()).expect("balanced");
            let lexed = lex(text.as_bytes(), counts, &Dialect::newest(), false);
            let tree = tree(text.as_bytes(), &lexed.tokens).expect("a tree");
            let entries = make(&lexed.tokens);
            prop_assume!(entries.len() <= 60);
            for round in 0..200u32 {
                let terms = if entries.len() < 8 { u64::from(round) } else { seed.wrapping_mul(u64::from(2 * round + 1)) };
                prop_assert_eq!(run(&entries, terms), holds(&tree, terms, &mut 0), "{} {:#b}", text, terms);
            }
        }
    }
}
