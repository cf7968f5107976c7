//! Records from user space pass an event's filter and record path: the injection program on the running kernel.

use std::collections::BTreeSet;
use std::io::Write as _;

use tracer_abi::Counters;
use tracer_tests::host;
use tracer_tests::oracle::Oracle;
use tracer_user::{
    attach::{
        AttachPoint, Attached, Context, Dispatch, HitActions, Options, Request, Session, Threads, Writer,
    },
    event::Format,
    lang::filter::Dialect,
    plan::{filter::Filter, resolve, source::ProgramContext},
    ring::Drain,
    sys::bpf::cpu_ring::CpuRing,
};

/// A format file with the common fields inserted.
macro_rules! format_file {
    ($head:literal, $rest:literal) => {
        concat!(
            $head,
            "\nformat:\n\
            \tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;\n\
            \tfield:unsigned char common_flags;\toffset:2;\tsize:1;\tsigned:0;\n\
            \tfield:unsigned char common_preempt_count;\toffset:3;\tsize:1;\tsigned:0;\n\
            \tfield:int common_pid;\toffset:4;\tsize:4;\tsigned:1;\n\n",
            $rest
        )
    };
}

/// An event that no kernel has: a number, an array, a dynamic string.
const FORMAT: &str = format_file!(
    "name: greeting\nID: 60000",
    "\
    \tfield:int count;\toffset:8;\tsize:4;\tsigned:1;\n\
    \tfield:char who[8];\toffset:12;\tsize:8;\tsigned:0;\n\
    \tfield:__data_loc char[] text;\toffset:20;\tsize:4;\tsigned:0;\n\n\
    print fmt: \"%d\", REC->count\n"
);

/// End of the record's fixed part, and start of its text.
const TEXT_AT: u32 = 24;

/// A record of the event, as if written by thread 4242.
fn record(count: i32, who: &[u8], text: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; TEXT_AT as usize];
    bytes[2] = 0x04;
    bytes[3] = 0x21;
    bytes[4..8].copy_from_slice(&4242_i32.to_ne_bytes());
    bytes[8..12].copy_from_slice(&count.to_ne_bytes());
    bytes[12..12 + who.len()].copy_from_slice(who);
    bytes[20..24].copy_from_slice(&((text.len() as u32) << 16 | TEXT_AT).to_ne_bytes());
    bytes.extend_from_slice(text);
    bytes
}

/// The event of `trace_marker`: an address, and a text up to the end of the record.
const PRINT: &str = format_file!(
    "name: print\nID: 5",
    "\
    \tfield:unsigned long ip;\toffset:8;\tsize:8;\tsigned:0;\n\
    \tfield:char buf[];\toffset:16;\tsize:0;\tsigned:0;\n\n\
    print fmt: \"%ps: %s\", (void *)REC->ip, REC->buf\n"
);

/// A record of [`PRINT`].
fn print(text: &[u8]) -> Vec<u8> {
    let mut bytes = vec![5, 0, 0, 0, 1, 0, 0, 0];
    bytes.extend(0xffff_ffff_8100_0000_u64.to_ne_bytes());
    bytes.extend(text);
    bytes
}

/// A session for one event; prints a note and returns `None` when this process is not root.
fn session() -> Option<(Session, Vec<CpuRing>)> {
    let options = Options {
        ring_bytes: 1 << 16,
        watermark: 1 << 15,
        cpus: std::thread::available_parallelism().unwrap().get() as u32,
        slots: 1,
        pid_gate: false,
        pid_lists: false,
        own_tgid: 0,
        trace_own: true,
    };
    match Session::new(&options, Context::default()) {
        Ok(session) => Some(session),
        Err(error) if !host::is_root() => {
            host::skip("cap_bpf", error);
            None
        }
        Err(error) => panic!("{error}"),
    }
}

fn attach(session: &mut Session, format: &Format, filter: Option<&Filter>) -> Attached {
    session
        .attach(
            &Request {
                format,
                context: &ProgramContext::Inject,
                point: &AttachPoint::Inject,
                filter,
                irqs_off: false,
                kind: format.id,
                threads: Threads::Every,
                other: None,
                hit_actions: HitActions::default(),
            },
            Dispatch::Direct,
        )
        .unwrap_or_else(|error| panic!("{error}\n{}", error.verifier_log().unwrap_or_default()))
}

/// A writer other than this thread.
fn writer() -> Writer {
    let mut comm = [0; 16];
    comm[..6].copy_from_slice(b"writer");
    Writer { cpu: 77, comm }
}

