//! The entry point for changes: [`Engine::execute`], and the effects of changes outside the engine.
//!
//! A caller executes commands, and then applies [`Engine::take_effects`] before it answers its client. It does not
//! depend on the effects of single commands.

pub mod effects;
pub mod error;
pub mod instance;

use self::{
    effects::Effects,
    error::{CommandError, ErrorKind},
    instance::InstanceCommand,
};
use crate::{
    attach,
    buffer::clock::monotonic,
    engine::{
        Cooperative, Engine,
        operations::{definitions, lifecycle},
    },
    event::InstanceId,
    lang::{define::File, facts::Files},
};

/// A change of what is traced.
#[derive(Clone, Debug)]
pub enum Command<'a> {
    /// Changes one instance.
    Instance(InstanceId, InstanceCommand<'a>),
    /// Creates an instance.
    MakeInstance(&'a str),
    /// Removes an instance and everything that it has in the kernel.
    RemoveInstance(&'a str),
    /// Defines and deletes dynamic events, one per line.
    Define {
        /// The file that receives the write.
        file: File,
        /// The lines.
        text: &'a [u8],
        /// The opened files that the lines name ([`crate::lang::define::files`]).
        files: &'a Files,
        /// The payer whose quota is charged for the definitions.
        payer: u32,
    },
    /// Deletes all events of a file of dynamic events.
    Undefine(File),
    /// Defines and deletes synthetic events, one per line.
    DefineSynthetic {
        /// The lines.
        text: &'a [u8],
        /// The payer whose quota is charged for the definitions.
        payer: u32,
    },
    /// Deletes all synthetic events.
    UndefineSynthetic,
    /// Adds and removes the events of program files, one per line.
    DefinePrograms {
        /// The lines.
        text: &'a [u8],
        /// The opened files that the lines name ([`crate::engine::registry::program_files`]).
        files: &'a Files,
        /// The payer whose quota is charged for the definitions.
        payer: u32,
    },
    /// Removes the events of all program files.
    UndefinePrograms,
    /// Sets the maximum number of stored names of threads.
    SavedNames(usize),
}

/// The result of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reply {
    /// No result.
    Done,
    /// The created instance.
    Instance(InstanceId),
}

impl Engine {
    /// Executes a command. A refused command leaves the state that the kernel would leave.
    ///
    /// # Errors
    /// The kernel's error for the command. Its wording is already in the instance's `error_log`.
    pub fn execute(&mut self, command: &Command<'_>) -> Result<Reply, CommandError> {
        let moment = attach::moment();
        // An error of an instance's command is in the log of that instance already.
        let done = dispatch(self, command).map_err(|error| self.log_error(InstanceId::TOP, error));
        self.await_closed(moment);
        self.publish();
        done
    }

    /// Adds the entries of an error to an instance's `error_log`, once, and logs the kernel's refusals.
    pub(crate) fn log_error(&mut self, instance: InstanceId, mut error: CommandError) -> CommandError {
        if error.set_logged() {
            return error;
        }
        // A recording returns the refusal to its caller.
        if error.kind() == ErrorKind::Attach && self.attachments.options().recording.is_none() {
            tracing::warn!("{error}");
        }
        self.log_entries(instance, error.wording());
        error
    }

    /// Adds entries to an instance's `error_log`.
    pub(crate) fn log_entries(&mut self, instance: InstanceId, entries: &[Vec<u8>]) {
        if let Some(state) = self.instances.get_mut(instance) {
            for entry in entries {
                state.errors.push(monotonic(), entry.clone());
            }
        }
    }

    /// Marks the settings as changed.
    pub(crate) fn touch(&mut self) {
        self.effects.saving = effects::Saving::Now;
        self.marks_stale = true;
    }

    /// Marks the settings as changed by a program.
    pub(crate) fn touch_by_program(&mut self) {
        self.effects.saving = self.effects.saving.max(effects::Saving::Soon);
        self.marks_stale = true;
    }

    /// The effects of all changes since the last call, which the caller must apply before it answers its client.
    pub fn take_effects(&mut self) -> Effects {
        let mut effects = std::mem::take(&mut self.effects);
        effects.rings |= std::mem::take(&mut self.user.new_ring);
        effects.updates = self.take_updates();
        effects
    }
}

/// Calls the function of a command.
fn dispatch(engine: &mut Engine, command: &Command<'_>) -> Result<Reply, CommandError> {
    if !matches!(command, Command::Instance(..)) {
        engine.touch();
    }
    match *command {
        Command::Instance(instance, ref command) => engine.apply(instance, command)?,
        Command::MakeInstance(name) => return lifecycle::make(engine, name).map(Reply::Instance),
        Command::RemoveInstance(name) => lifecycle::remove(engine, name)?,
        Command::Define { file, text, files, payer } => {
            definitions::define(engine, file, text, files, payer)?;
        }
        Command::Undefine(file) => definitions::undefine(engine, file)?,
        Command::DefineSynthetic { text, payer } => definitions::define_synthetic(engine, text, payer)?,
        Command::UndefineSynthetic => definitions::undefine_synthetic(engine)?,
        Command::DefinePrograms { text, files, payer } => {
            definitions::define_programs(engine, Some((text, files, payer)))?;
        }
        Command::UndefinePrograms => definitions::define_programs(engine, None)?,
        Command::SavedNames(names) => engine.tasks_mut().set_capacity(names),
    }
    Ok(Reply::Done)
}
