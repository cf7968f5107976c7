//! Tests of the flat form against the evaluator.

use proptest::prelude::*;

use super::*;
use crate::event::Format;
use crate::render::fmt;

const FIELDS: &str = "\tfield:u8 a;\toffset:8;\tsize:1;\tsigned:0;\n\
    \tfield:s8 b;\toffset:9;\tsize:1;\tsigned:1;\n\
    \tfield:u16 c;\toffset:10;\tsize:2;\tsigned:0;\n\
    \tfield:int d;\toffset:12;\tsize:4;\tsigned:1;\n\
    \tfield:unsigned long e;\toffset:16;\tsize:8;\tsigned:0;\n\
    \tfield:s64 f;\toffset:24;\tsize:8;\tsigned:1;\n\
    \tfield:unsigned long g[2];\toffset:32;\tsize:16;\tsigned:0;\n\
    \tfield:char h[8];\toffset:48;\tsize:8;\tsigned:0;\n\
    \tfield:__data_loc char[] i;\toffset:56;\tsize:4;\tsigned:0;\n\
    \tfield:__rel_loc char[] j;\toffset:60;\tsize:4;\tsigned:0;\n";

const NUMBERS: [&str; 33] = [
    "REC->a",
    "REC->b",
    "REC->c",
    "REC->d",
    "REC->e",
    "REC->f",
    "REC->g[0]",
    "REC->g[1]",
    "(unsigned long)REC->b",
    "(int)REC->f",
    "(u8)REC->d",
    "REC->d + 1",
    "(REC->a ? REC->d : REC->e)",
    "REC->h[3]",
    "7",
    "-1",
    "REC->c & 7",
    "7 & REC->b",
    "REC->d | 0x80000000",
    "(unsigned int)((REC->e) >> 20)",
    "(unsigned int)((REC->e) & ((1U << 20) - 1))",
    "REC->b << 3",
    "REC->f / 3",
    "REC->c % 10",
    "3 - REC->d",
    "REC->d == -1",
    "REC->e > 5",
    "!REC->a",
    "-REC->d",
    "REC->a && REC->b",
    "REC->a ? 1 : REC->d",
    "REC->a & 1 ? REC->b < 0 ? 10 : REC->c : 3 - REC->d",
    "__get_dynamic_array_len(i)",
];
const TEXTS: [&str; 14] = [
    "REC->h",
    "__get_str(i)",
    "__get_rel_str(j)",
    "REC->a ? \"x\" : \"y\"",
    "__print_flags(REC->c, \"|\", { 1, \"A\" }, { 2, \"B\" })",
    "__print_flags(REC->f & 0xff, \"\", { 0, \"none\" }, { 6, \"a name of more than a block\" }, { 4, \"\" })",
    "__print_flags(REC->a && REC->b, \", \", { 1, \"both\" })",
    "__print_symbolic(REC->a, { 0, \"zero\" }, { 255, \"a name of more than a block\" }, { 7, \"\" })",
    "__print_symbolic(REC->b, { 0, \"\" }, { -1, \"minus\" })",
    "__print_symbolic(REC->d >> 24, { -1, \"minus\" }, { 0, \"zero\" }, { 0, \"again\" })",
    "(REC->f & 255) ? __print_flags(REC->f & 255, \"|\", { 1, \"S\" }, { 2, \"D\" }) : \"R\"",
    "REC->a & 1 ? __get_str(i) : REC->b < 0 ? REC->h : \"a constant that is longer than a block is\"",
    "REC->a & 1 ? __print_hex(REC->h, 4) : \"\"",
    "REC->a == 0 || REC->b == 0 ? \"some\" : \"none\"",
];

