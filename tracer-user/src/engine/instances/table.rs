//! All instances by id, and their names.

use std::{collections::BTreeMap, sync::Arc};

use crate::{
    buffer::{CpuBuffer, KindCounts, clock::monotonic},
    engine::{
        attachments::sessions::Attachments,
        command::error::{CommandError, ErrorKind},
        instances::instance::Instance,
        records::marks::Marks,
    },
    event::{EventId, InstanceId},
    kernel::proc::memory,
};

/// The exclusive upper bound of ids, which are part of the numbers of files.
const IDS: u32 = 1 << 22;
/// Maximum number of instances below the top.
pub(crate) const INSTANCES_MAX: usize = 1024;
/// Maximum length of a directory's name in bytes (`NAME_MAX`).
const NAME_MAX: usize = 255;
/// The option that selects the destination of `trace_printk()`.
const PRINTK: &str = "trace_printk_dest";

/// Whether this is a valid name of a directory.
pub(crate) fn is_name(name: &str) -> bool {
    !matches!(name, "" | "." | "..") && name.len() <= NAME_MAX && !name.contains(['/', '\0'])
}

/// All instances by id.
#[derive(Debug)]
pub struct Instances {
    all: BTreeMap<InstanceId, Instance>,
    next: u32,
    /// The number of pages with records of each defined event, in all buffers and snapshots, and with all readers.
    kinds: KindCounts,
}

impl Instances {
    pub(crate) fn new(mut top: Instance) -> Self {
        let kinds = KindCounts::new();
        top.buffer.count_kinds(&kinds);
        Self { all: BTreeMap::from([(InstanceId::TOP, top)]), next: InstanceId::TOP.get() + 1, kinds }
    }

    /// The number of pages that have records of a defined event, by its id.
    pub(crate) fn pages_of(&self, id: u16) -> u32 {
        self.kinds.pages(id)
    }

    /// An instance.
    pub fn get(&self, instance: InstanceId) -> Option<&Instance> {
        self.all.get(&instance)
    }

    /// An instance, to be changed by a reader of its records.
    pub fn get_mut(&mut self, instance: InstanceId) -> Option<&mut Instance> {
        self.all.get_mut(&instance)
    }

    /// An instance, to be changed by a command.
    ///
    /// # Errors
    /// `ENODEV` if it is gone.
    pub(crate) fn state(&mut self, instance: InstanceId) -> Result<&mut Instance, CommandError> {
        self.all.get_mut(&instance).ok_or_else(|| ErrorKind::Gone.into())
    }

