//! The language without an event: tokens, trees, printing, requests.

use proptest::prelude::*;

use super::ast::Expr;
use super::*;

fn parsed(text: &str) -> Expr {
    parse(text.as_bytes(), &Dialect::newest()).unwrap_or_else(|error| panic!("{error}"))
}

/// The tree with its shape made visible.
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
    let seen: Vec<_> = lexed
        .tokens
        .iter()
        .map(|token| format!("{}:{}", token.kind.name(), String::from_utf8_lossy(token.span.of(text))))
        .collect();
    let expected = [
        "not:!",
        "open:(",
        "field:pid",
        "operator:!=",
        "number:-1",
        "close:)",
        "and:&&",
        "field:f",
        "user text:.ustring",
        "operator:~",
        "text:'a*'",
        "or:||",
        "field:x",
        "function:.function",
        "operator:==",
        "symbol:y",
    ];
    assert_eq!(seen, expected);
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

/// Texts that are filters, or nearly: pieces of the language in any order, glued with and without spaces.
fn nearly() -> impl Strategy<Value = String> {
    let piece = prop::sample::select(vec![
        "a",
        "b_1",
        "==",
        "!=",
        "~",
        "<=",
        "&",
        "&&",
        "||",
        "!",
        "(",
        ")",
        "'x*'",
        "\"y\"",
        "1",
        "-0x2",
        "'",
        "\"",
        "CPUS{0-1}",
        "CPUS{",
        ".ustring",
        ".function",
        " ",
        "\n",
        "main",
        "\u{e9}",
        "{",
        "}",
        "|",
        " a == 1 ",
        " b_1 ~ \"z*\" ",
        " c.function == main ",
        " && ",
        " || ",
        " !",
        " (",
        " )",
    ]);
    prop::collection::vec(piece, 0..24).prop_map(|pieces| pieces.concat())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4000, rng_seed: proptest::test_runner::RngSeed::Fixed(2), ..ProptestConfig::default() })]

    #[test]
    fn what_parses_prints_and_parses_the_same(text in nearly()) {
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
