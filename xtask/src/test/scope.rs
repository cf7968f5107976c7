//! The tests that a run executes in a machine: all that concern kernels, or a core of them.
//!
//! The core is part of each change's tests. It has one or two tests of every module whose results depend on a feature of
//! the kernel that a host may lack: kprobes, fprobes, the kernel's own histograms and synthetic events, modules, and the
//! names of tasks. In an emulated machine it takes three to five minutes.

use super::binaries::TestProcess;

/// The tests of the core, `GROUP::MODULE::TEST`.
pub(super) const CORE: &[&str] = &[
    "api::kprobe::generated_kprobes_trace_calls",
    "events::trigger_differential::dynamic_events_have_triggers",
    "events::trigger_hist::histograms_and_triggers_of_one_event_agree_with_the_kernel",
    "hist::counts::tables_are_the_kernels",
    "hist::differential::definitions_are_answered_alike",
    "language::hist::sequences_mean_the_same",
    "mirror::exec::trace_cmd_lists_records_and_reports",
    "mirror::modules::events_come_and_go_with_their_module",
    "probes::kernel::a_glob_names_many_functions",
    "probes::kernel::function_events_record_calls",
    "probes::kernel::profiles_and_filters_of_kprobes",
    "probes::modules::functions_of_modules_leave_the_kernels_texts",
    "probes::symbols::names_are_accepted_and_refused_as_in_the_kernel",
    "probes::values::random_arguments_of_fprobes_are_equal",
];

/// Modules that test only parsers with generated inputs. They run only on the host, because they take minutes on an
/// emulated machine.
const NOT_OF_KERNEL: &[&str] = &["record::render_frozen", "trust::hostile_input"];

/// The tests of a machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Scope {
    /// Those of [`CORE`].
    Core,
    /// All that concern kernels.
    Whole,
}

impl Scope {
    /// Whether a process has tests of this scope.
    pub(super) fn has(self, process: &TestProcess<'_>) -> bool {
        self.has_module(&process.name())
    }

    /// Whether a module has tests of this scope.
    pub(super) fn has_module(self, module: &str) -> bool {
        match self {
            Self::Core => core_of(module).next().is_some(),
            Self::Whole => !NOT_OF_KERNEL.contains(&module),
        }
    }

    /// Arguments of the test harness that select the tests of a process whose names contain one of `words`; all of
    /// this scope without words.
    pub(super) fn arguments(self, process: &TestProcess<'_>, words: &[String]) -> Vec<String> {
        match self {
            Self::Core if words.is_empty() => {
                let name = process.name();
                std::iter::once("--exact").chain(core_of(&name)).map(str::to_owned).collect()
            }
            _ => process.arguments(words),
        }
    }
}

/// The tests of the core in a module, as the harness names them: `MODULE::TEST`.
fn core_of(module: &str) -> impl Iterator<Item = &'static str> {
    CORE.iter().filter_map(move |test| {
        let (of, _) = test.rsplit_once("::")?;
        test.split_once("::").filter(|_| of == module).map(|(_, name)| name)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host;
    use crate::test::binaries::{Built, TestBinary};
    use crate::test::selection::Groups;

    #[test]
    fn names_are_known() {
        let groups = Groups::read(host::root()).unwrap();
        for test in CORE {
            assert!(groups.has_test(host::root(), test), "{test}");
        }
        for module in NOT_OF_KERNEL {
            assert!(groups.has(module), "{module}");
        }
    }

    #[test]
    fn the_core_is_selected_by_exact_names() {
        let modules = ["kernel", "files"];
        let built = Built::of(&[("probes", &modules), ("record", &["render_frozen"])]);
        let processes: Vec<TestProcess<'_>> = built.tests.iter().flat_map(TestBinary::processes).collect();
        let names = |scope: Scope| -> Vec<String> {
            processes.iter().filter(|process| scope.has(process)).map(TestProcess::name).collect()
        };
        assert_eq!(names(Scope::Core), ["probes::kernel"]);
        assert_eq!(names(Scope::Whole), ["probes::kernel", "probes::files"]);
        let arguments = Scope::Core.arguments(&processes[0], &[]);
        assert_eq!(arguments[..2], ["--exact", "kernel::a_glob_names_many_functions"]);
        assert_eq!(Scope::Whole.arguments(&processes[0], &[]), ["kernel::"]);
        let words = ["glob".to_owned()];
        assert_eq!(Scope::Core.arguments(&processes[0], &words), ["--skip", "files::", "glob"]);
    }
}
