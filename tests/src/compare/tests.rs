//! Tests of comparisons with traces made up here.

use super::*;

fn trace(lines: &[&str]) -> Trace {
    let lines: Vec<_> =
        lines.iter().map(|line| format!("{:>16}-7       [000] ..... 1.000001: {line}", "task")).collect();
    let text = lines.join("\n");
    Trace::parse(text.as_bytes())
}

#[test]
fn each_kind_of_difference_is_recognised() {
    let kernel = trace(&["a: 1", "b: 2", "c: 3", "d: 4", "e: 5"]);
    let ours = trace(&["a: 1", "c: 3", "d: other", "x: new", "e: 5"]);
    let result = compare(&kernel, &ours, &BTreeSet::from([7]));
    assert_eq!((result.lines(), result.types()), (3, 3));
    assert_eq!((result.missing, result.extra, result.different), (1, 1, 1), "{result}");
    assert!(!result.clean());
    assert!(compare(&kernel, &kernel, &BTreeSet::from([7])).clean());
    assert_eq!(compare(&kernel, &ours, &BTreeSet::from([8])).lines(), 0);
}

#[test]
fn lines_are_set_aside_by_rules() {
    let pids = BTreeSet::from([7]);
    let age = |n| format!("writeback_single_inode: ino=1 age={n} index=0");
    assert!(compare(&trace(&[&age(0)]), &trace(&[&age(12)]), &pids).clean());
    let ends = |state| format!("sched_switch: prev_pid=7 prev_state={state} ==> next_pid=8");
    assert!(compare(&trace(&[&ends("Z")]), &trace(&[&ends("X")]), &pids).clean());
    assert_eq!(compare(&trace(&[&ends("Z")]), &trace(&[&ends("S")]), &pids).different, 1);
    let gateway = |gw| format!("fib_table_lookup: table 255 ==> dev lo gw {gw} err 0");
    assert!(compare(&trace(&[&gateway("0.0.0.0/::")]), &trace(&[&gateway("0.0.0.0/1::")]), &pids).clean());
    let other = "writeback_single_inode: ino=1 age=0 index=1";
    assert_eq!(compare(&trace(&[&age(0)]), &trace(&[other]), &pids).different, 1);
    let flush = "tlb_flush: pages:0 reason:flush on task switch (0)";
    let (other, fpu) = ("tlb_flush: pages:1 reason:local MM shootdown (3)", "x86_fpu_regs_deactivated: x");
    let kernel = trace(&["sched_switch: x", "a: 1"]);
    for (switching, extra) in [
        (&[flush, fpu][..], 0),
        (&[fpu, flush], 0),
        (&[flush, flush], 1),
        (&[flush, other], 1),
        (&[other], 1),
    ] {
        let ours = trace(&[&["sched_switch: x"], switching, &["a: 1"]].concat());
        let result = compare(&kernel, &ours, &pids);
        let aside = result.set_aside.get(&Rule::Switching).copied().unwrap_or(0);
        assert_eq!((result.extra, aside), (extra, switching.len() as u64 - extra), "{switching:?}");
    }
    let ours = trace(&["sched_switch: x", "a: 1", flush]);
    assert_eq!(compare(&kernel, &ours, &pids).extra, 1);
    assert!(compare(&ours, &ours, &pids).clean());
    let ages = |age| (0..9).map(|n| format!("writeback_single_inode: ino={n} age={age}")).collect::<Vec<_>>();
    let [zero, one] = [ages(0), ages(1)];
    let [zero, one] = [&zero, &one].map(|lines| trace(&lines.iter().map(String::as_str).collect::<Vec<_>>()));
    let result = compare(&zero, &one, &pids);
    assert_eq!((result.lines(), result.set_aside[&Rule::Age], result.clean()), (9, 9, true));
    let timer = |n| format!("timer_start: timer=1 expires=2 [timeout={n}] cpu=1");
    assert!(compare(&trace(&[&timer(250)]), &trace(&[&timer(249)]), &pids).clean());
    assert_eq!(compare(&trace(&[&timer(250)]), &trace(&[&timer(248)]), &pids).different, 1);
    let hits = |a: &str, b: &str| trace(&[a, b, "sys_exit: NR 110 = 1", a, b]);
    let (raw, one) = ("sys_enter: NR 110 (0)", "sys_getppid()");
    assert!(compare(&hits(raw, one), &hits(one, raw), &pids).clean());
    assert!(!compare(&hits(raw, one), &trace(&[one, raw, one]), &pids).clean());
}

