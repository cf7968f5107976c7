//! Kprobe events (kernel/trace/trace_kprobe.c, section 7.3 of the document).
//!
//! ```no_run
//! use tracer_user::api::{Errno, Files, dynevent::MAX_DYNEVENT_CMD_LEN, kprobe::*};
//!
//! let files = Files::at("/sys/kernel/tracing");
//! let mut cmd = kprobe_event_cmd_init(&files, MAX_DYNEVENT_CMD_LEN);
//! kprobe_event_gen_cmd_start(&mut cmd, "gen_kprobe_test", "do_sys_open", &["dfd=%ax", "filename=%dx"])?;
//! kprobe_event_add_fields(&mut cmd, &["flags=%cx", "mode=+4($stack)"])?;
//! kprobe_event_gen_cmd_end(&mut cmd)?;
//! kprobe_event_delete(&files, "gen_kprobe_test")?;
//! # Ok::<(), Errno>(())
//! ```

use rustix::io::Errno;

use super::{
    dynevent::{
        DyneventArg, DyneventCmd, DyneventType, dynevent_arg_add, dynevent_arg_init, dynevent_cmd_init,
        dynevent_create, dynevent_str_add,
    },
    files::Files,
};

/// Maximum number of arguments of a probe (`MAX_TRACE_ARGS`).
pub const MAX_TRACE_ARGS: usize = 128;

/// Begins a command that defines a kprobe event.
pub fn kprobe_event_cmd_init(files: &Files, maxlen: usize) -> DyneventCmd<'_> {
    dynevent_cmd_init(maxlen, DyneventType::Kprobe, |text| files.run(DyneventType::Kprobe, text))
}

/// Sets the name of a kprobe event in the group `kprobes`, the location of the probe, and the first fields.
///
/// The kernel truncates a name of more than 53 characters. Here the name stays, and running the command fails if it
/// is too long for an event.
///
/// # Errors
/// `EINVAL` for a command of another kind, an empty location, or too many fields; `E2BIG` past the bound.
pub fn kprobe_event_gen_cmd_start(
    cmd: &mut DyneventCmd<'_>,
    name: &str,
    loc: &str,
    fields: &[&str],
) -> Result<(), Errno> {
    start(cmd, 'p', name, loc, fields)
}

/// Like [`kprobe_event_gen_cmd_start`], for a probe at a function's return.
///
/// # Errors
/// As for [`kprobe_event_gen_cmd_start`].
pub fn kretprobe_event_gen_cmd_start(
    cmd: &mut DyneventCmd<'_>,
    name: &str,
    loc: &str,
    fields: &[&str],
) -> Result<(), Errno> {
    start(cmd, 'r', name, loc, fields)
}

fn start(cmd: &mut DyneventCmd<'_>, kind: char, name: &str, loc: &str, fields: &[&str]) -> Result<(), Errno> {
    cmd.is_for(DyneventType::Kprobe)?;
    if loc.is_empty() {
        return Err(Errno::INVAL);
    }
    dynevent_str_add(cmd, &format!("{kind}:kprobes/{name}"))?;
    dynevent_arg_add(cmd, &DyneventArg { str: loc, ..dynevent_arg_init('\0') }, None)?;
    kprobe_event_add_fields(cmd, fields)
}

/// Adds fields, in order. If one does not fit, the fields before it remain.
///
/// # Errors
/// As for [`kprobe_event_gen_cmd_start`].
pub fn kprobe_event_add_fields(cmd: &mut DyneventCmd<'_>, fields: &[&str]) -> Result<(), Errno> {
    cmd.is_for(DyneventType::Kprobe)?;
    fields.iter().try_for_each(|field| {
        cmd.one_more_of(MAX_TRACE_ARGS)?;
        dynevent_arg_add(cmd, &DyneventArg { str: field, ..dynevent_arg_init('\0') }, None)
    })
}

/// Adds one field.
///
/// # Errors
/// As for [`kprobe_event_gen_cmd_start`].
pub fn kprobe_event_add_field(cmd: &mut DyneventCmd<'_>, field: &str) -> Result<(), Errno> {
    kprobe_event_add_fields(cmd, &[field])
}

/// Defines the event.
///
/// # Errors
/// The errors of a write to `kprobe_events`; `E2BIG` for a command that exceeded its bound.
pub fn kprobe_event_gen_cmd_end(cmd: &mut DyneventCmd<'_>) -> Result<(), Errno> {
    dynevent_create(cmd)
}

/// Defines the event.
///
/// # Errors
/// As for [`kprobe_event_gen_cmd_end`].
pub fn kretprobe_event_gen_cmd_end(cmd: &mut DyneventCmd<'_>) -> Result<(), Errno> {
    dynevent_create(cmd)
}

/// Deletes the kprobe event `NAME` or `GROUP/NAME`.
///
/// # Errors
/// `ENOENT` if it does not exist, `EBUSY` while it is enabled.
pub fn kprobe_event_delete(files: &Files, name: &str) -> Result<(), Errno> {
    if name.contains(char::is_whitespace) {
        return Err(Errno::INVAL);
    }
    files.run(DyneventType::Kprobe, &format!("-:{name}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::dynevent::MAX_DYNEVENT_CMD_LEN;

    fn cmd<'a>() -> DyneventCmd<'a> {
        dynevent_cmd_init(MAX_DYNEVENT_CMD_LEN, DyneventType::Kprobe, |_| Ok(()))
    }

    #[test]
    fn commands_have_the_form_of_the_kernels() {
        let mut made = cmd();
        kprobe_event_gen_cmd_start(&mut made, "gen_kprobe_test", "do_sys_open", &["dfd=%ax"]).unwrap();
        kprobe_event_add_fields(&mut made, &["flags=%cx", "mode=+4($stack)"]).unwrap();
        let wanted = "p:kprobes/gen_kprobe_test do_sys_open  dfd=%ax  flags=%cx  mode=+4($stack) ";
        assert_eq!(made.text(), wanted);
        let mut made = cmd();
        kretprobe_event_gen_cmd_start(&mut made, "gen_kretprobe_test", "do_sys_open", &["$retval"]).unwrap();
        assert_eq!(made.text(), "r:kprobes/gen_kretprobe_test do_sys_open  $retval ");
    }

    #[test]
    fn arguments_are_checked() {
        assert_eq!(kprobe_event_gen_cmd_start(&mut cmd(), "a", "", &[]), Err(Errno::INVAL));
        let mut many = cmd();
        kprobe_event_gen_cmd_start(&mut many, "a", "f", &["%ax"; MAX_TRACE_ARGS]).unwrap();
        assert_eq!(kprobe_event_add_field(&mut many, "%ax"), Err(Errno::INVAL));
        let mut synth = dynevent_cmd_init(64, DyneventType::Synth, |_| Ok(()));
        assert_eq!(kprobe_event_gen_cmd_start(&mut synth, "a", "f", &[]), Err(Errno::INVAL));
        assert_eq!(kprobe_event_add_fields(&mut synth, &[]), Err(Errno::INVAL));
        assert_eq!(synth.text(), "");
        let mut short = dynevent_cmd_init(20, DyneventType::Kprobe, |_| Ok(()));
        assert_eq!(kprobe_event_gen_cmd_start(&mut short, "abcdefgh", "f", &[]), Err(Errno::TOOBIG));
        assert_eq!(kprobe_event_gen_cmd_end(&mut short), Err(Errno::TOOBIG));
    }
}