/// The records from the rings, and the counts.
fn pass(format: &str, filter: Option<&str>, records: &[Vec<u8>]) -> Option<(Vec<Vec<u8>>, Counters)> {
    let format = Format::parse("tests", format).unwrap();
    let env = resolve::Fixed { dialect: Dialect::newest(), cpu_ids: 2, symbols: Vec::new() };
    let filter = filter.map(|text| resolve::filter(text.as_bytes(), &format, &env).unwrap());
    let (mut session, rings) = session()?;
    let attachment = attach(&mut session, &format, filter.as_ref());
    session.switches().set_tracing(true);
    for record in records {
        attachment.run(record, &writer()).unwrap();
    }
    let mut seen = Vec::new();
    Drain::new(rings).finish(|record| seen.push(record.payload.to_vec()));
    Some((seen, session.counters().total(attachment.slot().unwrap())))
}

/// The expected record, with the event's id.
fn expected(record: &[u8]) -> Vec<u8> {
    let mut record = record.to_vec();
    record[..2].copy_from_slice(&60_000_u16.to_ne_bytes());
    record
}

#[test]
fn injected_records_are_read_unchanged() {
    let records =
        [record(1, b"me", b"hello\0"), record(-7, b"everyone", b"\0"), record(3, b"", &[b'x'; 3000])];
    let Some((seen, counts)) = pass(FORMAT, None, &records) else { return };
    assert_eq!(counts, Counters { passed: 3, filtered: 0, recorded: 3, dropped: 0 });
    assert_eq!(seen.len(), records.len());
    for (out, record) in seen.iter().zip(&records) {
        // The record may have padding.
        assert_eq!(out[..record.len()], expected(record)[..]);
        assert!(out.len() - record.len() < 8);
    }
}

#[test]
fn the_filter_sees_the_record() {
    let records =
        [record(1, b"me", b"hello\0"), record(-7, b"you", b"help\0"), record(3, b"you", b"shell\0")];
    for (filter, matching) in [
        ("count < 0", vec![1]),
        ("who == \"you\"", vec![1, 2]),
        ("text ~ \"*hel*\" && count > 0", vec![0, 2]),
        ("text ~ \"he*\" || count == 3", vec![0, 1, 2]),
        ("common_pid == 4242 && common_preempt_count == 0x21", vec![0, 1, 2]),
        ("common_flags & 4", vec![0, 1, 2]),
        ("!(text == \"help\")", vec![0, 2]),
        // The filter uses the record's writer, not the task that runs the program.
        ("comm == \"writer\" && CPU == 77", vec![0, 1, 2]),
        ("comm != \"writer\" || CPU != 77 || comm ~ \"*z*\"", vec![]),
    ] {
        let Some((seen, counts)) = pass(FORMAT, Some(filter), &records) else { return };
        let wanted: Vec<_> = matching.iter().map(|at: &usize| expected(&records[*at])).collect();
        assert_eq!(seen.len(), wanted.len(), "{filter}");
        let seen: Vec<_> = seen
            .iter()
            .zip(&wanted)
            .map(|(out, wanted)| out[..wanted.len().min(out.len())].to_vec())
            .collect();
        assert_eq!(seen, wanted, "{filter}");
        assert_eq!(
            counts,
            Counters {
                passed: matching.len() as u64,
                filtered: 3 - matching.len() as u64,
                recorded: matching.len() as u64,
                dropped: 0
            },
            "{filter}"
        );
    }
}

#[test]
fn an_array_without_a_length_is_as_long_as_its_writer_wrote_it() {
    // Lengths around words, and the longest possible record.
    let lengths = [0, 1, 3, 4, 5, 8, 100, 1021, 1022, 1023, 1024, 4096, 8175, 8176];
    let records: Vec<_> = lengths.iter().map(|length| print(&vec![b'x'; *length])).collect();
    let Some((seen, counts)) = pass(PRINT, None, &records) else { return };
    assert_eq!(counts, Counters { passed: 14, filtered: 0, recorded: 14, dropped: 0 });
    assert_eq!(seen.len(), records.len());
    for (out, record) in seen.iter().zip(&records) {
        assert_eq!(out[..record.len()], record[..]);
        // The kernel's ring buffer also rounds up to four bytes; here the padding is zero.
        assert_eq!(out.len(), record.len().next_multiple_of(4));
        assert!(out[record.len()..].iter().all(|byte| *byte == 0));
    }
}

#[test]
fn long_records_are_whole_at_the_end_of_a_ring() {
    let format = Format::parse("tests", PRINT).unwrap();
    let Some((mut session, rings)) = session() else { return };
    let attachment = attach(&mut session, &format, None);
    session.switches().set_tracing(true);
    let mut drain = Drain::new(rings);
    // Lengths without a common factor with the ring's: the records end at many places, also after its end.
    for number in 0..200_u32 {
        let record = print(&vec![b'a' + (number % 26) as u8; 4000 + (number as usize * 37) % 4176]);
        attachment.run(&record, &writer()).unwrap();
        let mut seen = Vec::new();
        drain.finish(|record| seen.push(record.payload.to_vec()));
        assert_eq!(seen.len(), 1, "{number}");
        assert_eq!(seen[0][..record.len()], record[..], "{number}");
    }
    assert_eq!(drain.malformed(), 0);
    let counts = session.counters().total(attachment.slot().unwrap());
    assert_eq!(counts, Counters { passed: 200, filtered: 0, recorded: 200, dropped: 0 });
}

