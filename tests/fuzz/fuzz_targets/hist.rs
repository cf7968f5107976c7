//! Fuzzes the languages of histograms and synthetic events. The target checks that nothing panics, that every error
//! renders, that a listed definition keeps its meaning when it is read back, and that tables can be shown.
//!
//! The first byte chooses the features of the language. The remaining bytes are lines. A leading `!` removes, `@`
//! applies the command to the second event, and `#` marks a line of `synthetic_events`.
#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use tracer_user::lang::hist::{Dialect, Feature, Fixed, Set, World};
use tracer_user::lang::synth::File;
use tracer_user::plan::hist::Layout;
use tracer_user::render::hist::{Table, show};

static WORLD: LazyLock<Fixed> = LazyLock::new(Fixed::small);

fuzz_target!(|data: &[u8]| {
    let Some((mask, written)) = data.split_first() else { return };
    let mut world = WORLD.clone();
    let absent = Feature::ALL.into_iter().enumerate().filter(|(at, _)| mask & (1 << at) != 0);
    world.dialect = absent.fold(Dialect::newest(), |dialect, (_, feature)| dialect.without(feature));
    let mut set = Set::default();
    for line in written.split(|byte| *byte == b'\n').take(16) {
        if let [b'#', definition @ ..] = line {
            if let Err(refusal) = world.synthetic.apply(definition, File::Synthetic) {
                let _ = (refusal.log_entry(), refusal.to_string());
            }
            continue;
        }
        let (remove, line) = line.strip_prefix(b"!").map_or((false, line), |line| (true, line));
        let (name, line) = line.strip_prefix(b"@").map_or(("start", line), |line| ("end", line));
        let event = world.event("test", name).unwrap();
        match set.apply(&event, Some(line), remove, &world) {
            Ok(taken) => drop(taken.log.texts()),
            Err(refusal) => drop((refusal.log().texts(), refusal.to_string())),
        }
    }
    for trigger in set.triggers() {
        let layout = Layout::of(&trigger.hist);
        let bytes = |size: usize| written.iter().copied().cycle().take(size).collect::<Vec<u8>>();
        let rows = vec![(bytes(layout.key_size), bytes(layout.size)); 3];
        let mut out = Vec::new();
        show(&mut out, trigger, &Table { rows, hits: 3, drops: 0, snapshot: None }, 0, &());
    }
    let _ = world.synthetic.listing(File::Dynamic);
});
