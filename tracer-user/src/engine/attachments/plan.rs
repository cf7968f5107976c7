//! Plans how the programs of an event get from their attached state to the wanted one. Nothing here calls the kernel,
//! so generated states test it.
//!
//! An event counts as enabled while user space enables it or triggers may enable it (soft mode). A word in the kernel
//! says whether an enabled event is recorded. User space and triggers change it. If all references for soft mode have
//! programs of their own, a disabled event needs none.
//!
//! The order of an event's changes records each hit once. Programs with new settings are in place before the event is
//! recorded, and an event that is disabled records nothing with them. New probes are attached before others are
//! detached ([`Change::Arrange`]).

/// Whether and how an event is attached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Not enabled: nothing is attached.
    #[default]
    Disabled,
    /// Enabled and not recorded. Nothing is attached, because the programs of others do all the work.
    Idle,
    /// Enabled and not recorded. Its triggers run.
    Off,
    /// Enabled and recorded.
    On,
}

/// The goal of a command for its events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Goal {
    /// The events are recorded.
    On,
    /// User space disables the events. Triggers may enable them.
    Off,
    /// The events stay enabled or disabled.
    Unchanged,
}

/// The references for soft mode of an event.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum SoftMode {
    /// There are none.
    #[default]
    Unused,
    /// All of them have programs of their own.
    OwnPrograms,
    /// One of them needs the event's program.
    Needed,
}

impl Mode {
    /// The wanted mode of an event that is in this mode.
    pub(crate) fn after(self, goal: Goal, soft: SoftMode) -> Self {
        let disabled = match soft {
            SoftMode::Unused => Self::Disabled,
            SoftMode::OwnPrograms => Self::Idle,
            SoftMode::Needed => Self::Off,
        };
        match (goal, self) {
            (Goal::On, _) | (Goal::Unchanged, Self::On) => Self::On,
            _ => disabled,
        }
    }

    /// Whether the event has programs.
    pub(crate) fn has_program(self) -> bool {
        matches!(self, Self::Off | Self::On)
    }
}

/// The wanted state of an event. `S` is what its programs do with a hit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Wanted<S> {
    pub(crate) mode: Mode,
    /// The probes of a dynamic event, in the order of their definition; empty for other events.
    pub(crate) probes: Vec<WantedProbe>,
    /// `None` if they are not compared, because the event has no programs or gets its first ones.
    pub(crate) settings: Option<S>,
}

impl<S> Wanted<S> {
    /// Programs that are attached or not, and never soft-disabled: relays, histograms, the triggers of marks.
    pub(crate) fn part(is_wanted: bool, probes: Vec<WantedProbe>, settings: S) -> Self {
        Self { mode: if is_wanted { Mode::On } else { Mode::Disabled }, probes, settings: Some(settings) }
    }
}

/// A wanted probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WantedProbe {
    /// The serial number of its definition.
    pub(crate) serial: u64,
    /// Whether it waits for its module. `None` if this is not known.
    pub(crate) waits: Option<bool>,
}

/// Whether a probe of an attached event is attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProbeState {
    /// It is attached.
    Attached,
    /// It waits for its module.
    Waits,
    /// The kernel refused it.
    Refused,
}

impl WantedProbe {
    /// Stands for the program of an event without probes.
    pub(crate) const ONLY: Self = Self { serial: 0, waits: None };

    /// Whether a probe is as wanted. A refused one is tried again after its module was unloaded, and when the event's
    /// other probes change.
    pub(crate) fn is(self, state: ProbeState) -> bool {
        match (state, self.waits) {
            (_, None) => true,
            (state, Some(waits)) => waits == (state == ProbeState::Waits),
        }
    }
}

/// The attached state of an event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AttachedState<S> {
    pub(crate) mode: Mode,
    /// The probes of a dynamic event, by serial number.
    pub(crate) probes: Vec<(u64, ProbeState)>,
    /// `None` if the programs have different settings, because a change failed.
    pub(crate) settings: Option<S>,
}

/// A change of an event's programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// Attach the programs, soft-disabled at first or not.
    Attach { begins_off: bool },
    /// Set or clear the word that keeps the event from being recorded.
    SetOff(bool),
    /// Replace the programs by those with the wanted settings.
    Replace,
    /// Attach the new probes, replace the programs of those that stay, and detach the others.
    Arrange,
    /// Detach the programs of an event that stays enabled.
    MakeIdle,
    /// Detach the event.
    Detach,
}

