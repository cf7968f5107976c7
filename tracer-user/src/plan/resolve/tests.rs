//! The resolver's stages in small examples; `tests/tests/language/filter.rs` compares it with the running kernel.

use rustix::io::Errno;

use super::*;
use crate::lang::filter::ErrorKind;
use crate::plan::filter::{NumberOp, Place, Test};

const OPENAT: &str = "name: sys_enter_openat\nID: 782\nformat:\n\
    \tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;\n\
    \tfield:unsigned char common_flags;\toffset:2;\tsize:1;\tsigned:0;\n\
    \tfield:unsigned char common_preempt_count;\toffset:3;\tsize:1;\tsigned:0;\n\
    \tfield:int common_pid;\toffset:4;\tsize:4;\tsigned:1;\n\n\
    \tfield:int __syscall_nr;\toffset:8;\tsize:4;\tsigned:1;\n\
    \tfield:const char * filename;\toffset:16;\tsize:8;\tsigned:0;\n\
    \tfield:__data_loc char[] name;\toffset:24;\tsize:4;\tsigned:0;\n\
    \tfield:char comm[16];\toffset:28;\tsize:16;\tsigned:0;\n\
    \tfield:u8 mode;\toffset:44;\tsize:1;\tsigned:0;\n\
    \tfield:short level;\toffset:46;\tsize:2;\tsigned:1;\n\
    \tfield:u64 addr;\toffset:48;\tsize:8;\tsigned:0;\n\
    \tfield:u8 uuid[16];\toffset:56;\tsize:16;\tsigned:0;\n\
    \tfield:__data_loc cpumask_t cpumask;\toffset:72;\tsize:4;\tsigned:0;\n\
    \tfield:__rel_loc char[] rel;\toffset:76;\tsize:4;\tsigned:0;\n\n\
    print fmt: \"\"\n";

fn format() -> Format {
    Format::parse("syscalls", OPENAT).unwrap()
}

fn env() -> Fixed {
    let symbols = [(0x1000, "start"), (0x1100, "middle"), (0x1180, "end")];
    Fixed {
        dialect: Dialect::newest().without(Feature::LooseEnd).without(Feature::LooseCounts),
        cpu_ids: 4,
        symbols: symbols.map(|(address, name)| (address, name.to_owned())).to_vec(),
    }
}

/// The plan, or what the filter file would show.
fn shown(text: &str) -> String {
    shown_by(text, &env())
}

fn shown_by(text: &str, env: &Fixed) -> String {
    match filter(text.as_bytes(), &format(), env) {
        Ok(filter) => filter.to_string(),
        Err(error) => format!(
            "{}\n{}",
            match error.errno() {
                Errno::INVAL => "INVAL",
                Errno::PERM => "PERM",
                Errno::NOENT => "NOENT",
                Errno::SRCH => "SRCH",
                other => panic!("{other}"),
            },
            String::from_utf8_lossy(&error.filter_file()).trim_end_matches('\n')
        ),
    }
}

