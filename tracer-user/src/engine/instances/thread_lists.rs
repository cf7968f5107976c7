//! The lists of traced and of untraced threads: `set_event_pid` and `set_event_notrace_pid`.
//!
//! With the option `event-fork`, the kernel's side adds children of listed threads and removes threads that exit.
//! [`ThreadLists::refresh`] reads these changes back.

use std::collections::BTreeSet;

use tracer_abi::lists;

use crate::engine::{
    attachments::session::InstanceSession,
    command::error::{CommandError, NoTaskPid},
};

/// Pids must be below this (`MAX_PID`, kernel/trace/pid_list.c).
pub(crate) const PID_LIMIT: u32 = 1 << 30;

/// A list of threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum List {
    /// `set_event_pid`
    Traced,
    /// `set_event_notrace_pid`
    Untraced,
}

/// Both lists of an instance.
#[derive(Debug, Default)]
pub(crate) struct ThreadLists {
    traced: BTreeSet<u32>,
    untraced: BTreeSet<u32>,
    /// Whether forks and exits change the lists (`event-fork`).
    follows_forks: bool,
}

impl ThreadLists {
    /// The threads of a list, in order.
    pub(crate) fn pids(&self, list: List) -> impl Iterator<Item = u32> {
        let set = match list {
            List::Traced => &self.traced,
            List::Untraced => &self.untraced,
        };
        set.iter().copied()
    }

    fn set_mut(&mut self, list: List) -> &mut BTreeSet<u32> {
        match list {
            List::Traced => &mut self.traced,
            List::Untraced => &mut self.untraced,
        }
    }

    /// The bits of the lists that a thread is in.
    fn lists_of(&self, pid: u32) -> u8 {
        (if self.traced.contains(&pid) { lists::TRACED } else { 0 })
            | (if self.untraced.contains(&pid) { lists::UNTRACED } else { 0 })
    }

    /// The bits of the lists in force.
    fn in_force(&self) -> u8 {
        (if self.traced.is_empty() { 0 } else { lists::TRACED })
            | (if self.untraced.is_empty() { 0 } else { lists::UNTRACED })
    }

    /// Adds threads to a list.
    ///
    /// # Errors
    /// The kernel's error if its table of threads is full. The threads before the failing one are added.
    pub(crate) fn add(
        &mut self,
        list: List,
        pids: &[u32],
        mut session: Option<&mut InstanceSession>,
    ) -> Result<(), CommandError> {
        self.refresh(session.as_deref_mut());
        for pid in pids {
            self.set_mut(list).insert(*pid);
            self.write(*pid, session.as_deref_mut())?;
        }
        if let Some(session) = session {
            session.kernel().switches().set_lists(self.in_force());
        }
        Ok(())
    }

    /// Empties a list, which is then no longer in force.
    ///
    /// # Errors
    /// The kernel's error for its table of threads.
    pub(crate) fn clear(
        &mut self,
        list: List,
        mut session: Option<&mut InstanceSession>,
    ) -> Result<(), CommandError> {
        self.refresh(session.as_deref_mut());
        let gone = std::mem::take(self.set_mut(list));
        if let Some(session) = session.as_deref_mut() {
            session.kernel().switches().set_lists(self.in_force());
        }
        gone.into_iter().try_for_each(|pid| self.write(pid, session.as_deref_mut()))
    }

    /// Writes the lists of a thread into the kernel's table.
    fn write(&self, pid: u32, session: Option<&mut InstanceSession>) -> Result<(), CommandError> {
        let Some(session) = session else { return Ok(()) };
        session.kernel().threads().set(pid, self.lists_of(pid)).map_err(CommandError::from)
    }

    /// Reads back which threads joined and left the lists by forking and exiting.
    pub(crate) fn refresh(&mut self, session: Option<&mut InstanceSession>) {
        let Some(session) = session.filter(|_| self.follows_forks) else { return };
        let Ok(pids) = session.kernel().threads().all() else { return };
        let with = |list: u8| pids.iter().filter(move |(_, lists)| lists & list != 0).map(|(pid, _)| *pid);
        // A list in force remains in force when its last thread ends.
        self.traced = with(lists::TRACED).collect();
        self.untraced = with(lists::UNTRACED).collect();
    }

    /// Starts or stops following forks and exits. `task_pid` is the offset of `pid` in the kernel's `task_struct`.
    ///
    /// # Errors
    /// `ENOSYS` without that offset, and the kernel's errors for the programs.
    pub(crate) fn follow_forks(
        &mut self,
        on: bool,
        task_pid: Option<u32>,
        mut session: Option<&mut InstanceSession>,
    ) -> Result<(), CommandError> {
        self.refresh(session.as_deref_mut());
        if let Some(session) = session {
            if on {
                let offset = task_pid.ok_or(NoTaskPid)?;
                session.kernel_mut().follow(offset).map_err(CommandError::from)?;
            } else {
                session.kernel_mut().unfollow();
            }
        }
        self.follows_forks = on;
        Ok(())
    }

    /// Writes the lists into a new session.
    ///
    /// # Errors
    /// As [`ThreadLists::add`] and [`ThreadLists::follow_forks`].
    pub(crate) fn write_to(
        &self,
        session: &mut InstanceSession,
        task_pid: Option<u32>,
    ) -> Result<(), CommandError> {
        let kernel = session.kernel_mut();
        for pid in self.traced.union(&self.untraced) {
            kernel.threads().set(*pid, self.lists_of(*pid))?;
        }
        if self.follows_forks {
            kernel.follow(task_pid.ok_or(NoTaskPid)?)?;
        }
        kernel.switches().set_lists(self.in_force());
        Ok(())
    }
}