    /// All instances with their ids, the top first.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (InstanceId, &Instance)> {
        self.all.iter().map(|(id, instance)| (*id, instance))
    }

    /// The ids of all instances, the top first.
    pub(crate) fn ids(&self) -> Vec<InstanceId> {
        self.all.keys().copied().collect()
    }

    /// Ids and names of the instances below the top.
    pub fn below(&self) -> impl Iterator<Item = (InstanceId, &str)> {
        self.all.iter().skip(1).map(|(id, instance)| (*id, instance.name.as_str()))
    }

    /// The id of an instance below the top.
    pub fn find(&self, name: &str) -> Option<InstanceId> {
        self.below().find(|(_, known)| *known == name).map(|(id, _)| id)
    }

    /// Whether an event is enabled in any instance.
    pub(crate) fn is_enabled(&self, event: EventId) -> bool {
        self.all.values().any(|instance| instance.is_enabled(event))
    }

    /// Whether an instance of this name can be made.
    ///
    /// # Errors
    /// `EEXIST` for an existing name, `EINVAL` for an invalid name of a directory, `ENOSPC` if all ids are used,
    /// `ENOMEM` if there are too many instances.
    pub(crate) fn check_new(&self, name: &str) -> Result<(), CommandError> {
        if self.find(name).is_some() {
            return Err(ErrorKind::Exists.into());
        }
        if !is_name(name) {
            return Err(ErrorKind::Invalid.into());
        }
        // An id is given once.
        if self.next >= IDS {
            return Err(ErrorKind::NoIds.into());
        }
        if self.all.len() > INSTANCES_MAX {
            return Err(ErrorKind::NoMemory.into());
        }
        Ok(())
    }

    pub(crate) fn add(&mut self, mut instance: Instance) -> InstanceId {
        instance.buffer.count_kinds(&self.kinds);
        let id = InstanceId::new(self.next);
        self.next += 1;
        self.all.insert(id, instance);
        id
    }

    pub(crate) fn remove(&mut self, instance: InstanceId) -> Option<Instance> {
        self.all.remove(&instance)
    }

    /// Adds entries to an instance's `error_log`.
    pub(crate) fn log(&mut self, instance: InstanceId, entries: &[Vec<u8>]) {
        if let Some(state) = self.get_mut(instance) {
            for entry in entries {
                state.errors.push(monotonic(), entry.clone());
            }
        }
    }

    /// The marks of an instance.
    pub fn marks(&self, instance: InstanceId) -> Option<Arc<Marks>> {
        self.get(instance).map(|state| Arc::clone(&state.marks))
    }

    /// Reads back which threads joined and left an instance's lists by forking and exiting.
    pub(crate) fn refresh_pids(&mut self, instance: InstanceId, attachments: &mut Attachments) {
        if let Some(state) = self.get_mut(instance) {
            state.threads.refresh(attachments.session_mut(instance));
        }
    }

    /// Counts an open file of an instance.
    ///
    /// # Errors
    /// `ENODEV` if the instance is gone.
    pub(crate) fn hold(&mut self, instance: InstanceId) -> Result<(), CommandError> {
        self.state(instance)?.users += 1;
        Ok(())
    }

    /// Ends an [`Instances::hold`].
    pub(crate) fn release(&mut self, instance: InstanceId) {
        if let Some(state) = self.get_mut(instance) {
            state.users = state.users.saturating_sub(1);
        }
    }

    /// Reserves the `trace_pipe` of one CPU, or of all.
    ///
    /// # Errors
    /// `EBUSY` while another reader has it or an overlapping `trace_pipe`.
    pub(crate) fn take_pipe(&mut self, instance: InstanceId, cpu: Option<u32>) -> Result<(), CommandError> {
        let pipes = &mut self.state(instance)?.pipes;
        let taken = match cpu {
            None => !pipes.is_empty(),
            Some(_) => pipes.contains(&None) || pipes.contains(&cpu),
        };
        if taken {
            return Err(ErrorKind::Busy.into());
        }
        pipes.push(cpu);
        Ok(())
    }

    /// Ends an [`Instances::take_pipe`].
    pub(crate) fn give_pipe(&mut self, instance: InstanceId, cpu: Option<u32>) {
        if let Some(state) = self.get_mut(instance) {
            state.pipes.retain(|taken| *taken != cpu);
        }
    }

    /// Sets whether `trace_printk()` writes into an instance. There is one destination: the new one replaces the old
    /// one, and clearing the option selects the top instance.
    ///
    /// # Errors
    /// `EINVAL` to clear the option of the top instance, or if the kernel has no such option.
    pub(crate) fn set_printk_destination(
        &mut self,
        instance: InstanceId,
        on: bool,
    ) -> Result<(), CommandError> {
        let options = &self.state(instance)?.options;
        let option = options.find(PRINTK).ok_or(ErrorKind::Invalid)?;
        if options.get(option) == on {
            return Ok(());
        }
        if instance == InstanceId::TOP && !on {
            return Err(ErrorKind::Invalid.into());
        }
        let target = if on { instance } else { InstanceId::TOP };
        for (id, state) in &mut self.all {
            state.options.set(option, *id == target);
        }
        Ok(())
    }

    /// Whether `trace_printk()` writes into an instance.
    pub(crate) fn is_printk_destination(&self, instance: InstanceId) -> bool {
        self.get(instance).is_some_and(|state| state.options.is(PRINTK))
    }

    /// Checks that there is memory for the buffer of one CPU of an instance, or of all its CPUs, of `bytes` each.
    /// Pages are allocated as they are filled, so memory that any buffer may still allocate counts as used.
    ///
    /// # Errors
    /// `ENOMEM`, as `ring_buffer_resize()` returns if there is too little memory.
    pub(crate) fn find_memory(
        &self,
        instance: InstanceId,
        cpu: Option<u32>,
        bytes: usize,
    ) -> Result<(), CommandError> {
        let owed = |buffer: &CpuBuffer, size: usize| size.saturating_sub(buffer.taken()) as u64;
        let (mut more, mut promised) = (0_u64, 0_u64);
        for (id, state) in self.iter() {
            for (at, buffer) in state.buffer.select(None) {
                let resized = id == instance && cpu.is_none_or(|cpu| cpu == at);
                let size = if resized { bytes } else { buffer.size() };
                let growth = if resized { bytes.saturating_sub(buffer.size()) as u64 } else { 0 };
                more = more.saturating_add(growth);
                promised = promised.saturating_add(owed(buffer, size));
            }
            for (_, spare) in state.snapshot.iter().flat_map(|snapshot| snapshot.select(None)) {
                promised = promised.saturating_add(owed(spare, spare.size()));
            }
        }
        // A change that makes no buffer larger is never refused.
        if more == 0 || memory::available().is_none_or(|available| promised <= available) {
            return Ok(());
        }
        Err(ErrorKind::NoMemory.into())
    }
}