#[test]
fn plans() {
    for (text, plan) in [
        ("__syscall_nr == 1", "s32@8:4 == 1"),
        ("__syscall_nr<-0x10", "s32@8:4 < -16"),
        ("mode != 0x1ff", "u8@44:1 != 0xff"),
        ("level >= 0xffff", "s16@46:2 >= -1"),
        ("mode & 012", "u8@44:1 & 0xa"),
        ("common_pid == 5", "s32@4:4 == 5"),
        ("CPU > 2", "cpu > 2"),
        ("CPU & 2", "false"),
        ("CPU == 4294967297", "cpu == 1"),
        ("comm == 'a'", "char@28:16 == full \"a\""),
        ("COMM ~ \"a*\"", "comm == front \"a\""),
        ("name ~ \"!*a\"", "data_loc@24 != end \"a\""),
        ("rel != \"x\"", "rel_loc@76 != full \"x\""),
        ("filename ~ '*x*'", "kernel*@16:8 == middle \"x\""),
        ("filename.ustring == 'x'", "user*@16:8 == full \"x\""),
        ("mode.ustring == 1", "u8@44:1 == 0x1"),
        ("addr.function == middle", "function@48:8 == 0x1100..0x1180"),
        ("addr.function != 0x1004", "function@48:8 != 0x1000..0x1100"),
        ("filename.ustring.function == start", "function@16:8 == 0x1000..0x1100"),
        ("uuid == 1", "false"),
        ("!(uuid != 1)", "true"),
        ("stacktrace == 1", "false"),
        ("cpumask == 1", "u32@72:4 == 0x1"),
        ("cpumask & CPUS{1}", "mask@72 & CPUs [1]"),
        ("cpumask != CPUS{0-3:1/2}", "mask@72 != CPUs [0, 2]"),
        ("CPU & CPUS{1}", "cpu == 1"),
        ("CPU != CPUS{1}", "cpu != 1"),
        ("CPU & CPUS{1-2}", "cpu & CPUs [1, 2]"),
        ("CPU == CPUS{1-2}", "false"),
        ("CPU != CPUS{1-2}", "true"),
        ("CPU & CPUS{,}", "false"),
        ("level & CPUS{1}", "u16@46:2 == 0x1"),
        ("addr & CPUS{1-2}", "u32@48:4 & CPUs [1, 2]"),
        ("level != CPUS{1-2}", "u16@46:2 < 0x4"),
        ("uuid & CPUS{1-2}", "false"),
        ("mode==1&&level==2||!addr==3", "(u8@44:1 == 0x1 && s16@46:2 == 2) || !(u64@48:8 == 0x3)"),
        ("!!(mode==1)", "u8@44:1 == 0x1"),
        ("(mode==1 || uuid==1) && CPU==1", "u8@44:1 == 0x1 && cpu == 1"),
        ("mode==1 && (level==1 && (addr==1))", "u8@44:1 == 0x1 && s16@46:2 == 1 && u64@48:8 == 0x1"),
    ] {
        assert_eq!(shown(text), plan, "{text}");
    }
}

#[test]
fn refusals() {
    for (text, errno, caret, message) in [
        ("foo == 1", "INVAL", 4, "Field not found"),
        ("mode", "INVAL", 4, "Invalid operator"),
        ("comm == 1", "INVAL", 9, "Expecting string field"),
        ("mode == 'a'", "INVAL", 9, "Expecting numeric field"),
        ("comm < 'a'", "INVAL", 8, "Illegal operation for field type"),
        ("mode ~ 1", "INVAL", 8, "Illegal operation for field type"),
        ("comm == \"a", "SRCH", 8, "Missing matching quote"),
        ("!", "INVAL", 1, "No filter found"),
        ("mode == 1 &", "PERM", 10, "Too many terms in predicate expression"),
        ("mode == 1 &&", "INVAL", 12, "Meaningless filter expression"),
        ("mode == 1)", "PERM", 9, "Too few '('"),
        ("(mode == 1", "NOENT", 0, "Too many '('"),
        ("mode == 08", "INVAL", 9, "Illegal integer value"),
        ("mode == -1", "INVAL", 9, "Illegal integer value"),
        ("mode == x", "INVAL", 9, "Invalid value (did you forget quotes)?"),
        ("mode == CPUS", "INVAL", 12, "Missing '{'"),
        ("mode == CPUS{", "INVAL", 13, "Missing '}'"),
        ("mode == CPUS{}", "INVAL", 14, "Invalid cpulist"),
        ("mode == CPUS{4}", "INVAL", 15, "Invalid cpulist"),
        ("comm == CPUS", "INVAL", 9, "Illegal operation for field type"),
        ("comm.function == start", "INVAL", 18, "Illegal operation for field type"),
        ("addr.function == (start)", "INVAL", 24, "Function not found"),
        ("addr.function > start", "INVAL", 17, "Invalid operator"),
        // The last symbol has no end, and there is no symbol below the first.
        ("addr.function == end", "INVAL", 20, "Function not found"),
        ("addr.function == 5", "INVAL", 18, "Function not found"),
        // The first fault in the text is reported first, whichever stage finds it.
        ("foo == 1 && mode ==", "INVAL", 4, "Field not found"),
        ("mode == && foo == 1", "INVAL", 9, "Invalid value (did you forget quotes)?"),
    ] {
        let expected = format!("{errno}\n{text}\n{:caret$}^\nparse_error: {message}", "");
        assert_eq!(shown(text), expected, "{text}");
    }
    for (text, expected) in
        [("()", "INVAL\n()\nError: (0)"), ("", "INVAL\n\nError: (0)"), ("!= 1", "PERM\n!= 1\nError: (0)")]
    {
        assert_eq!(shown(text), expected, "{text}");
    }
}

