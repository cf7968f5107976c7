//! Listings of frozen plans: the expected code for common filters.

use super::*;
use crate::{
    code::listing,
    event::{Format, Slot},
    plan::{
        filter::{Filter, NumberOp, Pattern, Place, Test, Text},
        source::{FieldSource, ProgramContext, Source, UserRecord},
        trigger::{Action, Count, Trigger},
    },
};

fn number(offset: u16, size: u16, op: NumberOp, value: u64) -> Filter {
    Filter::Test(Test::Number { place: Place { offset, size }, signed: true, op, value })
}

fn text(text: Text, pattern: Pattern) -> Filter {
    Filter::Test(Test::Text { text, pattern, not: false })
}

fn listed(plan: &Filter, context: &ProgramContext) -> String {
    listing::functions(&filter(plan, context).unwrap().functions)
}

/// `sched_switch` by its arguments, at the offsets of one example kernel.
fn switch() -> ProgramContext {
    let memory =
        |offset, size, arg, at| FieldSource { offset, size, source: Source::Memory { arg, path: vec![at] } };
    ProgramContext::RawTracepoint(vec![
        memory(8, 16, 1, 2968),
        memory(24, 4, 1, 2488),
        memory(28, 4, 1, 132),
        memory(40, 16, 2, 2968),
        memory(56, 4, 2, 2488),
        memory(60, 4, 2, 132),
    ])
}

