//! Creation and removal of instances.

use crate::{
    buffer::PageSize,
    engine::{
        Cooperative, Engine,
        attachments::reconcile::Reconciler,
        command::error::{CommandError, ErrorKind},
        dependents::Dependents,
        facts::Facts,
        histograms::HistCommands,
        instances::{Instances, instance::Instance},
    },
    event::{EventId, InstanceId},
};

/// Creates an instance.
///
/// # Errors
/// `EEXIST`; `EINVAL` for an invalid name; `ENOSPC` if no number is left, and `ENOMEM` at the maximum number of
/// instances.
pub(crate) fn make(facts: &Facts, instances: &mut Instances, name: &str) -> Result<InstanceId, CommandError> {
    instances.check_new(name)?;
    let top = instances.state(InstanceId::TOP)?;
    let (options, user_data) = (top.options.inherited(facts.version()), top.user_data);
    let mut new = Instance::new(name, options, facts.cpus(), PageSize::LEAST);
    new.user_data = user_data;
    Ok(instances.add(new))
}

/// Removes an instance and everything that it has in the kernel.
///
/// # Errors
/// `ENOENT`, or `EBUSY` while one of its files is open.
pub(crate) fn remove(engine: &mut Engine, name: &str) -> Result<(), CommandError> {
    let instance = engine.instances.find(name).ok_or(ErrorKind::NotFound)?;
    if engine.instances.state(instance)?.users > 0 {
        return Err(ErrorKind::Busy.into());
    }
    if engine.instances.is_printk_destination(instance) {
        engine.instances.set_printk_destination(InstanceId::TOP, true)?;
    }
    let on: Vec<EventId> = engine.instances.state(instance)?.enabled.iter().copied().collect();
    Reconciler::of(engine, instance).keep_counts(&on);
    HistCommands::of(engine, instance).forget_hists();
    let removed = (engine.instances.remove(instance), engine.attachments.remove(instance));
    let names = if engine.attachments.sessions().next().is_none() { engine.names.take() } else { None };
    // The kernel takes up to 0.2 s to release the programs, links and rings of a session.
    engine.run_off_thread(move || drop((removed, names)));
    // Programs of other instances emit its synthetic events no more. They log their own errors.
    for event in on {
        let _ = Dependents::of(engine, instance).propagate_enabled(event);
        engine.yield_to_readers();
    }
    Ok(())
}