/// Conversions and their arguments, as a print fmt.
fn print_fmt() -> impl Strategy<Value = String> {
    let size = prop::sample::select(vec!["", "h", "hh", "l", "ll"]);
    let letter = prop::sample::select(vec![
        "d", "u", "x", "X", "o", "5d", "03d", "08x", "-4u", "-04d", "#x", "#06x", "#6x", "-#9x", "016d",
        "24d", "1d", ".3u", "+d", "c", "3c",
    ]);
    let number =
        (letter, size, prop::sample::select(NUMBERS.to_vec())).prop_map(|(letter, size, argument)| {
            let (flags, kind) = letter.split_at(letter.len() - 1);
            (format!("%{flags}{size}{kind}"), argument)
        });
    let conversion = prop::sample::select(vec!["%s", "%8s", "%-3s", "%.2s", "%1s", "%.0s"]);
    let text = (conversion, prop::sample::select(TEXTS.to_vec()))
        .prop_map(|(conversion, argument)| (conversion.to_owned(), argument));
    let before = "[ -$&-~]{0,40}".prop_map(|text| text.replace(['"', '\\', '%'], "."));
    let piece = (before, prop_oneof![number, text]);
    prop::collection::vec(piece, 0..8).prop_map(|pieces| {
        let texts = pieces.iter().map(|(before, (conversion, _))| format!("{before}{conversion}"));
        let arguments = pieces.iter().map(|(_, (_, argument))| format!(", {argument}"));
        format!("\"{}\"{}", texts.collect::<String>(), arguments.collect::<String>())
    })
}

/// Records in which the two locations lie mostly within the record.
fn record() -> impl Strategy<Value = Vec<u8>> {
    let location = prop_oneof![0..100_u32, any::<u32>()];
    let head = prop::collection::vec(prop_oneof![Just(0), Just(0xff), any::<u8>()], 56);
    let tail = prop::collection::vec(prop_oneof![Just(0), any::<u8>()], 0..40);
    let whole = (head, location.clone(), location, tail).prop_map(|(head, i, j, tail)| {
        [head, i.to_ne_bytes().to_vec(), j.to_ne_bytes().to_vec(), tail].concat()
    });
    (whole, prop_oneof![3 => Just(usize::MAX), 1 => 0..100_usize]).prop_map(|(mut record, length)| {
        record.truncate(length);
        record
    })
}

fn program(print_fmt: &str) -> Program {
    let text = format!("name: ev\nID: 1\nformat:\n{FIELDS}\nprint fmt: {print_fmt}\n");
    let format = Format::parse("test", &text).unwrap();
    fmt::lower(&fmt::parse(&format.print_fmt).unwrap(), &format, &()).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn operations_print_as_the_evaluator(print_fmt in print_fmt(), record in record()) {
        let program = program(&print_fmt);
        let mut expected = b"ev: ".to_vec();
        let is_complete = Eval::run(&program, &record, &(), &mut expected);
        let mut written = TextBuffer::default();
        let flat = Flat::of(b"ev: ", &program);
        prop_assert_eq!(flat.run(&program, &record, &(), &mut written), is_complete);
        if is_complete {
            prop_assert_eq!(String::from_utf8_lossy(written.text()), String::from_utf8_lossy(&expected));
        }
    }
}

/// The numbers of pieces of a print fmt that the evaluator prints.
fn evaluated(print_fmt: &str) -> usize {
    let Flat(ops) = Flat::of(b"ev: ", &program(print_fmt));
    ops.iter().filter(|op| matches!(op.value, Value::Piece(_))).count()
}

#[test]
fn pieces_of_everyday_events_are_operations() {
    for (print_fmt, count) in [
        (
            r#""h=%s d=%d e=%lx g=(%lx, %lx) i=%s", REC->h, REC->d, REC->e, REC->g[0], REC->g[1], __get_str(i)"#,
            0,
        ),
        (
            r#""%s%s", (REC->f & 255) ? __print_flags(REC->f & 255, "|", { 1, "S" }) : "R", REC->f & 256 ? "+" : """#,
            0,
        ),
        (r#""%d,%d", ((unsigned int)((REC->e) >> 20)), ((unsigned int)((REC->e) & ((1U << 20) - 1)))"#, 0),
        (r#""%s %03d %#06x %c", __print_symbolic(REC->a, { 1, "one" }), REC->d, REC->c, REC->a"#, 0),
        (r#""%s %p %d", REC->a ? "yes" : __print_hex(REC->h, 4), REC->e, REC->a + REC->b"#, 3),
    ] {
        assert_eq!(evaluated(print_fmt), count, "{print_fmt}");
    }
}
