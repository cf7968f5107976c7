//! The event API for synthetic events, in a running mirror. The tests follow
//! `kernel/trace/synth_event_gen_test.c`, with its values, and also check the documented contracts of the functions.

use anyhow::{Result, ensure};
use tracer_tests::host;
use tracer_tests::mirror::{Mounted, bodies, set, text};
use tracer_user::api::dynevent::MAX_DYNEVENT_CMD_LEN;
use tracer_user::api::event_file::{
    TraceEventFile, trace_array_set_clr_event, trace_get_event_file, trace_put_event_file,
};
use tracer_user::api::synth::{
    synth_event_add_field, synth_event_add_field_str, synth_event_add_fields, synth_event_cmd_init,
    synth_event_create, synth_event_delete, synth_event_gen_cmd_array_start, synth_event_gen_cmd_end,
    synth_event_gen_cmd_start,
};
use tracer_user::api::trace::{
    ENOTSUPP, Value, synth_event_add_next_val, synth_event_add_val, synth_event_trace,
    synth_event_trace_array, synth_event_trace_end, synth_event_trace_start,
};
use tracer_user::api::{Errno, Files};

/// The first fields of the kernel's test, and the fields that it adds one by one.
const FIRST: [(&str, &str); 4] =
    [("pid_t", "next_pid_field"), ("char[16]", "next_comm_field"), ("u64", "ts_ns"), ("u64", "ts_ms")];
const MORE: [(&str, &str); 3] =
    [("unsigned int", "cpu"), ("char[64]", "my_string_field"), ("int", "my_int_field")];

/// The fields of the event that the kernel's test creates in one step.
const CREATED: [(&str, &str); 9] = [
    ("pid_t", "next_pid_field"),
    ("char[16]", "next_comm_field"),
    ("u64", "ts_ns"),
    ("char[]", "dynstring_field_1"),
    ("u64", "ts_ms"),
    ("unsigned int", "cpu"),
    ("char[64]", "my_string_field"),
    ("char[]", "dynstring_field_2"),
    ("int", "my_int_field"),
];

/// The lines that the kernel's test leaves when the CPU is 1.
const LINES: [&str; 6] = [
    "gen_synth_test: next_pid_field=777 next_comm_field=hula hoops ts_ns=1000000 ts_ms=1000 cpu=1 \
     my_string_field=thneed my_int_field=598",
    "empty_synth_test: next_pid_field=777 next_comm_field=tiddlywinks ts_ns=1000000 ts_ms=1000 cpu=1 \
     my_string_field=thneed_2.0 my_int_field=399",
    "create_synth_test: next_pid_field=777 next_comm_field=tiddlywinks ts_ns=1000000 dynstring_field_1=xrayspecs \
     ts_ms=1000 cpu=1 my_string_field=thneed dynstring_field_2=kerplunk my_int_field=398",
    "gen_synth_test: next_pid_field=777 next_comm_field=slinky ts_ns=1000000 ts_ms=1000 cpu=1 \
     my_string_field=thneed_2.01 my_int_field=395",
    "gen_synth_test: next_pid_field=777 next_comm_field=silly putty ts_ns=1000000 ts_ms=1000 cpu=1 \
     my_string_field=thneed_9 my_int_field=3999",
    "create_synth_test: next_pid_field=444 next_comm_field=clackers ts_ns=1000000 dynstring_field_1=viewmaster \
     ts_ms=1000 cpu=1 my_string_field=Thneed dynstring_field_2=yoyos my_int_field=999",
];

fn turn(file: &TraceEventFile<'_>, on: bool) -> Result<(), Errno> {
    let event = file.name().split_off("synthetic:".len());
    trace_array_set_clr_event(file.tr(), Some("synthetic"), Some(&event), on)
}

fn seven<'a>(comm: &'a str, text: &'a str, number: i32) -> [Value<'a>; 7] {
    [777.into(), comm.into(), 1_000_000.into(), 1000.into(), 1.into(), text.into(), number.into()]
}