#[test]
fn a_number_of_the_record_is_one_load() {
    // raw_syscalls:sys_enter, id == 9999
    let plan = number(8, 8, NumberOp::Eq, 9999);
    insta::assert_snapshot!(listed(&plan, &ProgramContext::Tracepoint), @r"
    tracer_filter:
          ; s64 at 8: == 0x270f
        0  r0 = *(u64 *)(r1 + 8)
        1  if r0 != 9999 goto L1
        2  r0 = 1
        3  exit
       L1:
        4  r0 = 0
        5  exit
    ");
    let raw = ProgramContext::RawTracepoint(vec![FieldSource { offset: 8, size: 8, source: Source::Arg(1) }]);
    assert_eq!(listed(&plan, &raw), listed(&plan, &ProgramContext::Tracepoint));
}

#[test]
fn a_name_is_read_once_and_compared_by_words() {
    let comm = Text::Static(Place { offset: 8, size: 16 });
    let plan = Filter::Or(vec![
        text(comm, Pattern::Front(b"ba".into())),
        text(comm, Pattern::Full(b"kworker/0:1".into())),
        number(60, 4, NumberOp::Lt, 100),
    ]);
    insta::assert_snapshot!(listed(&plan, &switch()), @r#"
    tracer_filter:
        0  r6 = r1
          ; char@8:16 == front "ba"
        1  r3 = *(u64 *)(r6 + 8)
        2  r3 += 2968
        3  r1 = r10
        4  r1 += -16
        5  r2 = 16
        6  call bpf_probe_read_kernel
        7  r0 = *(u16 *)(r10 - 16)
        8  if w0 == 24930 goto L2
          ; char@8:16 == full "kworker/0:1"
        9  r0 = *(u64 *)(r10 - 16)
       10  r5 = 0x2f72656b726f776b ll
       12  if r0 != r5 goto L1
       13  r0 = *(u32 *)(r10 - 8)
       14  if w0 == 3226160 goto L2
          ; s32 at 60: < 0x64
       L1:
       15  r3 = *(u64 *)(r6 + 16)
       16  r3 += 132
       17  r1 = r10
       18  r1 += -20
       19  r2 = 4
       20  call bpf_probe_read_kernel
       21  r0 = *(u32 *)(r10 - 20)
       22  if w0 s>= 100 goto L3
       L2:
       23  r0 = 1
       24  exit
       L3:
       25  r0 = 0
       26  exit
    "#);
}

#[test]
fn a_search_has_a_callback() {
    let filename = Text::Pointer { place: Place { offset: 24, size: 8 }, user: true };
    let plan = text(filename, Pattern::Middle(b"passwd".into()));
    insta::assert_snapshot!(listed(&plan, &ProgramContext::Tracepoint), @r#"
    tracer_filter:
        0  r6 = r1
        1  r7 = r2
          ; user*@24:8 == middle "passwd"
        2  r0 = *(u64 *)(r6 + 24)
        3  r3 = r0
        4  r1 = r7
        5  r1 += 8
        6  r2 = 1024
        7  call bpf_probe_read_user_str
        8  if r0 s<= 0 goto L1
        9  r0 -= 1
       L1:
       10  *(u64 *)(r7 + 0) = r0
       11  r9 = *(u64 *)(r7 + 0)
       12  if r9 > 1023 goto L2
          ; search for "passwd"
       13  *(u64 *)(r10 - 16) = 0
       14  r1 = r9
       15  r1 += -5
       16  if r1 s<= 0 goto L2
       17  r0 = r7
       18  r0 += 8
       19  *(u64 *)(r10 - 32) = r0
       20  *(u64 *)(r10 - 24) = -1
       21  r2 = &tracer_search_0
       23  r3 = r10
       24  r3 += -32
       25  r4 = 0
       26  call bpf_loop
       27  r0 = *(u64 *)(r10 - 24)
       28  if r0 == -1 goto L2
       29  r0 = 1
       30  exit
       L2:
       31  r0 = 0
       32  exit

    tracer_search_0:
        0  r3 = *(u64 *)(r2 + 0)
        1  r4 = *(u64 *)(r2 + 16)
        2  r4 += r1
          ; look for "passwd"
        3  if r4 > 1017 goto L1
        4  r3 += r4
        5  r0 = *(u32 *)(r3 + 0)
        6  if w0 != 1936941424 goto L2
        7  r0 = *(u16 *)(r3 + 4)
        8  if w0 != 25719 goto L2
        9  *(u64 *)(r2 + 8) = r4
       L1:
       10  r0 = 1
       11  exit
       L2:
       12  r0 = 0
       13  exit
    "#);
}

#[test]
fn records_are_copied_by_words_or_read_with_their_data() {
    let parse = |fields: &str| Format::parse("s", &format!("name: n\nID: 1\nformat:\n{fields}")).unwrap();
    let fixed = parse(
        "\tfield:int pid;\toffset:8;\tsize:4;\tsigned:1;\n\tfield:u64 at;\toffset:16;\tsize:8;\tsigned:0;\n",
    );
    let code = record(&fixed, &ProgramContext::Tracepoint).unwrap();
    assert_eq!(code.size, Some(24));
    insta::assert_snapshot!(listing::functions(&code.functions), @r"
    tracer_record:
          ; copy bytes 8 to 24
        0  r0 = *(u64 *)(r1 + 8)
        1  *(u64 *)(r2 + 8) = r0
        2  r0 = *(u64 *)(r1 + 16)
        3  *(u64 *)(r2 + 16) = r0
        4  r0 = 24
        5  exit
    ");
    let variable = parse(
        "\tfield:__data_loc char[] name;\toffset:8;\tsize:4;\tsigned:0;\n\tfield:u8 on;\toffset:12;\tsize:1;\tsigned:0;\n",
    );
    let code = record(&variable, &ProgramContext::Tracepoint).unwrap();
    assert_eq!(code.size, None);
    insta::assert_snapshot!(listing::functions(&code.functions), @r"
    tracer_record:
        0  r6 = r1
        1  r7 = r2
        2  r9 = 13
          ; end of name
        3  r0 = *(u32 *)(r6 + 8)
        4  r5 = r0
        5  r5 >>= 16
        6  r0 &= 65535
        7  r0 += r5
        8  if r0 <= r9 goto L1
        9  r9 = r0
          ; whole length
       L1:
       10  r9 += 6
       11  r9 &= -4
       12  if r9 <= 8192 goto L2
       13  r9 = 8192
       L2:
       14  r2 = r9
       15  r2 -= 8
       16  r2 &= 8191
       17  r1 = r7
       18  r1 += 8
       19  r3 = r6
       20  r3 += 8
       21  call bpf_probe_read_kernel
       22  r0 = r9
       23  exit
    ");
}

#[test]
fn a_trigger_counts_in_three_steps() {
    let list = [
        Trigger {
            action: Action::TraceOff,
            count: Some(Count { place: 2, limited: true }),
            filter: Some(number(8, 8, NumberOp::Eq, 7)),
        },
        Trigger { action: Action::StackTrace, count: None, filter: Some(number(8, 8, NumberOp::Lt, 3)) },
        Trigger { action: Action::Event { slot: Slot::new(5), enable: true }, count: None, filter: None },
    ];
    insta::assert_snapshot!(listing::functions(&trigger(&list, &ProgramContext::Tracepoint).unwrap().functions), @r"
    tracer_trigger:
        0  *(u64 *)(r10 - 8) = r4
        1  *(u64 *)(r10 - 16) = 0
          ; s64 at 8: == 0x7
        2  r0 = *(u64 *)(r1 + 8)
        3  if r0 != 7 goto L1
          ; traceoff
        4  r4 = *(u64 *)(r10 - 8)
        5  r2 = r4
        6  r0 = *(u32 *)(r2 + 0)
        7  r0 &= 1
        8  if r0 != 0 goto L1
        9  r5 = r4
       10  r5 += 49184
       11  r0 = *(u64 *)(r5 + 0)
       12  if r0 s<= 0 goto L1
       13  r0 = -1
       14  r0 = atomic_add(*(u64 *)(r5 + 0), r0)
       15  if r0 s<= 0 goto L1
       16  r0 = 1
       17  r0 = atomic_or(*(u32 *)(r2 + 0), r0)
       18  r0 &= 1
       19  if r0 == 0 goto L1
       20  r0 = 1
       21  r0 = atomic_add(*(u64 *)(r5 + 0), r0)
          ; s64 at 8: < 0x3
       L1:
       22  r0 = *(u64 *)(r1 + 8)
       23  if r0 s>= 3 goto L2
          ; stacktrace
       24  r4 = *(u64 *)(r10 - 8)
       25  r0 = *(u64 *)(r10 - 16)
       26  r0 |= 2
       27  *(u64 *)(r10 - 16) = r0
          ; enable event at slot 5
       L2:
       28  r4 = *(u64 *)(r10 - 8)
       29  r2 = r4
       30  r2 += 16420
       31  r0 = *(u32 *)(r2 + 0)
       32  if r0 == 0 goto L3
       33  *(u32 *)(r2 + 0) = 0
       L3:
       34  r0 = *(u64 *)(r10 - 16)
       35  exit
    ");
}

#[test]
fn an_unconditional_trigger_is_a_few_instructions() {
    let list = [Trigger { action: Action::TraceOn, count: None, filter: None }];
    insta::assert_snapshot!(listing::functions(&trigger(&list, &ProgramContext::Tracepoint).unwrap().functions), @r"
    tracer_trigger:
          ; traceon
        0  r2 = r4
        1  r0 = *(u32 *)(r2 + 0)
        2  r0 &= 1
        3  if r0 == 0 goto L1
        4  r0 = -2
        5  r0 = atomic_and(*(u32 *)(r2 + 0), r0)
       L1:
        6  r0 = 0
        7  exit
    ");
}

#[test]
fn only_the_numbers_that_a_filter_reads_are_copied_from_user_records() {
    let record = UserRecord { address: 112, length: 104, fixed: 36, varies: true };
    let context = ProgramContext::UserRecord(record);
    let plan = Filter::And(vec![number(28, 4, NumberOp::Lt, 0), number(24, 4, NumberOp::Gt, 7)]);
    let code = filter(&plan, &context).unwrap();
    assert!(!code.needs.scratch);
    insta::assert_snapshot!(listing::functions(&code.functions), @r"
    tracer_filter:
        0  r6 = r1
        1  r8 = r3
          ; the fields that the filter reads
        2  r7 = r10
        3  r7 += -32
        4  *(u64 *)(r7 + 0) = r8
          ; the program's bytes 24 to 32
        5  r1 = r7
        6  r1 += 24
        7  r3 = *(u64 *)(r6 + 112)
        8  r3 += 24
        9  r2 = 8
       10  call bpf_probe_read_user
       11  r6 = r7
          ; s32 at 28: < 0x0
       12  r0 = *(u32 *)(r6 + 28)
       13  if w0 s>= 0 goto L1
          ; s32 at 24: > 0x7
       14  r0 = *(u32 *)(r6 + 24)
       15  if w0 s<= 7 goto L1
       16  r0 = 1
       17  exit
       L1:
       18  r0 = 0
       19  exit
    ");
    let texts = Filter::And(vec![
        number(24, 4, NumberOp::Gt, 7),
        text(Text::Static(Place { offset: 8, size: 16 }), Pattern::Full(b"a".into())),
    ]);
    assert!(filter(&texts, &context).unwrap().needs.scratch);
}
