//! Compares facts of `tracer_user::kernel` with the running kernel: each fact is read a second time in a way that
//! shares no code with the first. Reading these facts needs root; otherwise the tests print a note and pass.

use std::collections::HashMap;

use tracer_tests::host;
use tracer_user::engine::{facts::Facts, pages};
use tracer_user::event::Format;
use tracer_user::kernel::syscalls::Numbers;
use tracer_user::kernel::{Btf, Symbols, Tracefs};
use tracer_user::plan::raw::{self, Refusal};
use tracer_user::render::KernelFacts as _;

#[test]
fn every_available_event_has_a_format_and_an_id() {
    if !host::root_or_skip() {
        return;
    }
    let tracefs = Tracefs::open().unwrap();
    let events = tracefs.available_events().unwrap();
    let mut count = 0;
    for (system, name) in events.lines().map(|line| line.split_once(':').unwrap()) {
        let text = tracefs.format(system, name).unwrap().expect(name);
        let format = Format::parse(system, &text).unwrap();
        assert_eq!(Some(format.id), tracefs.id(system, name).unwrap(), "{system}:{name}");
        assert_eq!(format.name, name);
        count += 1;
    }
    assert!(count > 500, "{count} events");
}

#[test]
fn every_symbol_is_found_at_its_address() {
    if !host::root_or_skip() {
        return;
    }
    let symbols = Symbols::running().unwrap();
    let text = std::fs::read_to_string("/proc/kallsyms").unwrap();
    let mut names: HashMap<u64, Vec<&str>> = HashMap::new();
    let mut functions = Vec::new();
    for line in text.lines() {
        let mut words = line.split_whitespace();
        let address = u64::from_str_radix(words.next().unwrap(), 16).unwrap();
        let kind = words.next().unwrap();
        let name = words.next().unwrap();
        // Symbols of modules are not in the order of the kernel image.
        if words.next().is_none() {
            names.entry(address).or_default().push(name);
            if kind.eq_ignore_ascii_case("t") {
                functions.push(address);
            }
        }
    }
    let (mut found, all) = (0, functions.len());
    for address in functions {
        // Freed init code has no symbol any more.
        if let Some(symbol) = symbols.lookup(address) {
            // Of several names at one address the first counts.
            assert_eq!((symbol.name, symbol.offset), (names[&address][0], 0), "{address:#x}");
            found += 1;
        }
    }
    assert!(all > 10_000 && found * 10 > all * 9, "{found} of {all} functions");
}

#[test]
fn sizes_and_offsets_are_those_that_the_kernel_prints() {
    if !host::root_or_skip() {
        return;
    }
    let symbols = Symbols::running().unwrap();
    // /proc/PID/stack prints each return address with %pB: the name that covers the byte before it.
    let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
    let mut seen = 0;
    for _ in 0..200 {
        std::thread::sleep(std::time::Duration::from_millis(10));
        let stack = std::fs::read_to_string(format!("/proc/{}/stack", child.id())).unwrap();
        if !stack.contains("nanosleep") {
            continue;
        }
        for line in stack.lines() {
            let text = line.split_whitespace().nth(1).unwrap();
            let (name, rest) = text.split_once('+').unwrap();
            let offset = rest.split_once('/').unwrap().0.trim_start_matches("0x");
            let offset = u64::from_str_radix(offset, 16).unwrap();
            let printed: Vec<String> = symbols
                .addresses(name)
                .into_iter()
                .filter_map(|start| symbols.lookup(start + offset))
                .map(|symbol| symbol.to_string())
                .collect();
            assert!(printed.iter().any(|one| one == text), "{text} not among {printed:?}");
            seen += 1;
        }
        break;
    }
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(seen >= 3, "{seen} lines of a stack");
}

/// The members of a struct according to bpftool: name and offset in bits.
fn bpftool_members(dump: &str, name: &str) -> HashMap<String, u32> {
    let mut members = HashMap::new();
    let head = format!("STRUCT '{name}' size=");
    let mut lines = dump.lines().skip_while(|line| !line.contains(&head)).skip(1);
    while let Some(line) = lines.next().filter(|line| line.starts_with('\t')) {
        let mut parts = line.trim().split('\'');
        let member = parts.nth(1).unwrap().to_owned();
        let offset = line.split("bits_offset=").nth(1).unwrap();
        let offset = offset.split_whitespace().next().unwrap().parse().unwrap();
        members.insert(member, offset);
    }
    members
}

#[test]
fn member_offsets_agree_with_bpftool() {
    let Ok(Some(btf)) = Btf::running() else {
        host::skip("btf", "this kernel shows no BTF");
        return;
    };
    let dump = std::process::Command::new("bpftool")
        .args(["btf", "dump", "file", "/sys/kernel/btf/vmlinux", "format", "raw"])
        .output();
    let Ok(dump) = dump else {
        host::skip("bpftool", "no bpftool");
        return;
    };
    let dump = String::from_utf8(dump.stdout).unwrap();
    let mut compared = 0;
    for name in
        ["task_struct", "trace_event_call", "trace_event_file", "hrtimer", "work_struct", "pt_regs", "file"]
    {
        for (member, bits) in bpftool_members(&dump, name) {
            if member == "(anon)" {
                continue;
            }
            match btf.member(name, &member).unwrap() {
                Some(found) => assert_eq!(found.offset * 8, bits, "{name}.{member}"),
                // Bit fields have no offset in bytes.
                None => assert!(name == "task_struct" || name == "hrtimer", "{name}.{member} not found"),
            }
            compared += 1;
        }
    }
    assert!(compared > 200, "{compared} members");
    assert_eq!(btf.member("task_struct", "no_such_member").unwrap(), None);
    assert_eq!(btf.member("no_such_struct", "x").unwrap(), None);
}