/// The kernel's test; `records` returns the lines of the trace.
fn generate(files: &Files, records: &dyn Fn() -> Result<Vec<String>>) -> Result<()> {
    let file = |event: &str| trace_get_event_file(files, None, "synthetic", event);

    let mut cmd = synth_event_cmd_init(files, MAX_DYNEVENT_CMD_LEN);
    synth_event_gen_cmd_start(&mut cmd, "gen_synth_test", &FIRST)?;
    for (ty, name) in MORE {
        synth_event_add_field(&mut cmd, ty, name)?;
    }
    synth_event_gen_cmd_end(&mut cmd)?;
    let generated = file("gen_synth_test")?;
    turn(&generated, true)?;
    synth_event_trace_array(&generated, &seven("hula hoops", "thneed", 598))?;

    let mut cmd = synth_event_cmd_init(files, MAX_DYNEVENT_CMD_LEN);
    synth_event_gen_cmd_start(&mut cmd, "empty_synth_test", &[])?;
    synth_event_add_fields(&mut cmd, &FIRST)?;
    for (ty, name) in MORE {
        synth_event_add_field_str(&mut cmd, &format!("{ty} {name}"))?;
    }
    synth_event_gen_cmd_end(&mut cmd)?;
    let empty = file("empty_synth_test")?;
    turn(&empty, true)?;
    synth_event_trace_array(&empty, &seven("tiddlywinks", "thneed_2.0", 399))?;

    synth_event_create(files, "create_synth_test", &CREATED)?;
    let created = file("create_synth_test")?;
    turn(&created, true)?;
    let nine = |pid: u32, texts: [&'static str; 4], number: i32| -> [Value<'static>; 9] {
        let [comm, first, text, second] = texts.map(Value::from);
        [pid.into(), comm, 1_000_000.into(), first, 1000.into(), 1.into(), text, second, number.into()]
    };
    synth_event_trace_array(&created, &nine(777, ["tiddlywinks", "xrayspecs", "thneed", "kerplunk"], 398))?;

    let mut state = synth_event_trace_start(&generated)?;
    for value in seven("slinky", "thneed_2.01", 395) {
        synth_event_add_next_val(value, &mut state)?;
    }
    synth_event_trace_end(state)?;

    let mut state = synth_event_trace_start(&generated)?;
    synth_event_add_val("ts_ns", 1_000_000, &mut state)?;
    synth_event_add_val("ts_ms", 1000, &mut state)?;
    synth_event_add_val("cpu", 1, &mut state)?;
    synth_event_add_val("next_pid_field", 777, &mut state)?;
    synth_event_add_val("next_comm_field", "silly putty", &mut state)?;
    synth_event_add_val("my_string_field", "thneed_9", &mut state)?;
    synth_event_add_val("my_int_field", 3999, &mut state)?;
    synth_event_trace_end(state)?;

    synth_event_trace(&created, &nine(444, ["clackers", "viewmaster", "Thneed", "yoyos"], 999))?;
    let found = records()?;
    ensure!(found == LINES, "{found:#?}");

    contracts(files, &generated, &created, records)?;
    for event in [generated, empty, created] {
        turn(&event, false)?;
        trace_put_event_file(event);
    }
    for event in ["gen_synth_test", "empty_synth_test", "create_synth_test"] {
        synth_event_delete(files, event)?;
    }
    ensure!(synth_event_delete(files, "gen_synth_test") == Err(Errno::NOENT), "it is gone");
    Ok(())
}

/// Checks the contracts of the functions: refused calls, calls that trace in spite of an error, and calls without
/// effect.
fn contracts(
    files: &Files,
    generated: &TraceEventFile<'_>,
    created: &TraceEventFile<'_>,
    records: &dyn Fn() -> Result<Vec<String>>,
) -> Result<()> {
    let before = records()?.len();
    let new = || -> Result<Vec<String>> { Ok(records()?.split_off(before)) };
    // Values in order and values by name cannot be mixed, no value may follow the last field, and every end traces.
    let mut state = synth_event_trace_start(generated)?;
    synth_event_add_next_val(1, &mut state)?;
    ensure!(synth_event_add_val("ts_ns", 2, &mut state) == Err(Errno::INVAL), "mixed");
    ensure!(synth_event_add_next_val(3, &mut state) == Err(Errno::INVAL), "a number for a text");
    drop(state);
    let mut state = synth_event_trace_start(generated)?;
    synth_event_add_val("my_int_field", -7, &mut state)?;
    ensure!(synth_event_add_next_val(1, &mut state) == Err(Errno::INVAL), "mixed");
    ensure!(synth_event_add_val("nothing", 1, &mut state) == Err(Errno::INVAL), "no such field");
    ensure!(
        synth_event_add_val("my_string_field", 1, &mut state) == Err(Errno::INVAL),
        "a number for a text"
    );
    synth_event_trace_end(state)?;
    let mut state = synth_event_trace_start(generated)?;
    for value in seven("'a\"b\\", "é", 0) {
        synth_event_add_next_val(value, &mut state)?;
    }
    ensure!(synth_event_add_next_val(1, &mut state) == Err(Errno::INVAL), "behind the last field");
    synth_event_trace_end(state)?;
    let line = |pid: u32, comm: &str, times: [u64; 3], text: &str, number: i32| {
        let [ns, ms, cpu] = times;
        format!(
            "gen_synth_test: next_pid_field={pid} next_comm_field={comm} ts_ns={ns} ts_ms={ms} cpu={cpu} \
             my_string_field={text} my_int_field={number}"
        )
    };
    let wanted = [
        line(1, "", [0; 3], "", 0),
        line(0, "", [0; 3], "", -7),
        line(777, "'a\"b\\", [1_000_000, 1000, 1], "é", 0),
    ];
    ensure!(new()? == wanted, "{:#?}", new()?);

    // Dynamic strings cannot be added piece by piece. The values must match the fields in number and kind.
    ensure!(synth_event_trace_start(created).map(drop) == Err(ENOTSUPP), "texts of any length");
    for values in [&seven("a", "b", 1)[..6], &[Value::Number(1); 7], &[]] {
        ensure!(synth_event_trace(generated, values) == Err(Errno::INVAL), "{values:?}");
    }
    ensure!(synth_event_delete(files, "gen_synth_test") == Err(Errno::BUSY), "it is on");
    let twice = synth_event_create(files, "gen_synth_test", &FIRST);
    ensure!(twice == Err(Errno::EXIST), "{twice:?}");
    let mut cmd = synth_event_cmd_init(files, MAX_DYNEVENT_CMD_LEN);
    synth_event_gen_cmd_array_start(&mut cmd, "bad_synth_test", &FIRST)?;
    synth_event_add_field_str(&mut cmd, "float f")?;
    ensure!(synth_event_gen_cmd_end(&mut cmd) == Err(Errno::INVAL), "no such type");

    // A disabled event ignores all values, but the rules for adding them still apply.
    turn(generated, false)?;
    synth_event_trace(generated, &[])?;
    synth_event_trace(generated, &seven("a", "b", 1))?;
    let mut state = synth_event_trace_start(generated)?;
    synth_event_add_next_val("a text for a number", &mut state)?;
    ensure!(synth_event_add_val("ts_ns", 1, &mut state) == Err(Errno::INVAL), "mixed");
    synth_event_trace_end(state)?;
    ensure!(new()?.len() == 3, "{:#?}", new()?);
    // An event of another kind accepts no values.
    let other = trace_get_event_file(files, None, "sched", "sched_kthread_stop")?;
    ensure!(synth_event_trace(&other, &[1.into()]) == Err(Errno::INVAL), "not synthetic");
    Ok(())
}

