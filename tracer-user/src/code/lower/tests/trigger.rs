//! Lowered triggers, run by the interpreter and compared with a model that follows the kernel's functions one by one
//! (`traceon_count_trigger()`, `event_enable_count_trigger()` and their variants).

use std::mem::{offset_of, size_of};

use tracer_abi::{Switches, halted, requested};

use super::*;
use crate::{
    event::Slot,
    plan::trigger::{Action, Count, Trigger},
};

/// The words that triggers change, in the model.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Words {
    halted: u32,
    soft: [u32; 3],
    counts: [u64; 8],
    paused: [u32; 3],
}

impl Words {
    fn bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; size_of::<Switches>()];
        let mut put = |at: usize, word: &[u8]| bytes[at..at + word.len()].copy_from_slice(word);
        put(offset_of!(Switches, halted), &self.halted.to_le_bytes());
        for (slot, word) in self.soft.iter().enumerate() {
            put(offset_of!(Switches, soft) + 4 * slot, &word.to_le_bytes());
        }
        for (place, word) in self.paused.iter().enumerate() {
            put(offset_of!(Switches, paused) + 4 * place, &word.to_le_bytes());
        }
        for (place, count) in self.counts.iter().enumerate() {
            put(offset_of!(Switches, counts) + 8 * place, &count.to_le_bytes());
        }
        bytes
    }

    /// `count` of the kernel's trigger: returns whether the trigger may act, and decrements the count.
    fn take(&mut self, count: Option<Count>) -> bool {
        let Some(Count { place, .. }) = count else { return true };
        let left = &mut self.counts[usize::from(place)];
        let may = *left != 0;
        *left = left.wrapping_sub(u64::from(may));
        may
    }

    fn act(&mut self, trigger: &Trigger) -> u64 {
        match &trigger.action {
            Action::TraceOn | Action::TraceOff => {
                let on = trigger.action == Action::TraceOn;
                if on != (self.halted & halted::OFF == 0) && self.take(trigger.count) {
                    self.halted ^= halted::OFF;
                }
                0
            }
            Action::Event { slot, enable } => {
                if *enable != (self.soft[slot.index()] == 0) && self.take(trigger.count) {
                    self.soft[slot.index()] ^= 1;
                }
                0
            }
            // `hist_enable_count_trigger()` takes one regardless of the histograms' state.
            Action::Hists { places, enable } => {
                if self.take(trigger.count) {
                    for place in places {
                        self.paused[usize::from(*place)] = u32::from(!enable);
                    }
                }
                0
            }
            Action::Snapshot if self.take(trigger.count) => requested::SNAPSHOT,
            Action::StackTrace if self.take(trigger.count) => requested::STACK,
            _ => 0,
        }
    }
}

fn words() -> impl Strategy<Value = Words> {
    let count = prop_oneof![0_u64..3, Just(1 << 63), Just(u64::MAX - 1)];
    let flags = [0_u32..2, 0_u32..2, 0_u32..2];
    (0_u32..4, flags.clone(), [count.clone(), count.clone(), count.clone(), count], flags).prop_map(
        |(halted, soft, [a, b, c, d], paused)| Words {
            halted,
            soft,
            counts: [a, b, c, d, a, b, c, d],
            paused,
        },
    )
}

fn triggers() -> impl Strategy<Value = Vec<Trigger>> {
    let action = prop_oneof![
        Just(Action::TraceOn),
        Just(Action::TraceOff),
        Just(Action::Snapshot),
        Just(Action::StackTrace),
        (0_u32..3, any::<bool>()).prop_map(|(slot, enable)| Action::Event { slot: Slot::new(slot), enable }),
        (prop::collection::vec(0_u16..3, 0..3), any::<bool>())
            .prop_map(|(places, enable)| Action::Hists { places, enable }),
    ];
    let one = (action, any::<bool>(), prop::option::of(filters(test())));
    prop::collection::vec(one, 0..6).prop_map(|list| {
        let planned = |(place, (action, counted, filter)): (u16, (Action, bool, Option<Filter>))| Trigger {
            action,
            count: counted.then_some(Count { place, limited: true }),
            filter,
        };
        (0..).zip(list).map(planned).collect()
    })
}

#[test]
fn triggers_agree_with_the_model() {
    let acted = std::cell::Cell::new(0);
    let case = (triggers(), prop::collection::vec((given(), words()), 6));
    runner(400)
        .run(&case, |(mut triggers, cases)| {
            for (given, mut words) in cases {
                for trigger in &mut triggers {
                    if let Some(count) = &mut trigger.count {
                        count.limited = words.counts[usize::from(count.place)] < 1 << 63;
                    }
                }
                let code = trigger(&triggers, &ProgramContext::Tracepoint).unwrap();
                checked(&code, &[Argument::Context(8), Argument::Memory, Argument::Number, Argument::Memory]);
                let mut machine = given.machine();
                let mut context = given.record();
                context.resize(0x20_000, 0);
                let ctx = machine.map(Access::Context(FIXED), &context);
                let scratch = machine.map(Access::Memory, &vec![b'a'; tracer_abi::FILTER_AREA]);
                let switches = machine.map(Access::Memory, &words.bytes());
                let before = words.clone();
                let mut expected = 0;
                for trigger in &triggers {
                    if trigger.filter.as_ref().is_none_or(|filter| given.expected(filter)) {
                        expected |= words.act(trigger);
                    }
                }
                let arguments = [ctx, scratch, u64::from_le_bytes(given.common), switches];
                let answer = run(&mut machine, &code.functions, &arguments);
                let told = format!("{triggers:?} on {before:?}\n{}", listing::functions(&code.functions));
                prop_assert_eq!(answer, expected, "{}", told);
                prop_assert!(machine.bytes(switches) == words.bytes(), "{:?} expected of {}", words, told);
                acted.update(|seen| seen + u32::from(words != before));
            }
            Ok(())
        })
        .unwrap();
    assert!(acted.get() > 400, "words change often: {}", acted.get());
}

#[test]
fn callbacks_have_names_of_their_own() {
    let text = Text::Dyn { offset: 88 };
    let wanted = Filter::Test(Test::Text { text, pattern: Pattern::Middle(b"ab".into()), not: false });
    let list = [Trigger { action: Action::TraceOn, count: None, filter: Some(wanted.clone()) }];
    let names = |code: Code| code.functions.into_iter().map(|function| function.name).collect::<Vec<_>>();
    let triggers = names(trigger(&list, &ProgramContext::Tracepoint).unwrap());
    let filters = names(filter(&wanted, &ProgramContext::Tracepoint).unwrap());
    assert_eq!(triggers.len(), 2);
    assert!(triggers.iter().all(|name| !filters.contains(name)), "{triggers:?} and {filters:?}");
}