#[test]
fn few_hits_may_have_another_order() {
    let pids = BTreeSet::from([7]);
    let interrupt = Trace::parse(b"            task-7       [000] d.h.. 1.000001: irq: 1");
    let interrupted = |lines: &[&str]| {
        let mut trace = trace(lines);
        trace.lines.extend(interrupt.lines.clone());
        trace
    };
    let lines = ["a: 1", "read: 1", "wake: 2", "b: 1"];
    let other = ["a: 1", "wake: 2", "read: 1", "b: 1"];
    let result = compare(&interrupted(&lines), &interrupted(&other), &pids);
    assert_eq!((result.set_aside.clone(), result.lines()), (BTreeMap::from([(Rule::Crossed, 1)]), 4));
    assert!(result.clean() && result.crossings.len() == 1, "{result}");
    assert!(!compare(&trace(&lines), &trace(&other), &pids).clean(), "without an interrupt");
    // Another text, or a line that only one side has, is a difference.
    for other in [&["a: 1", "wake: 2", "read: 2", "b: 1"][..], &["a: 1", "wake: 2", "b: 1"]] {
        assert!(!compare(&interrupted(&lines), &interrupted(other), &pids).clean());
    }
    // A reversed trace is another trace.
    let many = ["a: 1", "b: 1", "c: 1", "d: 1", "e: 1"];
    let reversed: Vec<&str> = many.iter().rev().copied().collect();
    let result = compare(&interrupted(&many), &interrupted(&reversed), &pids);
    assert_eq!((result.too_often(), result.clean()), (vec![Rule::Crossed], false));
}

#[test]
fn an_interrupt_explains_a_requested_reschedule() {
    let pids = BTreeSet::from([7]);
    let of = |lines: &[(&str, u32, &str)]| {
        let line = |(flags, micros, text): &(&str, u32, &str)| {
            format!("{:>16}-7       [000] {flags} 1.{micros:06}: {text}\n", "task")
        };
        Trace::parse(lines.iter().map(line).collect::<String>().as_bytes())
    };
    for (micros, is_known) in [(15, true), (40, false)] {
        let at = |flags, micros| [(".....", 1, "a: 1"), (flags, micros, "b: 1"), (".....", 30, "c: 1")];
        let irq = ("d.h..", micros, "irq: 1");
        let kernel = of(&[&at(".....", 11)[..], &[irq]].concat());
        let ours = of(&[&at(".N...", 17)[..], &[irq]].concat());
        let wrong = compare(&kernel, &ours, &pids).columns.wrong(columns::KNOWN);
        assert_eq!(wrong.is_empty(), is_known, "{micros}: {wrong:?}");
    }
}

#[test]
fn columns_of_two_hits_are_not_compared() {
    let result = compare(&trace(&["a: 1", "a: 1", "b: 1"]), &trace(&["a: 1", "b: 1"]), &BTreeSet::from([7]));
    assert_eq!((result.set_aside, result.missing), (BTreeMap::from([(Rule::Ambiguous, 1)]), 1));
    assert_eq!(result.columns.column(0).equal.values().sum::<u64>(), 1);
}