#[test]
fn an_older_kernel_refuses_unknown_features() {
    let old = Fixed { dialect: Dialect::oldest(), ..env() };
    for (text, expected) in [
        ("addr.function == start", "Invalid operator"),
        ("filename.ustring == 'x'", "Invalid operator"),
        ("CPU == CPUS{0}", "Invalid value (did you forget quotes)?"),
        ("stacktrace == 0", "Field not found"),
    ] {
        let error = filter(text.as_bytes(), &format(), &old).unwrap_err();
        assert_eq!(error.kind().wording(), Some(expected), "{text}");
    }
    let new = Fixed { dialect: Dialect::newest(), ..env() };
    for feature in Feature::ALL {
        let probe = feature.probe();
        // The probe for loose counts requires that `CPUS{}` is known.
        let old = Fixed { dialect: Dialect::newest().without(feature), ..env() };
        let wording = |env: &Fixed| {
            let outcome = filter(probe.filter.as_bytes(), &format(), env);
            outcome.err().and_then(|error| error.kind().wording())
        };
        assert_eq!(wording(&old), Some(probe.refusal), "{feature:?}");
        assert_ne!(wording(&new), Some(probe.refusal), "{feature:?}");
    }
}

#[test]
fn loose_ends_are_accepted_as_in_the_kernel() {
    let loose = Fixed { dialect: Dialect::newest().without(Feature::LooseCounts), ..env() };
    for (text, expected) in [
        ("mode == 1 &&", "u8@44:1 == 0x1"),
        ("mode == 1 || level == 2 ||", "u8@44:1 == 0x1 || s16@46:2 == 2"),
        ("mode == 1 && level == 2 || ", "u8@44:1 == 0x1 && s16@46:2 == 2"),
        ("(mode == 1 || level == 2) &&", "u8@44:1 == 0x1 || s16@46:2 == 2"),
        ("mode == 1 && !", "u8@44:1 == 0x1"),
        ("mode == 1 || level == 2 &&", "INVAL\nmode == 1 || level == 2 &&\nError: (0)"),
        ("mode == 1 || !level == 2 && !", "INVAL\nmode == 1 || !level == 2 && !\nError: (0)"),
        ("!!", "INVAL\n!!\n  ^\nparse_error: No filter found"),
    ] {
        assert_eq!(shown_by(text, &loose), expected, "{text}");
    }
    // Quotes that the first sweep pairs across two lists hide everything in between from it.
    let hidden = "CPU == CPUS{0\n'} && mode == 1 && level == 2 && CPU == CPUS{0\n'}";
    let fails = |dialect| {
        let env = Fixed { dialect, ..env() };
        filter(hidden.as_bytes(), &format(), &env).err().map(|error| error.kind())
    };
    assert_eq!(fails(env().dialect), Some(ErrorKind::Miscounted));
    assert_eq!(fails(Dialect::newest()), Some(ErrorKind::Miscounted));
    let hidden = hidden.replace(" && mode == 1", "");
    assert!(filter(hidden.as_bytes(), &format(), &Fixed { dialect: Dialect::newest(), ..env() }).is_ok());
}