/// Plans the changes of an event.
pub(crate) fn plan<S: PartialEq>(wanted: &Wanted<S>, is: &AttachedState<S>) -> Vec<Change> {
    match (is.mode, wanted.mode) {
        (Mode::Disabled, Mode::Disabled) | (Mode::Idle, Mode::Idle) => Vec::new(),
        (_, Mode::Disabled) => vec![Change::Detach],
        (_, Mode::Idle) => vec![Change::MakeIdle],
        (Mode::Disabled | Mode::Idle, to) => vec![Change::Attach { begins_off: to == Mode::Off }],
        (from, to) => {
            let is_same = |(wanted, (serial, state)): (&WantedProbe, &(u64, ProbeState))| {
                wanted.serial == *serial && wanted.is(*state)
            };
            let same_probes =
                wanted.probes.len() == is.probes.len() && wanted.probes.iter().zip(&is.probes).all(is_same);
            let same_settings = is.settings.is_some() && is.settings == wanted.settings;
            let programs = match (same_probes, same_settings) {
                (false, _) => Some(Change::Arrange),
                (true, false) => Some(Change::Replace),
                (true, true) => None,
            };
            let before = (from != to && to == Mode::Off).then_some(Change::SetOff(true));
            let after = (from != to && to == Mode::On).then_some(Change::SetOff(false));
            before.into_iter().chain(programs).chain(after).collect()
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use proptest::prelude::*;

    use super::*;

    type State = AttachedState<u8>;

    impl Default for State {
        fn default() -> Self {
            Self { mode: Mode::Disabled, probes: Vec::new(), settings: None }
        }
    }

    pub(crate) fn soft() -> impl Strategy<Value = SoftMode> {
        prop_oneof![Just(SoftMode::Unused), Just(SoftMode::OwnPrograms), Just(SoftMode::Needed)]
    }

    pub(crate) fn goal() -> impl Strategy<Value = Goal> {
        prop_oneof![Just(Goal::On), Just(Goal::Off), Just(Goal::Unchanged)]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4000))]

        #[test]
        fn the_mode_depends_on_the_last_goal_and_the_references(
            steps in proptest::collection::vec((goal(), soft()), 1..8),
        ) {
            let mut mode = Mode::Disabled;
            let mut is_on = false;
            for (goal, soft) in steps {
                mode = mode.after(goal, soft);
                is_on = match goal {
                    Goal::On => true,
                    Goal::Off => false,
                    Goal::Unchanged => is_on,
                };
                prop_assert_eq!(mode == Mode::On, is_on);
                prop_assert_eq!(mode == Mode::Disabled, !is_on && soft == SoftMode::Unused);
                prop_assert_eq!(mode == Mode::Idle, !is_on && soft == SoftMode::OwnPrograms);
                prop_assert_eq!(mode.after(Goal::Unchanged, soft), mode);
            }
        }
    }

    #[test]
    fn user_space_turns_events_on_and_off() {
        let state = |mode| State { mode, settings: Some(1), probes: Vec::new() };
        let planned = |mode: Mode, goal, soft| {
            let to = mode.after(goal, soft);
            plan(&Wanted { mode: to, settings: Some(1), probes: Vec::new() }, &state(mode))
        };
        let attach = |begins_off| vec![Change::Attach { begins_off }];
        assert_eq!(planned(Mode::Disabled, Goal::On, SoftMode::Unused), attach(false));
        assert_eq!(planned(Mode::On, Goal::On, SoftMode::Unused), []);
        assert_eq!(planned(Mode::Idle, Goal::On, SoftMode::OwnPrograms), attach(false));
        assert_eq!(planned(Mode::Off, Goal::On, SoftMode::Needed), [Change::SetOff(false)]);
        assert_eq!(planned(Mode::On, Goal::Off, SoftMode::Unused), [Change::Detach]);
        assert_eq!(planned(Mode::On, Goal::Off, SoftMode::Needed), [Change::SetOff(true)]);
        assert_eq!(planned(Mode::On, Goal::Off, SoftMode::OwnPrograms), [Change::MakeIdle]);
        assert_eq!(planned(Mode::Disabled, Goal::Off, SoftMode::Unused), []);
    }

    #[test]
    fn a_refused_probe_is_tried_again_with_others() {
        let wanted = |serials: &[u64]| Wanted {
            mode: Mode::On,
            probes: serials
                .iter()
                .map(|serial| WantedProbe { serial: *serial, waits: Some(false) })
                .collect(),
            settings: Some(1),
        };
        let probes = vec![(1, ProbeState::Attached), (2, ProbeState::Refused)];
        let is = State { mode: Mode::On, probes, settings: Some(1) };
        assert_eq!(plan(&wanted(&[1, 2]), &is), []);
        for serials in [&[1, 2, 3][..], &[2], &[1]] {
            assert_eq!(plan(&wanted(serials), &is), [Change::Arrange]);
        }
        assert_eq!(plan(&Wanted { settings: Some(2), ..wanted(&[1, 2]) }, &is), [Change::Replace]);
        let mut unloaded = wanted(&[1, 2]);
        unloaded.probes[1].waits = Some(true);
        assert_eq!(plan(&unloaded, &is), [Change::Arrange]);
        unloaded.probes[1].waits = None;
        assert_eq!(plan(&unloaded, &is), []);
    }

    #[test]
    fn references_for_soft_mode_come_and_go() {
        let planned = |mode: Mode, soft| {
            let to = mode.after(Goal::Unchanged, soft);
            plan(
                &Wanted { mode: to, settings: Some(1), probes: Vec::new() },
                &State { mode, settings: Some(1), probes: Vec::new() },
            )
        };
        assert_eq!(planned(Mode::Disabled, SoftMode::Needed), [Change::Attach { begins_off: true }]);
        assert_eq!(planned(Mode::Disabled, SoftMode::OwnPrograms), [Change::MakeIdle]);
        assert_eq!(planned(Mode::Idle, SoftMode::OwnPrograms), []);
        assert_eq!(planned(Mode::Idle, SoftMode::Needed), [Change::Attach { begins_off: true }]);
        assert_eq!(planned(Mode::Idle, SoftMode::Unused), [Change::Detach]);
        assert_eq!(planned(Mode::Off, SoftMode::OwnPrograms), [Change::MakeIdle]);
        assert_eq!(planned(Mode::Off, SoftMode::Unused), [Change::Detach]);
        assert_eq!(planned(Mode::On, SoftMode::Needed), []);
        assert_eq!(planned(Mode::On, SoftMode::Unused), []);
    }
}
