//! Records made in user space pass an event's filter and record path: the injection program on the running kernel.

use tracer_abi::Counters;
use tracer_user::{
    attach::{Context, Options, Request, Session, Threads, Via},
    event::Format,
    lang::filter::Dialect,
    plan::{resolve, source::Hook},
    ring::Drain,
};

/// An event that no kernel has: a number, an array, a string of varying length.
const FORMAT: &str = "name: greeting\nID: 60000\nformat:\n\
    \tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;\n\
    \tfield:unsigned char common_flags;\toffset:2;\tsize:1;\tsigned:0;\n\
    \tfield:unsigned char common_preempt_count;\toffset:3;\tsize:1;\tsigned:0;\n\
    \tfield:int common_pid;\toffset:4;\tsize:4;\tsigned:1;\n\n\
    \tfield:int count;\toffset:8;\tsize:4;\tsigned:1;\n\
    \tfield:char who[8];\toffset:12;\tsize:8;\tsigned:0;\n\
    \tfield:__data_loc char[] text;\toffset:20;\tsize:4;\tsigned:0;\n\n\
    print fmt: \"%d\", REC->count\n";

/// Where the record's fixed part ends and its text begins.
const TEXT_AT: u32 = 24;

/// A record of the event, as a writer in thread 4242 would have made it.
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

/// What came out of the rings, and the counts.
fn pass(filter: Option<&str>, records: &[Vec<u8>]) -> Option<(Vec<Vec<u8>>, Counters)> {
    let format = Format::parse("tests", FORMAT).unwrap();
    let env = resolve::Fixed { dialect: Dialect::newest(), cpu_ids: 2, symbols: Vec::new() };
    let filter = filter.map(|text| resolve::filter(text.as_bytes(), &format, &env).unwrap());
    let options = Options {
        ring_bytes: 1 << 16,
        watermark: 1 << 15,
        cpus: std::thread::available_parallelism().unwrap().get() as u32,
        slots: 1,
        pid_gate: false,
        own_tgid: 0,
        trace_own: true,
    };
    let (mut session, rings) = match Session::new(&options, Context::default()) {
        Ok(session) => session,
        Err(error) if !rustix::process::geteuid().is_root() => {
            eprintln!("skipped: BPF: {error}");
            return None;
        }
        Err(error) => panic!("{error}"),
    };
    let attachment = session
        .attach(&Request {
            format: &format,
            hook: &Hook::Inject,
            via: &Via::Inject,
            filter: filter.as_ref(),
            irqs_off: false,
            kind: format.id,
            threads: Threads::Every,
            other: None,
        })
        .unwrap_or_else(|error| panic!("{error}\n{}", error.verifier_log().unwrap_or_default()));
    session.set_tracing(true);
    for record in records {
        session.inject(&attachment, record).unwrap();
    }
    let mut seen = Vec::new();
    Drain::new(rings).finish(|record| seen.push(record.payload.to_vec()));
    Some((seen, session.total(attachment.slot)))
}

/// The record as it must come out: the event's id put in.
fn expected(record: &[u8]) -> Vec<u8> {
    let mut record = record.to_vec();
    record[..2].copy_from_slice(&60_000_u16.to_ne_bytes());
    record
}

#[test]
fn records_come_out_as_they_went_in() {
    let records =
        [record(1, b"me", b"hello\0"), record(-7, b"everyone", b"\0"), record(3, b"", &[b'x'; 3000])];
    let Some((seen, counts)) = pass(None, &records) else { return };
    assert_eq!(counts, Counters { hits: 3, filtered: 0, recorded: 3, dropped: 0 });
    for (out, record) in seen.iter().zip(&records) {
        // The tail may be padded.
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
    ] {
        let Some((seen, counts)) = pass(Some(filter), &records) else { return };
        let wanted: Vec<_> = matching.iter().map(|at: &usize| expected(&records[*at])).collect();
        let seen: Vec<_> = seen
            .iter()
            .zip(&wanted)
            .map(|(out, wanted)| out[..wanted.len().min(out.len())].to_vec())
            .collect();
        assert_eq!(seen, wanted, "{filter}");
        assert_eq!(
            counts,
            Counters {
                hits: 3,
                filtered: 3 - matching.len() as u64,
                recorded: matching.len() as u64,
                dropped: 0
            },
            "{filter}"
        );
    }
}
