//! Synthetic events: defining them in one step or piece by piece, and deleting them
//! (kernel/trace/trace_events_synth.c, section 7.1 of the document).
//!
//! ```no_run
//! use tracer_user::api::{Errno, Files, dynevent::MAX_DYNEVENT_CMD_LEN, synth::*};
//!
//! let files = Files::at("/sys/kernel/tracing");
//! // In one step,
//! synth_event_create(&files, "schedtest", &[("pid_t", "next_pid_field"), ("char[16]", "next_comm_field")])?;
//! synth_event_delete(&files, "schedtest")?;
//! // or piece by piece.
//! let mut cmd = synth_event_cmd_init(&files, MAX_DYNEVENT_CMD_LEN);
//! synth_event_gen_cmd_start(&mut cmd, "schedtest", &[("pid_t", "next_pid_field")])?;
//! synth_event_add_field(&mut cmd, "u64", "ts_ns")?;
//! synth_event_add_field_str(&mut cmd, "char[16] next_comm_field")?;
//! synth_event_gen_cmd_end(&mut cmd)?;
//! # Ok::<(), Errno>(())
//! ```

use rustix::io::Errno;

use super::{
    dynevent::{
        DyneventArg, DyneventArgPair, DyneventCmd, DyneventType, MAX_DYNEVENT_CMD_LEN, dynevent_arg_add,
        dynevent_arg_init, dynevent_arg_pair_add, dynevent_arg_pair_init, dynevent_cmd_init, dynevent_create,
    },
    files::Files,
};
pub use crate::event::synthetic::FIELDS_MAX as SYNTH_FIELDS_MAX;
use crate::event::synthetic::Member;

/// A field: type and name (`struct synth_field_desc`).
pub type SynthFieldDesc<'a> = (&'a str, &'a str);

/// Begins a command that defines a synthetic event.
pub fn synth_event_cmd_init(files: &Files, maxlen: usize) -> DyneventCmd<'_> {
    dynevent_cmd_init(maxlen, DyneventType::Synth, |text| files.run(DyneventType::Synth, text))
}