#[test]
fn the_kernels_test_by_files() {
    let run = || -> Result<()> {
        if !host::root_or_skip() {
            return Ok(());
        }
        let mounted = Mounted::start("api-synth")?;
        let dir = mounted.dir();
        let files = Files::at(dir);
        generate(&files, &|| Ok(bodies(&text(dir, "trace")?)))?;

        // An instance has its own filter, triggers and enable state. It cannot be removed while its event is in use.
        let one = mounted.instance("one")?;
        synth_event_create(&files, "wakeup", &[("u64", "lat"), ("char[]", "who")])?;
        let file = trace_get_event_file(&files, Some("one"), "synthetic", "wakeup")?;
        ensure!(std::fs::remove_dir(&one).is_err(), "it is held");
        turn(&file, true)?;
        set(&one, "events/synthetic/wakeup/filter", "lat > 10 && who ~ \"a*\"")?;
        set(&one, "events/synthetic/wakeup/trigger", "traceoff if lat == 30")?;
        for (lat, who) in [(10, "ab"), (20, "ab"), (20, "ba"), (30, "abc")] {
            synth_event_trace(&file, &[lat.into(), who.into()])?;
        }
        let off = synth_event_trace(&file, &[40.into(), "a".into()]);
        ensure!(off == Err(Errno::INVAL), "nothing is recorded: {off:?}");
        let found = bodies(&text(&one, "trace")?);
        ensure!(found == ["wakeup: lat=20 who=ab", "wakeup: lat=30 who=abc"], "{found:?}");
        ensure!(bodies(&text(dir, "trace")?).iter().all(|line| !line.starts_with("wakeup")), "the top's");
        synth_event_create(&files, "fixed", &[("u64", "lat")])?;
        let fixed = trace_get_event_file(&files, Some("one"), "synthetic", "fixed")?;
        ensure!(synth_event_trace_start(&fixed).is_ok(), "an event that is off");
        trace_array_set_clr_event(fixed.tr(), Some("synthetic"), Some("fixed"), true)?;
        let off = synth_event_trace_start(&fixed).map(drop);
        ensure!(off == Err(Errno::INVAL), "nothing is recorded: {off:?}");
        trace_array_set_clr_event(fixed.tr(), Some("synthetic"), Some("fixed"), false)?;
        trace_put_event_file(fixed);
        synth_event_delete(&files, "fixed")?;

        // A trigger without a filter soft-disables the event before the next record.
        set(&one, "tracing_on", "1")?;
        set(&one, "events/synthetic/wakeup/trigger", "!traceoff if lat == 30")?;
        set(&one, "events/synthetic/wakeup/trigger", "disable_event:synthetic:wakeup")?;
        synth_event_trace(&file, &[50.into(), "a".into()])?;
        let mut enable = text(&one, "events/synthetic/wakeup/enable")?;
        ensure!(enable == "0*\n", "{enable}");
        synth_event_trace(&file, &[])?;
        set(&one, "events/synthetic/wakeup/trigger", "!disable_event:synthetic:wakeup")?;
        turn(&file, false)?;
        enable = text(&one, "events/synthetic/wakeup/enable")?;
        ensure!(enable == "0\n", "{enable}");
        synth_event_delete(&files, "wakeup")?;
        let gone = synth_event_trace(&file, &[50.into(), "a".into()]);
        ensure!(gone == Err(Errno::NODEV), "{gone:?}");
        trace_put_event_file(file);
        std::fs::remove_dir(&one)?;
        Ok(())
    };
    run().unwrap();
}