#[test]
fn the_kernels_parser_is_consulted_only_for_a_loose_end() {
    struct CountingEnv(std::cell::Cell<usize>, Answer);
    impl ResolveEnv for CountingEnv {
        fn dialect(&self) -> Dialect {
            Dialect::newest()
        }

        fn loose_end(&self) -> Answer {
            self.0.update(|times| times + 1);
            self.1.clone()
        }

        fn cpu_ids(&self) -> u32 {
            4
        }

        fn symbol_address(&self, _: &str) -> Option<u64> {
            None
        }

        fn symbol_extent(&self, _: u64) -> Option<(u64, u64)> {
            None
        }
    }
    let outcome = |answer: &Answer, text: &str| {
        let env = CountingEnv(std::cell::Cell::new(0), answer.clone());
        let kind = filter(text.as_bytes(), &format(), &env).err().map(|error| error.kind());
        (kind, env.0.get())
    };
    let answers = [Answer::Yes, Answer::no("refused"), Answer::unknown("not allowed to ask")];
    for answer in &answers {
        assert_eq!(outcome(answer, "mode == 1 && level == 2"), (None, 0));
        assert_eq!(outcome(answer, "mode == 1 level"), (Some(ErrorKind::TooManyTerms), 0));
        assert_eq!(outcome(answer, "!!"), (Some(ErrorKind::NoFilter), 0));
        // A wrong field precedes the end, and is refused regardless of the answer.
        assert_eq!(outcome(answer, "moder == 1 &&").0, Some(ErrorKind::FieldNotFound));
        let kind = matches!(answer, Answer::No(_)).then_some(ErrorKind::InvalidFilter);
        assert_eq!(outcome(answer, "mode == 1 &&"), (kind, 1), "{answer}");
    }
}

#[test]
fn the_command_line_names_the_nearest_field() {
    let error = filter(b"mode == 1 && filenam == 'x'", &format(), &env()).unwrap_err();
    assert_eq!(
        error.to_string(),
        "Field not found\n  mode == 1 && filenam == 'x'\n               ^^^^^^^\n  did you mean `filename`?"
    );
    assert_eq!(filter(b"xyz == 1", &format(), &env()).unwrap_err().suggestion(), None);
}

#[test]
fn event_fields_hide_common_and_generic_ones() {
    let text = OPENAT.replace("u8 mode", "u8 common_pid").replace("short level", "short CPU");
    let format = Format::parse("syscalls", &text).unwrap();
    let place = |text: &str| match filter(text.as_bytes(), &format, &env()) {
        Ok(Filter::Test(Test::Number { place, op: NumberOp::Eq, .. })) => place,
        other => panic!("{other:?}"),
    };
    assert_eq!(place("common_pid == 1"), Place { offset: 44, size: 1 });
    assert_eq!(place("CPU == 1"), Place { offset: 46, size: 2 });
}

#[test]
fn deep_nesting_is_resolved() {
    let deep = format!("{}mode == 1{}", "(".repeat(2000), ")".repeat(2000));
    assert_eq!(shown(&deep), "u8@44:1 == 0x1");
    let nots = format!("{}mode == 1", "!".repeat(4001));
    assert_eq!(shown(&nots), "!(u8@44:1 == 0x1)");
    let both = format!("{}mode == 1{}", "!(".repeat(1300), ")".repeat(1300));
    assert_eq!(shown(&both), "u8@44:1 == 0x1");
    let nested = format!("{}CPU==1{}", "(CPU<1||(CPU<2&&".repeat(200), "))".repeat(200));
    assert!(shown(&nested).starts_with("cpu < 1 || (cpu < 2 && ("));
}

#[test]
fn the_event_of_the_function_tracer() {
    let text = "name: function\nID: 1\nformat:\n\
        \tfield:int common_pid;\toffset:4;\tsize:4;\tsigned:1;\n\n\
        \tfield:unsigned long ip;\toffset:8;\tsize:8;\tsigned:0;\n\n\
        print fmt: \"\"\n";
    let format = Format::parse("ftrace", text).unwrap();
    let outcome = |text: &str| match filter(text.as_bytes(), &format, &env()) {
        Ok(filter) => filter.to_string(),
        Err(error) => error.kind().wording().unwrap_or_default().to_owned(),
    };
    assert_eq!(outcome("ip == sys_*,do_* || ip == x"), "false");
    let stages = stages(b"(ip == a b || ip==c ) && ip == d", &format, &env()).unwrap();
    assert_eq!(stages.tree.to_string(), "(ip == a b || ip == c ) && ip == d");
    assert_eq!(outcome("ip == \"x\""), "Too many terms in predicate expression");
    assert_eq!(outcome("common_pid == 1"), "Only 'ip' field is supported for function trace");
    assert_eq!(outcome(&format!("ip == {}", "x".repeat(256))), "Operand too long");
}