/// Sets the name of a synthetic event and its first fields, if any.
///
/// The kernel counts the fields that are passed here twice and so accepts 32 of them. Here the limit is 64 in all, as
/// documented.
///
/// # Errors
/// `EINVAL` for a command of another kind, an unknown type, or too many fields; `E2BIG` past the bound.
pub fn synth_event_gen_cmd_start(
    cmd: &mut DyneventCmd<'_>,
    name: &str,
    fields: &[SynthFieldDesc<'_>],
) -> Result<(), Errno> {
    synth_event_gen_cmd_array_start(cmd, name, fields)
}

/// Like [`synth_event_gen_cmd_start`]. In the kernel, one takes its fields as arguments and the other as an array.
///
/// # Errors
/// As for [`synth_event_gen_cmd_start`].
pub fn synth_event_gen_cmd_array_start(
    cmd: &mut DyneventCmd<'_>,
    name: &str,
    fields: &[SynthFieldDesc<'_>],
) -> Result<(), Errno> {
    cmd.is_for(DyneventType::Synth)?;
    if fields.len() > SYNTH_FIELDS_MAX {
        return Err(Errno::INVAL);
    }
    dynevent_arg_add(cmd, &DyneventArg { str: name, ..dynevent_arg_init('\0') }, None)?;
    synth_event_add_fields(cmd, fields)
}

/// Checks that the type exists. The text in its brackets is checked when the event is defined.
fn check_type(pair: &DyneventArgPair<'_>) -> Result<(), Errno> {
    let known = Member::new(String::new(), pair.lhs.to_owned(), |_| None).is_some();
    if known || pair.lhs.contains('[') { Ok(()) } else { Err(Errno::INVAL) }
}

/// Adds a field.
///
/// # Errors
/// As for [`synth_event_gen_cmd_start`].
pub fn synth_event_add_field(cmd: &mut DyneventCmd<'_>, ty: &str, name: &str) -> Result<(), Errno> {
    cmd.is_for(DyneventType::Synth)?;
    if ty.is_empty() || name.is_empty() {
        return Err(Errno::INVAL);
    }
    let pair = DyneventArgPair { lhs: ty, rhs: name, ..dynevent_arg_pair_init('\0', ';') };
    dynevent_arg_pair_add(cmd, &pair, Some(check_type))?;
    cmd.one_more_of(SYNTH_FIELDS_MAX)
}

/// Adds a field as one text, `type name`, which is checked only when the event is defined.
///
/// # Errors
/// As for [`synth_event_gen_cmd_start`].
pub fn synth_event_add_field_str(cmd: &mut DyneventCmd<'_>, type_name: &str) -> Result<(), Errno> {
    cmd.is_for(DyneventType::Synth)?;
    if type_name.is_empty() {
        return Err(Errno::INVAL);
    }
    dynevent_arg_add(cmd, &DyneventArg { str: type_name, ..dynevent_arg_init(';') }, None)?;
    cmd.one_more_of(SYNTH_FIELDS_MAX)
}

/// Adds fields, in order, up to the first that is refused.
///
/// # Errors
/// As for [`synth_event_gen_cmd_start`].
pub fn synth_event_add_fields(cmd: &mut DyneventCmd<'_>, fields: &[SynthFieldDesc<'_>]) -> Result<(), Errno> {
    fields.iter().try_for_each(|(ty, name)| synth_event_add_field(cmd, ty, name))
}

/// Defines the event.
///
/// # Errors
/// The errors of a write to `synthetic_events`; `E2BIG` for a command that exceeded its bound.
pub fn synth_event_gen_cmd_end(cmd: &mut DyneventCmd<'_>) -> Result<(), Errno> {
    dynevent_create(cmd)
}

/// Defines an event with these fields.
///
/// # Errors
/// As for [`synth_event_gen_cmd_start`] and [`synth_event_gen_cmd_end`].
pub fn synth_event_create(files: &Files, name: &str, fields: &[SynthFieldDesc<'_>]) -> Result<(), Errno> {
    let mut cmd = synth_event_cmd_init(files, MAX_DYNEVENT_CMD_LEN);
    synth_event_gen_cmd_array_start(&mut cmd, name, fields)?;
    synth_event_gen_cmd_end(&mut cmd)
}

/// Deletes an event.
///
/// # Errors
/// `ENOENT` if it does not exist, `EBUSY` while it is enabled or used by a histogram.
pub fn synth_event_delete(files: &Files, name: &str) -> Result<(), Errno> {
    if name.is_empty() || name.contains([' ', '\t', '\n', ';']) {
        return Err(Errno::NOENT);
    }
    files.run(DyneventType::Synth, &format!("!{name}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cmd<'a>() -> DyneventCmd<'a> {
        dynevent_cmd_init(MAX_DYNEVENT_CMD_LEN, DyneventType::Synth, |_| Ok(()))
    }

    #[test]
    fn commands_have_the_form_of_the_kernels() {
        let mut made = cmd();
        synth_event_gen_cmd_start(&mut made, "schedtest", &[("pid_t", "pid"), ("char[]", "comm")]).unwrap();
        synth_event_add_field_str(&mut made, "u64 ts").unwrap();
        assert_eq!(made.text(), " schedtest  pid_t pid; char[] comm; u64 ts;");
    }

    #[test]
    fn arguments_are_checked() {
        let refused = |ty: &str, name: &str| synth_event_add_field(&mut cmd(), ty, name);
        for (ty, name) in [("", "a"), ("u64", ""), ("float", "a"), ("struct x", "a")] {
            assert_eq!(refused(ty, name), Err(Errno::INVAL), "{ty} {name}");
        }
        // The text in brackets is checked later.
        assert_eq!(refused("char[x]", "a"), Ok(()));
        assert_eq!(synth_event_add_field_str(&mut cmd(), "float a"), Ok(()));
        let mut kprobe = dynevent_cmd_init(64, DyneventType::Kprobe, |_| Ok(()));
        assert_eq!(synth_event_gen_cmd_start(&mut kprobe, "a", &[]), Err(Errno::INVAL));
        assert_eq!(synth_event_add_field(&mut kprobe, "u64", "a"), Err(Errno::INVAL));
        assert_eq!(synth_event_add_field_str(&mut kprobe, "u64 a"), Err(Errno::INVAL));
        let many = [("u8", "a"); SYNTH_FIELDS_MAX];
        let mut full = cmd();
        synth_event_gen_cmd_start(&mut full, "a", &many).unwrap();
        assert_eq!(synth_event_add_field(&mut full, "u8", "b"), Err(Errno::INVAL));
        let more = [("u8", "a"); SYNTH_FIELDS_MAX + 1];
        assert_eq!(synth_event_gen_cmd_array_start(&mut cmd(), "a", &more), Err(Errno::INVAL));
    }
}
