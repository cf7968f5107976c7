//! The helper functions that the templates call. On CPUs with mitigations a call and its return cost more than the rest
//! of a hit, so a change of these numbers is to be seen in review.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use tracer_abi::{COUNTERS, PARAMS, Params, SWITCHES, params};

use super::object::{Functions, finish, linked};
use crate::{
    code::asm::{CALL, Helper, PSEUDO_CALL},
    event::Format,
    plan::{
        filter::{Filter, NumberOp, Place, Test},
        source::{FieldSource, ProgramContext, Source},
    },
};

const ENTER: &str = "name: sys_enter\nID: 22\nformat:\n\
    \tfield:long id;\toffset:8;\tsize:8;\tsigned:1;\n\n\
    print fmt: \"%ld\", REC->id\n";

/// The helpers that a program calls, with the number of calls in its instructions.
fn helpers(template: &str, context: &ProgramContext, filter: bool, bits: u32) -> String {
    let format = Format::parse("raw_syscalls", ENTER).unwrap();
    let place = Place { offset: 8, size: 8 };
    let number = Filter::Test(Test::Number { place, signed: true, op: NumberOp::Eq, value: 5000 });
    let functions = Functions::generate(&format, context, filter.then_some(&number), &[]).unwrap();
    let filter = if filter { params::FILTER } else { 0 };
    let fixed = Params {
        bits: bits | filter | params::ONE_TABLE,
        cpus: 2,
        size: functions.size,
        kind: 22,
        watermark: 1 << 20,
        ring_words: 1 << 18,
        own_tgid: 1,
        rows: 4,
        ..Params::default()
    };
    let constants: [(&str, &[u8]); 1] = [(PARAMS, &fixed.bytes())];
    // No program is loaded, so any descriptor serves for its maps.
    let map = |_: &str| Some(rustix::stdio::stdin());
    let image =
        finish(&linked(functions.list()).unwrap(), template, &constants, &[SWITCHES, COUNTERS], None, map);
    let mut calls: BTreeMap<String, usize> = BTreeMap::new();
    for insn in image.unwrap().insns.iter().filter(|insn| insn.op == CALL && insn.src != PSEUDO_CALL) {
        let name = Helper::name(insn.imm).map_or_else(|| format!("helper {}", insn.imm), str::to_owned);
        *calls.entry(name).or_default() += 1;
    }
    let calls: Vec<String> = calls.iter().map(|(name, count)| format!("{name} {count}")).collect();
    calls.join(", ")
}

#[test]
fn templates_call_few_helpers() {
    let raw = ProgramContext::RawTracepoint(vec![FieldSource { offset: 8, size: 8, source: Source::Arg(1) }]);
    let mut text = String::new();
    for (what, template, context, filter, bits) in [
        ("recording, no filter", "raw_event", &raw, false, 0),
        ("recording, filter", "raw_event", &raw, true, params::OWN_LATE),
        ("mirror, no filter", "raw_event", &raw, false, params::PID_LISTS),
        ("mirror, filter", "raw_event", &raw, true, params::PID_LISTS),
        ("recording, filter", "trace_event", &ProgramContext::Tracepoint, true, params::OWN_LATE),
        ("mirror, filter", "trace_event", &ProgramContext::Tracepoint, true, params::PID_LISTS),
        ("mirror, filter", "kprobe_event", &ProgramContext::Tracepoint, true, params::PID_LISTS),
        ("mirror, filter", "fentry_event", &ProgramContext::Tracepoint, true, params::PID_LISTS),
        ("mirror, filter", "fexit_event", &ProgramContext::Tracepoint, true, params::PID_LISTS),
        ("mirror, filter", "uprobe_event", &ProgramContext::Tracepoint, true, params::PID_LISTS),
    ] {
        let calls = helpers(template, context, filter, bits);
        writeln!(text, "{template}, {what}: {calls}").unwrap();
    }
    insta::assert_snapshot!(text, @r"
    raw_event, recording, no filter: bpf_get_current_pid_tgid 1, bpf_get_smp_processor_id 1, bpf_ktime_get_ns 3, bpf_ringbuf_output 2
    raw_event, recording, filter: bpf_get_current_pid_tgid 1, bpf_get_smp_processor_id 1, bpf_ktime_get_ns 3, bpf_ringbuf_output 2
    raw_event, mirror, no filter: bpf_get_current_pid_tgid 1, bpf_get_smp_processor_id 1, bpf_ktime_get_ns 3, bpf_ringbuf_output 2
    raw_event, mirror, filter: bpf_get_current_pid_tgid 1, bpf_get_smp_processor_id 1, bpf_ktime_get_ns 3, bpf_ringbuf_output 2
    trace_event, recording, filter: bpf_get_current_pid_tgid 1, bpf_get_smp_processor_id 1, bpf_ktime_get_ns 3, bpf_ringbuf_output 2
    trace_event, mirror, filter: bpf_get_current_pid_tgid 1, bpf_get_smp_processor_id 1, bpf_ktime_get_ns 3, bpf_ringbuf_output 2
    kprobe_event, mirror, filter: bpf_get_current_pid_tgid 1, bpf_get_smp_processor_id 1, bpf_ktime_get_ns 3, bpf_ringbuf_output 2
    fentry_event, mirror, filter: bpf_get_current_pid_tgid 1, bpf_get_smp_processor_id 1, bpf_ktime_get_ns 3, bpf_ringbuf_output 2
    fexit_event, mirror, filter: bpf_get_current_pid_tgid 1, bpf_get_smp_processor_id 1, bpf_ktime_get_ns 3, bpf_ringbuf_output 2
    uprobe_event, mirror, filter: bpf_get_current_pid_tgid 1, bpf_get_smp_processor_id 1, bpf_ktime_get_ns 3, bpf_ringbuf_output 2
    ");
}
