//! The entry point for changes: [`Engine::execute`], and the effects of changes outside the engine.
//!
//! A front end makes a [`Request`] of what its client asks for. It executes requests, and then applies
//! [`Engine::take_effects`] once before it answers the client: refused commands and changes that no client requested
//! have effects too, and one answer can be the result of several commands.

pub mod effects;
pub mod error;
mod instance;
mod request;

use std::sync::Arc;

pub use self::request::{Client, Command, HoldCommand, InstanceCommand, RecordCommand, Reply, Request};
use self::{
    effects::Effects,
    error::{CommandError, ErrorKind},
};
use crate::{
    attach,
    engine::{
        Cooperative, Engine,
        instances::change::InstanceChange,
        operations::{changes::Definitions, lifecycle},
        records::mark::Writer,
        user::UserChange,
    },
    event::InstanceId,
};

impl Engine {
    /// Executes a request. A refused command leaves the state that the kernel would leave.
    ///
    /// # Errors
    /// The kernel's error for the command. Its wording is already in the instance's `error_log`.
    pub fn execute(&mut self, request: &Request<'_>) -> Result<Reply, CommandError> {
        if !is_change(&request.command) {
            return run(self, request);
        }
        let moment = attach::moment();
        let done = run(self, request);
        self.await_closed(moment);
        self.publish();
        done
    }

    /// Applies a command to an instance, as a step of a longer change.
    ///
    /// # Errors
    /// As [`Engine::execute`].
    pub(crate) fn apply(
        &mut self,
        instance: InstanceId,
        command: InstanceCommand<'_>,
    ) -> Result<(), CommandError> {
        run(self, &Request::own(instance, command)).map(drop)
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
        self.instances.log(instance, error.wording());
        error
    }

    /// The effects of all changes since the last call, which the caller must apply before it answers its client.
    pub fn take_effects(&mut self) -> Effects {
        let updates = UserChange::of(self).take_updates();
        let new_ring = std::mem::take(&mut self.user.new_ring);
        self.effects.take(new_ring, updates)
    }
}

/// Whether a command changes the settings, so that they are saved. Such a command waits for what it detached to be
/// closed, and publishes synthetic events.
const fn is_change(command: &Command<'_>) -> bool {
    !matches!(command, Command::Record(_) | Command::Hold(_))
}

/// Runs a command, and logs its error.
fn run(engine: &mut Engine, request: &Request<'_>) -> Result<Reply, CommandError> {
    if is_change(&request.command) {
        engine.effects.touch();
    }
    let instance = match request.command {
        Command::Instance(_) | Command::Record(_) | Command::Hold(_) => request.instance,
        _ => InstanceId::TOP,
    };
    dispatch(engine, request).map_err(|error| engine.log_error(instance, error))
}

/// Calls the function of a command.
fn dispatch(engine: &mut Engine, request: &Request<'_>) -> Result<Reply, CommandError> {
    let Request { client, instance, command } = request;
    let payer = client.payer;
    match command {
        Command::Instance(command) => InstanceChange::of(engine, *instance).apply(command)?,
        Command::Record(command) => return InstanceChange::of(engine, *instance).record(*client, command),
        Command::Hold(command) => return InstanceChange::of(engine, *instance).hold(payer, *command),
        Command::MakeInstance(name) => {
            return lifecycle::make(&engine.facts, &mut engine.instances, name).map(Reply::Instance);
        }
        Command::RemoveInstance(name) => lifecycle::remove(engine, name)?,
        Command::Define { file, text, files } => Definitions::of(engine).define(*file, text, files, payer)?,
        Command::Undefine(file) => Definitions::of(engine).undefine(*file)?,
        Command::DefineSynthetic(text) => Definitions::of(engine).define_synthetic(text, payer)?,
        Command::UndefineSynthetic => Definitions::of(engine).undefine_synthetic()?,
        Command::DefinePrograms { text, files } => {
            Definitions::of(engine).define_programs(Some((text, files, payer)))?;
        }
        Command::UndefinePrograms => Definitions::of(engine).define_programs(None)?,
        Command::SavedNames(names) => Arc::make_mut(&mut engine.tasks).set_capacity(*names),
    }
    Ok(Reply::Done)
}

impl InstanceChange<'_> {
    /// Makes a record of a client.
    fn record(&mut self, client: Client, command: &RecordCommand<'_>) -> Result<Reply, CommandError> {
        let writer = || Writer::of(client.thread);
        match *command {
            RecordCommand::Inject { event, text } => self.inject(event, text, writer())?,
            RecordCommand::Emit { event, values } => {
                self.emit_in(event, values, writer())?;
            }
            RecordCommand::Mark { mark, text } => {
                return self.record_mark(mark, text, writer()).map(Reply::Written);
            }
            RecordCommand::UserEvent { file, record } => {
                return UserChange::of(self.engine).write(file, record, client.thread).map(Reply::Written);
            }
        }
        Ok(Reply::Done)
    }

    /// Takes or releases something for an open file.
    fn hold(&mut self, payer: u32, command: HoldCommand) -> Result<Reply, CommandError> {
        let Self { engine, instance } = self;
        let instance = *instance;
        match command {
            HoldCommand::Instance => engine.instances.hold(instance)?,
            HoldCommand::ReleaseInstance => engine.instances.release(instance),
            HoldCommand::Pipe(cpu) => engine.instances.take_pipe(instance, cpu)?,
            HoldCommand::ReleasePipe(cpu) => engine.instances.give_pipe(instance, cpu),
            HoldCommand::Pause(on) => {
                let stops = engine.instances.state(instance)?.pause(on);
                if let Some(session) = engine.attachments.session(instance) {
                    session.kernel().switches().pause(stops > 0);
                }
                engine.effects.stale_marks();
            }
            HoldCommand::UserEvents => return engine.user.open(payer, &engine.quotas).map(Reply::UserEvents),
            HoldCommand::ReleaseUserEvents(file) => UserChange::of(engine).close(file),
        }
        Ok(Reply::Done)
    }
}
