//! Stacks as the kernel records them: without the functions between the hook and the tracer (`STACK_SKIP`,
//! kernel/trace/trace_events_trigger.c).

/// Offsets of the addresses and of their number (`struct stack_entry`).
const ADDRESSES: usize = 16;
const COUNT: usize = 8;
/// Maximum number of functions between a program's helper call for its stack and the function with the hook.
const DEEP: usize = 8;
/// Prefixes of the names of these functions.
const HOOKS: [&str; 4] = ["bpf_", "__bpf_", "perf_syscall_", "perf_trace_"];

/// Removes the innermost functions of a stack record, up to the last one that belongs to a hook.
pub(crate) fn without_hook(payload: &[u8], name: impl Fn(u64) -> Option<String>) -> Vec<u8> {
    let (head, addresses) = payload.split_at(ADDRESSES.min(payload.len()));
    let (addresses, _) = addresses.as_chunks();
    let addresses: Vec<u64> = addresses.iter().copied().map(u64::from_ne_bytes).collect();
    let of_hook =
        |address: &u64| name(*address).is_some_and(|name| HOOKS.iter().any(|hook| name.starts_with(hook)));
    let hooks = addresses.iter().take(DEEP).rposition(of_hook).map_or(0, |last| last + 1);
    let kept = addresses.get(hooks..).unwrap_or_default();
    let mut record = head.to_vec();
    if let Some(count) = record.get_mut(COUNT..COUNT + 4) {
        count.copy_from_slice(&(kept.len() as u32).to_ne_bytes());
    }
    record.extend(kept.iter().flat_map(|address| address.to_ne_bytes()));
    record
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_functions_of_the_hook_are_removed() {
        let record = |addresses: &[u64]| {
            let mut record = vec![4, 0, 0, 0, 9, 0, 0, 0];
            record.extend((addresses.len() as u32).to_ne_bytes());
            record.extend([0; 4]);
            record.extend(addresses.iter().flat_map(|address| address.to_ne_bytes()));
            record
        };
        let name = |address| match address {
            1 => None,
            2 => Some("bpf_trace_run2".to_owned()),
            3 => Some("__bpf_trace_task_rename".to_owned()),
            _ => Some("vfs_read".to_owned()),
        };
        assert_eq!(without_hook(&record(&[1, 2, 3, 7, 8]), name), record(&[7, 8]));
        assert_eq!(without_hook(&record(&[7, 8, 1]), name), record(&[7, 8, 1]));
        // Deeper in the stack, these functions were traced themselves.
        let deep = [7, 7, 7, 7, 7, 7, 7, 7, 7, 2, 7];
        assert_eq!(without_hook(&record(&deep), name), record(&deep));
        assert_eq!(without_hook(&record(&[]), name), record(&[]));
    }
}
