//! Makes planned changes of an event, and takes back what belongs to a refused one.
//!
//! The steps that call the kernel are behind a trait. A stand-in refuses steps in the tests.

use super::plan::Change;
use crate::engine::command::error::CommandError;

/// The steps of the changes of an event in an instance. An `attach`, `replace` or `link_eprobe` that fails changes
/// nothing.
pub(super) trait EventOperations {
    fn attach(&mut self, begins_off: bool) -> Result<(), CommandError>;
    fn detach(&mut self);
    fn replace(&mut self) -> Result<(), CommandError>;
    /// As [`Change::Arrange`]. A refused probe does not keep the event's other probes from their changes.
    fn arrange(&mut self) -> Result<(), CommandError>;
    fn set_off(&mut self, off: bool);
    /// Stores whether the event is enabled. Returns whether it was not so before.
    fn set_enabled(&mut self, on: bool) -> bool;
    /// Adds or removes the references of an event probe to its target events. A removal that fails is done.
    fn link_eprobe(&mut self, on: bool) -> Result<(), CommandError>;
    /// Updates the programs that have the event as their dependent.
    fn propagate(&mut self) -> Result<(), CommandError>;
    /// Replaces the programs of the triggers that enable or disable the event, which may be its own, if it has another
    /// slot now.
    fn follow_slot(&mut self) -> Result<(), CommandError>;
}

/// Makes the changes of an event, up to the first that is refused. A refused probe does not keep the event's other
/// probes from their changes.
pub(super) fn apply(event: &mut impl EventOperations, changes: &[Change]) -> Result<(), CommandError> {
    let mut refused = Ok(());
    for change in changes {
        match change {
            Change::Attach { begins_off } => {
                event.attach(*begins_off)?;
                enable(event)?;
                event.follow_slot()?;
            }
            Change::SetOff(off) => event.set_off(*off),
            Change::Replace => {
                event.replace()?;
                event.propagate()?;
            }
            Change::Arrange => {
                refused = event.arrange();
                refused = refused.and(event.follow_slot());
            }
            Change::MakeIdle => {
                event.detach();
                event.set_enabled(true);
                event.propagate()?;
            }
            Change::Detach => {
                event.detach();
                let linked = if event.set_enabled(false) { event.link_eprobe(false) } else { Ok(()) };
                linked.and(event.propagate())?;
            }
        }
    }
    refused
}

