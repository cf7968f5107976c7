//! Tests of command sequences and their results: the text read back, or errno and log.

use rustix::io::Errno;

use super::*;

/// Runs commands `EVENT COMMAND` of the system `test`. Returns the last result and the triggers of its event.
fn run(commands: &[&str]) -> String {
    let world = Fixed::small();
    let mut set = Set::default();
    let mut shown = String::new();
    for line in commands {
        let (event, command) = line.split_once(' ').unwrap();
        let (remove, command) = command.strip_prefix('!').map_or((false, command), |rest| (true, rest));
        let format = world.event("test", event).unwrap();
        let result = set.apply(&format, Some(command.as_bytes()), remove, &world);
        let triggers = set.of_event(InstanceId::TOP, "test", event).flat_map(Trigger::read_back).collect();
        let triggers = String::from_utf8(triggers).unwrap();
        let texts = |log: &Log| String::from_utf8(log.texts().concat()).unwrap();
        shown = match result {
            Ok(taken) => format!("{}{triggers}", texts(&taken.log)),
            Err(refusal) => format!("{}\n{}{triggers}", refusal.errno(), texts(refusal.log())),
        };
    }
    shown
}

fn read_back(command: &str) -> String {
    run(&[&format!("start {command}")])
}

#[test]
fn defaults_are_spelled_out() {
    for (command, shown) in [
        ("keys=pid", "hist:keys=pid:vals=hitcount:sort=hitcount:size=2048 [active]\n"),
        (
            "key=pid.hex,comm:val=bytes,hitcount:sort=bytes.descending,pid:size=100 if pid == 1",
            "hist:keys=pid.hex,comm:vals=hitcount,bytes:sort=bytes.descending,pid.hex:size=128 if pid == 1 [active]\n",
        ),
        (
            "keys=stacktrace,common_cpu:vals=bytes:nohitcount:pause",
            "hist:keys=common_stacktrace,common_cpu:vals=bytes:sort=hitcount:size=2048:nohitcount [paused]\n",
        ),
        (
            "keys=bytes.buckets=0x20,prio.log2:values=bytes+prio*2,-(pid)",
            "hist:keys=bytes.buckets=32,prio.log2:vals=hitcount,bytes+prio*2,-(pid):sort=hitcount:size=2048 [active]\n",
        ),
        (
            "name=foo:keys=common_pid.execname:ts=common_timestamp.usecs,x=2*3:clock=mono",
            "hist:name=foo:keys=common_pid.execname:vals=hitcount:ts=common_timestamp.usecs,x=6:sort=hitcount:size=2048:clock=mono [active]\n",
        ),
        (
            "keys=bytes.sym-offset:m=bytes:onmax($m).save(comm,prio):onchange($m).snapshot()",
            "hist:keys=bytes.sym-offset:vals=hitcount:m=bytes:sort=hitcount:size=2048:onmax($m).save(comm,prio):onchange($m).snapshot() [active]\n",
        ),
    ] {
        assert_eq!(read_back(command), shown);
    }
}

#[test]
fn errors() {
    for (command, errno, wording, column) in [
        ("keys=nope", Errno::INVAL, "Couldn't find field", 10),
        ("keys=pid.foo", Errno::INVAL, "Invalid field modifier", 14),
        ("keys=pid:vals=prio.log2", Errno::INVAL, "Invalid field modifier", 19),
        ("keys=pid:x=bytes:x=prio", Errno::INVAL, "Variable already defined", 14),
        ("keys=pid:vals=a+", Errno::INVAL, "", 0),
        ("keys=pid:vals=1x", Errno::INVAL, "Expecting numeric literal", 19),
        ("keys=pid:vals=bytes/0", Errno::DOM, "Division by zero", 25),
        ("keys=pid:vals=comm+1", Errno::INVAL, "String type can not be an operand in expression", 19),
        ("keys=pid:vals=$nope", Errno::INVAL, "Couldn't find variable", 20),
        ("keys=pid:sort=x", Errno::INVAL, "Sort field must be a key or a val", 19),
        ("keys=pid:sort=pid.up", Errno::INVAL, "Invalid sort modifier", 23),
        ("keys=pid:sort=pid,pid,pid", Errno::INVAL, "Too many sort fields (Max = 2)", 14),
        ("keys=pid:nohitcount", Errno::NOENT, "Non-hitcount value is required for 'nohitcount'", 0),
        ("keys=pid:onmatch(a.b).trace(lat,pid)", Errno::INVAL, "Invalid subsystem or event name", 24),
        (
            "keys=pid:onmax(pid).save(comm)",
            Errno::INVAL,
            "For onmax(x) or onchange(x), x must be a variable",
            10,
        ),
        ("keys=pid:onmax($m).save(comm)", Errno::INVAL, "Couldn't find onmax or onchange variable", 16),
        ("keys=pid:clear", Errno::NOENT, "Can't clear or continue a nonexistent hist trigger", 0),
        ("keys=args", Errno::NOMEM, "", 0),
        ("keys=a,b,c,d", Errno::INVAL, "Couldn't find field", 10),
        ("keys=pid,pid,pid,pid", Errno::INVAL, "", 0),
    ] {
        let shown = read_back(command);
        let mut lines = shown.lines();
        let first = lines.next().unwrap_or_default();
        assert_eq!(first, errno.to_string(), "{command}: {shown}");
        if wording.is_empty() {
            assert_eq!(lines.next(), None, "{command}: {shown}");
        } else {
            assert_eq!(lines.next(), Some(&*format!("hist:test:start: error: {wording}")), "{command}");
            assert_eq!(lines.next(), Some(&*format!("  Command: hist:{command}")));
            assert_eq!(lines.next(), Some(&*format!("{:width$}^", "", width = 11 + column)), "{command}");
        }
    }
}