#[test]
fn a_record_that_is_too_long_is_refused() {
    let format = Format::parse("tests", PRINT).unwrap();
    let Some((mut session, _rings)) = session() else { return };
    let attachment = attach(&mut session, &format, None);
    session.switches().set_tracing(true);
    let error = attachment.run(&print(&[b'x'; 8177]), &writer()).unwrap_err();
    assert!(error.to_string().contains("os error 7"), "{error}");
    assert_eq!(session.counters().total(attachment.slot().unwrap()).hits(), 0);
}

/// Filters of [`PRINT`], and the indexes of the [`texts`] that each accepts.
const PRINT_FILTERS: [(&str, &[usize]); 13] = [
    ("buf == 'hello'", &[0, 3]),
    ("buf != 'hello'", &[1, 2, 4, 5]),
    ("buf ~ 'hell*'", &[0, 1, 2, 3]),
    ("buf ~ '*needle*'", &[4]),
    ("buf ~ '*tail*'", &[]),
    // Without a length the kernel does not find the end of the text.
    ("buf ~ '*hello'", &[]),
    ("buf ~ '*'", &[]),
    ("!(buf ~ '*')", &[0, 1, 2, 3, 4, 5]),
    ("buf == '\n'", &[5]),
    ("buf ~ 'hell*' && ip != 0", &[0, 1, 2, 3]),
    // A glob sees such a text as empty.
    ("buf ~ 'h?l*o'", &[]),
    ("buf ~ '*h*e*'", &[]),
    ("buf ~ '*?'", &[]),
];

/// Texts for `trace_marker`. A trigger sees each with a NUL after it; the kernel adds the record's newline later
/// (`tracing_mark_write()`, `kernel/trace/trace.c`).
fn texts() -> [Vec<u8>; 6] {
    [
        b"hello".to_vec(),
        b"hello world".to_vec(),
        b"hell".to_vec(),
        b"hello\0tail".to_vec(),
        [&[b'a'; 2000][..], b"needle", &[b'b'; 1000]].concat(),
        b"\n".to_vec(),
    ]
}

#[test]
fn the_filter_reads_an_array_without_a_length_up_to_its_nul() {
    let records = texts().map(|text| print(&[&text[..], b"\0"].concat()));
    for (filter, matching) in PRINT_FILTERS {
        let Some((seen, counts)) = pass(PRINT, Some(filter), &records) else { return };
        let whole = |out: &Vec<u8>, at: usize| out.starts_with(&records[at]);
        assert_eq!(seen.len(), matching.len(), "{filter}");
        assert!(seen.iter().zip(matching).all(|(out, at)| whole(out, *at)), "{filter}");
        assert_eq!(counts.filtered, (records.len() - matching.len()) as u64, "{filter}");
    }
    // A text without a NUL ends with its record.
    let Some((seen, _)) = pass(PRINT, Some("buf == 'hell'"), &[print(b"hell"), print(b"hello")]) else {
        return;
    };
    assert_eq!(seen, [print(b"hell")]);
}

/// A trigger with such a filter shows the kernel's result.
#[test]
fn the_kernels_trigger_on_trace_marker_takes_the_same() {
    if !host::root_or_skip() {
        return;
    }
    let oracle = Oracle::create("marker").unwrap();
    // Kernels whose globs use no length (`glob_match()` instead of `glob_match_len()`) read up to the NUL.
    let mut globs_have_length = true;
    let marker = oracle.dir().join("trace_marker");
    let mut pieces = BTreeSet::new();
    for (filter, matching) in PRINT_FILTERS {
        oracle.set("events/ftrace/print/trigger", &format!("traceoff if {filter}")).unwrap();
        let mut taken = Vec::new();
        for (at, text) in texts().iter().enumerate() {
            oracle.tracing(true).unwrap();
            let mut marker = std::fs::OpenOptions::new().write(true).open(&marker).unwrap();
            // Kernels before 6.8 accept 1,024 bytes at a time, so a longer text becomes several different ones.
            if marker.write(text).unwrap() < text.len() {
                pieces.insert(at);
            } else if oracle.get("tracing_on").unwrap() == "0\n" {
                taken.push(at);
            }
        }
        oracle.set("events/ftrace/print/trigger", "!traceoff").unwrap();
        globs_have_length &= filter != "buf ~ 'h?l*o'" || taken != [0, 3];
        if globs_have_length {
            let matching: Vec<usize> = matching.iter().copied().filter(|at| !pieces.contains(at)).collect();
            assert_eq!(taken, matching, "{filter}");
        }
    }
    assert!(pieces.len() <= 1, "texts {pieces:?} are longer than the kernel takes");
}