/// Enables an event whose programs were attached. If a step is refused, the event is detached.
fn enable(event: &mut impl EventOperations) -> Result<(), CommandError> {
    let is_new = event.set_enabled(true);
    let linked = if is_new { event.link_eprobe(true) } else { Ok(()) };
    let is_linked = is_new && linked.is_ok();
    let done = linked.and_then(|()| event.propagate());
    if done.is_err() {
        // The first error is returned.
        if is_linked {
            let _ = event.link_eprobe(false);
        }
        event.set_enabled(false);
        event.detach();
        let _ = event.propagate();
    }
    done
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::engine::{
        attachments::plan::{
            AttachedState, Mode, ProbeState, SoftMode, Wanted, WantedProbe, plan,
            tests::{goal, soft},
        },
        command::error::ErrorKind,
    };

    type State = AttachedState<u8>;

    /// A stand-in for an instance and the kernel.
    #[derive(Clone, Debug)]
    struct Fake {
        wanted: Wanted<u8>,
        enabled: bool,
        /// The attached programs, which are off or on.
        programs: Option<State>,
        /// References of an event probe.
        links: i32,
        /// The settings with which dependents know the event.
        propagated: Option<u8>,
        /// Whether the next steps are refused, the last first.
        refusals: Vec<bool>,
        /// The programs at each moment.
        seen: Vec<State>,
    }

    impl Fake {
        fn new(state: &State, wanted: &Wanted<u8>) -> Self {
            let enabled = state.mode != Mode::Disabled;
            let programs = state.mode.has_program().then(|| state.clone());
            Self {
                wanted: wanted.clone(),
                enabled,
                propagated: state.settings,
                links: i32::from(enabled),
                seen: vec![programs.clone().unwrap_or_default()],
                refusals: Vec::new(),
                programs,
            }
        }

        fn state(&self) -> State {
            let idle = State { mode: Mode::Idle, ..State::default() };
            if self.enabled { self.programs.clone().unwrap_or(idle) } else { State::default() }
        }

        fn step(&mut self) -> Result<(), CommandError> {
            if self.refusals.pop() == Some(true) { Err(ErrorKind::Busy.into()) } else { Ok(()) }
        }

        fn change(&mut self, change: impl FnOnce(&mut State)) {
            change(self.programs.as_mut().unwrap());
            self.seen.extend(self.programs.clone());
        }

        fn reconcile(&mut self) -> Result<Vec<Change>, CommandError> {
            let changes = plan(&self.wanted, &self.state());
            apply(self, &changes).map(|()| changes)
        }
    }

    impl EventOperations for Fake {
        fn attach(&mut self, begins_off: bool) -> Result<(), CommandError> {
            self.step()?;
            assert!(self.programs.is_none(), "attached twice");
            let mode = if begins_off { Mode::Off } else { Mode::On };
            self.programs = Some(State { mode, probes: Vec::new(), settings: self.wanted.settings });
            for probe in made(&self.wanted) {
                self.change(|programs| programs.probes.push(probe));
            }
            Ok(())
        }

        fn detach(&mut self) {
            self.programs = None;
            self.seen.push(State::default());
        }

        fn replace(&mut self) -> Result<(), CommandError> {
            self.step()?;
            let settings = self.wanted.settings;
            self.change(|programs| programs.settings = settings);
            Ok(())
        }

        fn arrange(&mut self) -> Result<(), CommandError> {
            self.step()?;
            let (made, settings) = (made(&self.wanted), self.wanted.settings);
            for probe in made.iter().filter(|probe| probe.1 == ProbeState::Attached) {
                self.change(|programs| {
                    if !programs.probes.contains(probe) {
                        programs.probes.push(*probe);
                    }
                });
            }
            self.change(|programs| programs.settings = settings);
            self.change(|programs| programs.probes = made);
            Ok(())
        }

        fn set_off(&mut self, off: bool) {
            self.change(|programs| programs.mode = if off { Mode::Off } else { Mode::On });
        }

        fn set_enabled(&mut self, on: bool) -> bool {
            std::mem::replace(&mut self.enabled, on) != on
        }

        fn link_eprobe(&mut self, on: bool) -> Result<(), CommandError> {
            let done = self.step();
            if done.is_ok() || !on {
                self.links += if on { 1 } else { -1 };
            }
            done
        }

        fn propagate(&mut self) -> Result<(), CommandError> {
            self.step()?;
            self.propagated = self.programs.as_ref().and_then(|programs| programs.settings);
            Ok(())
        }

        fn follow_slot(&mut self) -> Result<(), CommandError> {
            self.step()
        }
    }

    /// Number of programs that record a hit of a probe.
    fn recorded(state: &State, serial: u64) -> usize {
        let attached = state.probes.iter().filter(|probe| **probe == (serial, ProbeState::Attached));
        if state.mode == Mode::On { attached.count() } else { 0 }
    }

    /// The attached probes after they were made from nothing.
    fn made(wanted: &Wanted<u8>) -> Vec<(u64, ProbeState)> {
        let state = |waits| if waits == Some(true) { ProbeState::Waits } else { ProbeState::Attached };
        wanted.probes.iter().map(|probe| (probe.serial, state(probe.waits))).collect()
    }

    /// What is wanted in a mode.
    fn wanted(is: &State, mode: Mode, mut probes: Vec<WantedProbe>, settings: u8) -> Wanted<u8> {
        if !mode.has_program() {
            return Wanted { mode, probes: Vec::new(), settings: None };
        }
        // The kernel attaches a probe of which nothing is known. What waited goes on waiting.
        for probe in &mut probes {
            let was = is.probes.iter().find(|(serial, _)| *serial == probe.serial);
            probe.waits = probe.waits.or(was.map(|(_, state)| *state == ProbeState::Waits));
        }
        Wanted { mode, probes, settings: Some(settings) }
    }

    fn build(wanted: &Wanted<u8>) -> State {
        let mut fake = Fake::new(&State::default(), wanted);
        fake.reconcile().unwrap();
        fake.state()
    }

    fn serials() -> impl Strategy<Value = Vec<u64>> {
        proptest::sample::subsequence(vec![1, 2, 3, 4, 5], 0..=5).prop_shuffle()
    }

    /// Any attached state: of an event with or without probes.
    fn attached() -> impl Strategy<Value = State> {
        let mode = prop_oneof![Just(Mode::Disabled), Just(Mode::Idle), Just(Mode::Off), Just(Mode::On)];
        let settings = proptest::option::weighted(0.9, 0..3_u8);
        let state = prop_oneof![Just(ProbeState::Attached), Just(ProbeState::Waits)];
        (mode, serials(), proptest::collection::vec(state, 5), settings).prop_map(
            |(mode, serials, states, settings)| match mode {
                Mode::Disabled | Mode::Idle => State { mode, ..State::default() },
                mode => State { mode, probes: serials.into_iter().zip(states).collect(), settings },
            },
        )
    }

    fn wanted_probes() -> impl Strategy<Value = Vec<WantedProbe>> {
        (serials(), proptest::collection::vec(any::<Option<bool>>(), 5)).prop_map(|(serials, waits)| {
            serials.into_iter().zip(waits).map(|(serial, waits)| WantedProbe { serial, waits }).collect()
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4000))]

        #[test]
        fn any_state_reaches_any_other_and_each_hit_is_recorded_once(
            first in attached(),
            goal in goal(),
            soft in soft(),
            probes in wanted_probes(),
            settings in 0..3_u8,
        ) {
            let wanted = wanted(&first, first.mode.after(goal, soft), probes, settings);
            let changes = plan(&wanted, &first);
            for done in 0..=changes.len() {
                // The rest may be planned anew, because the change before it was refused.
                let mut fake = Fake::new(&first, &wanted);
                apply(&mut fake, &changes[..done]).unwrap();
                fake.reconcile().unwrap();
                prop_assert_eq!(fake.state(), build(&wanted));
                prop_assert_eq!(fake.reconcile().unwrap(), vec![]);
            }
            let mut fake = Fake::new(&first, &wanted);
            apply(&mut fake, &changes).unwrap();
            let (state, seen) = (fake.state(), fake.seen);
            for serial in 1..=5 {
                let ends = [recorded(&first, serial), recorded(&state, serial)];
                for step in &seen {
                    let hits = recorded(step, serial);
                    prop_assert!(hits <= 1, "a hit of {serial} is recorded twice: {seen:?}");
                    prop_assert!(hits == 1 || ends != [1, 1], "a hit of {serial} is lost: {seen:?}");
                    prop_assert!(hits == 0 || ends != [0, 0], "a hit of {serial} is recorded: {seen:?}");
                    // An event that begins to be recorded is recorded as wanted, and one that ends as before.
                    let (begins, ends) = (first.mode != Mode::On, state.mode != Mode::On);
                    prop_assert!(hits == 0 || !begins || step.settings == wanted.settings, "{seen:?}");
                    prop_assert!(hits == 0 || !ends || step.settings == first.settings, "{seen:?}");
                }
            }
        }

        #[test]
        fn a_refused_step_leaves_nothing_behind(
            steps in proptest::collection::vec(
                (goal(), soft(), wanted_probes(), 0..3_u8, proptest::collection::vec(any::<bool>(), 0..8)),
                1..6,
            ),
        ) {
            let mut fake = Fake::new(&State::default(), &wanted(&State::default(), Mode::Disabled, vec![], 0));
            for (goal, soft, probes, settings, refusals) in steps {
                // Event probes, whose references are counted, are never idle.
                let soft = if soft == SoftMode::OwnPrograms { SoftMode::Needed } else { soft };
                let is = fake.state();
                fake.wanted = wanted(&is, is.mode.after(goal, soft), probes, settings);
                fake.refusals = refusals;
                let done = fake.reconcile();
                prop_assert_eq!(fake.links, i32::from(fake.enabled), "a reference leaks: {:?}", fake);
                prop_assert_eq!(fake.programs.is_some(), fake.enabled, "programs leak: {:?}", fake);
                if let Ok(changes) = done {
                    let is_told = |change: &Change| !matches!(change, Change::SetOff(_) | Change::Arrange);
                    let known = fake.programs.as_ref().and_then(|programs| programs.settings);
                    prop_assert!(!changes.iter().any(is_told) || fake.propagated == known, "{fake:?}");
                }
                // The command that was refused is tried again.
                let mut again = fake.clone();
                again.refusals.clear();
                again.wanted = wanted(&fake.state(), fake.wanted.mode, fake.wanted.probes.clone(), settings);
                again.reconcile().unwrap();
                prop_assert_eq!(again.state(), build(&again.wanted));
                prop_assert_eq!(again.reconcile().unwrap(), vec![]);
            }
        }
    }
}