#[test]
fn tracepoints_have_their_arguments() {
    let Ok(Some(btf)) = Btf::running() else {
        host::skip("btf", "this kernel shows no BTF");
        return;
    };
    let switch = btf.tracepoint("sched_switch").unwrap().unwrap();
    let types: Vec<_> = switch.params.iter().map(|param| param.ty.as_str()).collect();
    assert_eq!(types, ["bool", "struct task_struct *", "struct task_struct *", "unsigned int"]);
    assert_eq!(btf.tracepoint("no_such_tracepoint").unwrap(), None);
    // The index finds the same ids as btf-rs itself.
    let all = btf_rs::Btf::from_file("/sys/kernel/btf/vmlinux").unwrap();
    for name in ["task_struct", "pt_regs", "trace_event_file", "hrtimer", "file"] {
        let theirs = all.resolve_ids_by_name(name).unwrap();
        assert!(theirs.contains(&btf.struct_id(name).unwrap().unwrap()), "{name}");
    }
    let theirs = all.resolve_ids_by_name("vfs_read").unwrap();
    assert_eq!(btf.function_id("vfs_read").unwrap(), theirs.first().copied());
}

#[test]
fn every_syscall_event_has_its_number() {
    if !host::root_or_skip() {
        return;
    }
    let tracefs = Tracefs::open().unwrap();
    let btf = Btf::running().unwrap().expect("BTF");
    let numbers = Numbers::new(&btf).unwrap();
    let events = tracefs.available_events().unwrap();
    let mut enter = std::collections::BTreeMap::new();
    for name in events.lines().filter_map(|line| line.strip_prefix("syscalls:sys_enter_")) {
        let number = numbers.of(&tracefs, &format!("sys_enter_{name}")).unwrap().unwrap();
        let exit = numbers.of(&tracefs, &format!("sys_exit_{name}")).unwrap();
        assert_eq!(exit, Some(number), "{name}");
        assert_eq!(enter.insert(number, name), None, "{name}");
    }
    assert!(enter.len() > 250, "{} calls", enter.len());
}

/// A raw plan either fits the kernel's record, or it is refused with a reason.
#[test]
fn raw_plans_fit_or_have_a_reason() {
    if !host::root_or_skip() {
        return;
    }
    let tracefs = Tracefs::open().unwrap();
    let btf = Btf::running().unwrap().expect("BTF");
    let mut planned = Vec::new();
    for (system, name) in raw::listed() {
        let Some(text) = tracefs.format(system, name).unwrap() else {
            eprintln!("{system}:{name}: not here");
            continue;
        };
        let format = Format::parse(system, &text).unwrap();
        match raw::plan(&format, &btf, None) {
            Ok(plan) => {
                assert_eq!(plan.fields.len(), format.fields.len());
                planned.push(name);
            }
            // Newer kernels gave some names a variable length.
            Err(Refusal::Unfit { why, .. }) if why.ends_with("its length varies") => {
                eprintln!("{system}:{name}: {why}");
            }
            Err(other) => panic!("{other}"),
        }
    }
    for name in ["sys_enter", "sys_exit", "sched_switch", "sched_waking", "sched_wakeup", "softirq_entry"] {
        assert!(planned.contains(&name), "{name}: not planned");
    }
}

#[test]
fn every_syscall_event_is_planned_on_raw_arguments() {
    if !host::root_or_skip() {
        return;
    }
    let tracefs = Tracefs::open().unwrap();
    let btf = Btf::running().unwrap().expect("BTF");
    let events = tracefs.available_events().unwrap();
    let mut count = 0;
    for name in events.lines().filter_map(|line| line.strip_prefix("syscalls:")) {
        let format = Format::parse("syscalls", &tracefs.format("syscalls", name).unwrap().unwrap()).unwrap();
        match raw::plan(&format, &btf, Some(7)) {
            Ok(plan) => assert_eq!(plan.fields.len(), format.fields.len(), "{name}"),
            // Kernels after 6.18 add the strings that arguments point to.
            Err(refusal) => assert!(format.is_variable(), "{name}: {refusal}"),
        }
        assert!(raw::plan(&format, &btf, None).is_err());
        count += 1;
    }
    assert!(count > 500, "{count} events");
}

#[test]
fn page_descriptors_begin_where_the_kernel_says() {
    if !host::root_or_skip() {
        return;
    }
    let facts = Facts::running().unwrap();
    let learned = pages::base(&facts).unwrap();
    assert_eq!(pages::base(&facts).unwrap(), learned);
    // The base is page-aligned and in the kernel's half of the address space.
    assert!(learned.is_multiple_of(4096) && learned >> 63 == 1, "{learned:#x}");
    // On x86 the base is a variable. When the kernel exposes its symbol, the variable is read and must have the same
    // value.
    if cfg!(target_arch = "x86_64") {
        let reported = facts.symbols().unwrap().addresses("vmemmap_base").len() == 1;
        println!("vmemmap_base is {}", if reported { "reported" } else { "learned" });
        assert_eq!(facts.variable("vmemmap_base"), Some(learned));
    }
}