#[test]
fn runs_accumulate_until_their_shares_are_known() {
    let pids = BTreeSet::from([7]);
    let many: Vec<String> = (0..100).map(|number| format!("a: {number}")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    let run = |lost: usize| compare(&trace(&many), &trace(&many[lost..]), &pids);
    if !host::counts_missed() || host::part() > 1 {
        return;
    }
    // The first run loses 4 of its 100 lines, which is more than 20 of 1,000.
    let mut losses = [4, 0, 0, 0, 0, 0, 0].into_iter();
    let known = until_known(
        || {
            let lost = losses.next().expect("few runs suffice");
            Ok((run(lost), Missed::shared(lost as u64)))
        },
        |_| Vec::new(),
    );
    assert!(known.is_ok_and(|known| known.runs > 1 && known.missing == 4));
    let always = until_known(|| Ok((run(4), Missed::shared(4))), |_| Vec::new());
    assert!(always.is_err_and(|error| error.to_string().starts_with("not known after 8 runs: 32 of 800")));
    let uncounted = until_known(|| Ok((run(1), Missed::default())), |_| Vec::new());
    assert!(uncounted.is_err_and(|error| error.to_string().contains("1 only the kernel's")));
}

#[test]
fn losses_are_counted_per_event() {
    let pids = BTreeSet::from([7]);
    let many: Vec<String> = (0..20).map(|number| format!("a: {number}")).collect();
    let mut many: Vec<&str> = many.iter().map(String::as_str).collect();
    many.extend(["b: 1", "b: 2"]);
    let less = |without: &str| -> Vec<&str> {
        many.iter().filter(|line| !without.split(',').any(|no| **line == no)).copied().collect()
    };
    let three = trace(&["c: 1", "c: 2", "c: 3"]);
    assert_eq!(compare(&three, &trace(&[]), &pids).starved(&Missed::default()), ["c"]);
    assert!(compare(&three, &trace(&["c: 2"]), &pids).starved(&Missed::default()).is_empty());
    let result = compare(&trace(&many), &trace(&less("a: 3,b: 1")), &pids);
    assert_eq!(result.missing_by, BTreeMap::from([("a".into(), 1), ("b".into(), 1)]));
    assert_eq!(result.losses(), "a 1 of 20, b 1 of 2");
    if host::counts_missed() {
        let own = |event: &str| BTreeMap::from([(event.to_owned(), 2)]);
        assert!(result.accounted_for(&Missed::shared(2)));
        assert!(!result.accounted_for(&Missed { own: own("b"), shared: 0 }), "the other's");
        assert!(result.accounted_for(&Missed { own: own("b"), shared: 1 }));
    }
    // Nearly all lines of one event are missing. The total cannot excuse that.
    let result = compare(&trace(&many), &trace(&["a: 0", "b: 1", "b: 2"]), &pids);
    assert_eq!((result.starved(&Missed::default()), result.missing), (vec!["a"], 19));
    let unknown = result.unknown(&Missed::shared(1000));
    assert!(unknown.iter().any(|what| what == "a misses too many of its lines"), "{unknown:?}");
    let own = Missed { own: BTreeMap::from([("a".to_owned(), 19)]), shared: 2 };
    assert_eq!(result.starved(&own), ["a"], "counted, and hardly ever seen");
}

#[test]
fn missed_hits_are_split_into_own_and_shared() {
    let count = |missed| Counts { missed, ..Counts::default() };
    let counts = [("sched:sched_switch", 2), ("irq:softirq_entry", 0), ("total", 7)];
    let counts = counts.map(|(name, missed)| (name.to_owned(), count(missed)));
    let missed = Missed::of(&BTreeMap::from(counts));
    assert_eq!((missed.own["sched_switch"], missed.shared), (2, 5));
}

#[test]
fn families_include_forked_children() {
    let fork = "sched_process_fork: comm=a pid=7 child_comm=a child_pid=9";
    assert_eq!(family(7, &trace(&[fork])), BTreeSet::from([7, 9]));
    assert_eq!(family(8, &trace(&[fork])), BTreeSet::from([8]));
}
