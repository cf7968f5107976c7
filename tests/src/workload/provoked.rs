//! The events that a part of the workload provokes, with their counts.

/// How often a round of a part provokes an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Count {
    /// Exactly this often.
    Exactly(u64),
    /// This often or more: the C library or the kernel may add hits. 0 is for events that depend on the machine or on
    /// timing.
    AtLeast(u64),
}

/// One event that a part provokes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Provoked {
    /// `system:name`.
    pub event: String,
    /// How often in one round, over the workload's process and its children.
    pub count: Count,
}

/// Events with exact counts.
pub(super) fn exactly(list: &[(&str, u64)]) -> Vec<Provoked> {
    let one = |(event, n): &(&str, u64)| Provoked { event: (*event).to_owned(), count: Count::Exactly(*n) };
    list.iter().map(one).collect()
}

/// Events with minimum counts.
pub(super) fn at_least(list: &[(&str, u64)]) -> Vec<Provoked> {
    let one = |(event, n): &(&str, u64)| Provoked { event: (*event).to_owned(), count: Count::AtLeast(*n) };
    list.iter().map(one).collect()
}

/// `sys_enter_X` and `sys_exit_X`, each with this count.
pub(super) fn syscalls(list: &[(&str, Count)]) -> Vec<Provoked> {
    list.iter()
        .flat_map(|(name, count)| {
            ["enter", "exit"]
                .map(|side| Provoked { event: format!("syscalls:sys_{side}_{name}"), count: *count })
        })
        .collect()
}