#[test]
fn the_wake_up_latency_of_the_kernels_document() {
    let start = "start keys=pid:ts0=common_timestamp.usecs if prio > 1";
    let end = "end keys=pid:d=common_timestamp.usecs-$ts0:onmatch(test.start).trace(lat,$d,pid,comm)";
    let shown = run(&[start, end]);
    assert_eq!(
        shown,
        "hist:keys=pid:vals=hitcount:d=common_timestamp.usecs-$ts0:sort=hitcount:size=2048:clock=global\
         :onmatch(test.start).trace(lat,$d,pid,comm) [active]\n"
    );
    let gone = run(&[start, end, &start.replacen(' ', " !", 1)]);
    assert!(gone.starts_with("Device or resource busy"), "{gone}");
    let gone = run(&[start, end, &end.replacen(' ', " !", 1), &start.replacen(' ', " !", 1)]);
    assert_eq!(gone, "");
}

#[test]
fn a_field_of_the_other_event_puts_a_histogram_there() {
    let start = "start keys=pid:vals=bytes if prio > 1";
    let end = "end keys=pid:onmatch(test.start).any(start_name)";
    assert!(run(&[start, end]).contains("Couldn't find field"));
    let end = "end keys=pid:d=bytes:onmatch(test.start).lat(test.start.bytes,pid,comm)";
    let shown = run(&[start, end, "start keys=comm"]);
    assert_eq!(
        shown,
        "hist:keys=pid:vals=hitcount,bytes:sort=hitcount:size=2048 if prio > 1 [active]\n\
         hist:keys=pid:vals=hitcount:synthetic_bytes=bytes:sort=hitcount:size=2048 if prio > 1 [active]\n\
         hist:keys=comm:vals=hitcount:sort=hitcount:size=2048 [active]\n"
    );
    let shown = run(&[start, end, &end.replacen(' ', " !", 1), "start keys=comm"]);
    assert_eq!(shown.lines().count(), 2, "{shown}");
}

#[test]
fn names_pauses_and_copies() {
    let shown = run(&["start name=n:keys=pid", "end name=n:keys=pid", "end name=n:keys=pid:pause"]);
    assert_eq!(shown, "hist:name=n:keys=pid:vals=hitcount:sort=hitcount:size=2048 [paused]\n");
    assert!(run(&["start name=n:keys=pid", "end name=n:keys=comm"]).contains("doesn't match existing named"));
    assert!(run(&["start keys=pid", "start keys=pid"]).contains("Hist trigger already exists"));
    assert!(!run(&["start keys=pid", "start keys=pid if prio == 1"]).contains("exists"));
    let shown =
        run(&["start name=n:keys=pid", "end name=n:keys=pid", "start !name=n:keys=pid", "start keys=pid"]);
    assert_eq!(shown, "hist:keys=pid:vals=hitcount:sort=hitcount:size=2048 [active]\n");
}

#[test]
fn a_variable_is_its_fields_text() {
    // The kernel leaves `bytes` of the first expression, and the second variable gets that text.
    assert_eq!(
        read_back("keys=pid:x=bytes-1:y=$x"),
        "hist:keys=pid:vals=hitcount:x=bytes-1,y=bytes:sort=hitcount:size=2048 [active]\n"
    );
}
