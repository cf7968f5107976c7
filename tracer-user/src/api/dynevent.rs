//! Commands that define dynamic events, built piece by piece (kernel/trace/trace_dynevent.c).
//!
//! A [`DyneventCmd`] has a bound in bytes, which includes the kernel's NUL after the string. A piece that does not
//! fit fails with `E2BIG`, and so does every later piece, however short. If the caller ignores the error, the kernel
//! runs the truncated command. Here such a command fails with `E2BIG` instead, because half a command defines an
//! unintended event.
//!
//! ```
//! use tracer_user::api::{Errno, dynevent::*};
//!
//! let mut ran = String::new();
//! let mut cmd = dynevent_cmd_init(64, DyneventType::Kprobe, |text| {
//!     ran.push_str(text);
//!     Ok(())
//! });
//! dynevent_str_add(&mut cmd, "p:kprobes/opened")?;
//! let mut arg = dynevent_arg_init('\0');
//! for text in ["do_sys_openat2", "dfd=%di"] {
//!     arg.str = text;
//!     dynevent_arg_add(&mut cmd, &arg, None)?;
//! }
//! dynevent_create(&mut cmd)?;
//! drop(cmd);
//! assert_eq!(ran, "p:kprobes/opened do_sys_openat2  dfd=%di ");
//! # Ok::<(), Errno>(())
//! ```

use std::fmt;

use rustix::io::Errno;

/// The bound that fits every command (`MAX_DYNEVENT_CMD_LEN`), in bytes.
pub const MAX_DYNEVENT_CMD_LEN: usize = 2048;

/// The kind of event that a command defines. The functions for one kind refuse commands of another kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DyneventType {
    /// A synthetic event.
    Synth,
    /// A kprobe event.
    Kprobe,
}

/// Runs a finished command.
pub type DyneventCreateFn<'a> = dyn FnMut(&str) -> Result<(), Errno> + 'a;

/// An unfinished command.
pub struct DyneventCmd<'a> {
    text: String,
    bound: usize,
    overflowed: bool,
    kind: DyneventType,
    run_command: Box<DyneventCreateFn<'a>>,
    /// Number of fields so far.
    fields: usize,
}

impl fmt::Debug for DyneventCmd<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DyneventCmd")
            .field("kind", &self.kind)
            .field("text", &self.text)
            .field("bound", &self.bound)
            .field("overflowed", &self.overflowed)
            .finish_non_exhaustive()
    }
}

impl DyneventCmd<'_> {
    /// The text so far.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The kind of event that the command defines.
    pub fn kind(&self) -> DyneventType {
        self.kind
    }

    /// Refuses a command of another kind.
    ///
    /// # Errors
    /// `EINVAL`.
    pub fn is_for(&self, kind: DyneventType) -> Result<(), Errno> {
        if self.kind == kind { Ok(()) } else { Err(Errno::INVAL) }
    }

    /// Counts one more field, up to `most`.
    pub(super) fn one_more_of(&mut self, most: usize) -> Result<(), Errno> {
        self.fields += 1;
        if self.fields > most { Err(Errno::INVAL) } else { Ok(()) }
    }

    fn append(&mut self, text: &str) -> Result<(), Errno> {
        if self.overflowed || self.text.len() + text.len() >= self.bound {
            self.overflowed = true;
            tracing::warn!("string is too long: {text}");
            return Err(Errno::TOOBIG);
        }
        self.text.push_str(text);
        Ok(())
    }
}

/// An argument of a command, with the character after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DyneventArg<'a> {
    /// The argument.
    pub str: &'a str,
    /// `;`, `,` or a blank.
    pub separator: char,
}

/// Two halves of an argument, such as `type name;` or `x+y`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DyneventArgPair<'a> {
    /// The first half.
    pub lhs: &'a str,
    /// The second half.
    pub rhs: &'a str,
    /// The character between them.
    pub operator: char,
    /// The character after them.
    pub separator: char,
}

/// Checks an argument before it is added. A refused argument is not added.
pub type DyneventCheckArgFn<A> = fn(&A) -> Result<(), Errno>;

/// NUL selects the default, a blank.
fn or_blank(given: char) -> char {
    if given == '\0' { ' ' } else { given }
}

/// Begins a command of at most `maxlen` bytes, including the NUL, that `run_command` will run.
pub fn dynevent_cmd_init<'a>(
    maxlen: usize,
    kind: DyneventType,
    run_command: impl FnMut(&str) -> Result<(), Errno> + 'a,
) -> DyneventCmd<'a> {
    DyneventCmd {
        text: String::new(),
        bound: maxlen,
        overflowed: false,
        kind,
        run_command: Box::new(run_command),
        fields: 0,
    }
}

/// An empty argument with a separator; NUL selects a blank.
pub fn dynevent_arg_init<'a>(separator: char) -> DyneventArg<'a> {
    DyneventArg { str: "", separator: or_blank(separator) }
}

/// An empty pair with an operator and a separator; NUL selects a blank.
pub fn dynevent_arg_pair_init<'a>(operator: char, separator: char) -> DyneventArgPair<'a> {
    DyneventArgPair { lhs: "", rhs: "", operator: or_blank(operator), separator: or_blank(separator) }
}

/// Adds a blank, the argument and its separator.
///
/// # Errors
/// The error of `check_arg`, or `E2BIG` past the bound.
pub fn dynevent_arg_add<'a>(
    cmd: &mut DyneventCmd<'_>,
    arg: &DyneventArg<'a>,
    check_arg: Option<DyneventCheckArgFn<DyneventArg<'a>>>,
) -> Result<(), Errno> {
    if let Some(check) = check_arg {
        check(arg)?;
    }
    cmd.append(&format!(" {}{}", arg.str, arg.separator))
}

/// Adds a blank, the first half, the operator, the second half and the separator.
///
/// # Errors
/// As for [`dynevent_arg_add`].
pub fn dynevent_arg_pair_add<'a>(
    cmd: &mut DyneventCmd<'_>,
    pair: &DyneventArgPair<'a>,
    check_arg: Option<DyneventCheckArgFn<DyneventArgPair<'a>>>,
) -> Result<(), Errno> {
    if let Some(check) = check_arg {
        check(pair)?;
    }
    cmd.append(&format!(" {}{}{}{}", pair.lhs, pair.operator, pair.rhs, pair.separator))
}

/// Adds a string as it is.
///
/// # Errors
/// `E2BIG` past the bound.
pub fn dynevent_str_add(cmd: &mut DyneventCmd<'_>, str: &str) -> Result<(), Errno> {
    cmd.append(str)
}

/// Runs the command, which defines the event.
///
/// # Errors
/// The error of the command, or `E2BIG` for a command that exceeded its bound.
pub fn dynevent_create(cmd: &mut DyneventCmd<'_>) -> Result<(), Errno> {
    if cmd.overflowed {
        return Err(Errno::TOOBIG);
    }
    (cmd.run_command)(&cmd.text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn quiet<'a>(maxlen: usize) -> DyneventCmd<'a> {
        dynevent_cmd_init(maxlen, DyneventType::Synth, |_| Ok(()))
    }

    #[test]
    fn pieces_are_joined_as_in_the_kernel() {
        let mut cmd = quiet(MAX_DYNEVENT_CMD_LEN);
        dynevent_str_add(&mut cmd, "schedtest").unwrap();
        let mut pair = dynevent_arg_pair_init('\0', ';');
        (pair.lhs, pair.rhs) = ("pid_t", "next_pid_field");
        dynevent_arg_pair_add(&mut cmd, &pair, None).unwrap();
        let mut arg = dynevent_arg_init(';');
        arg.str = "u64 ts_ns";
        dynevent_arg_add(&mut cmd, &arg, None).unwrap();
        assert_eq!(cmd.text(), "schedtest pid_t next_pid_field; u64 ts_ns;");
        assert_eq!(dynevent_arg_init('\0').separator, ' ');
        let pair = dynevent_arg_pair_init('+', '\0');
        assert_eq!((pair.operator, pair.separator), ('+', ' '));
    }

    #[test]
    fn a_refused_argument_leaves_the_command_as_it_was() {
        fn no_blanks(arg: &DyneventArg<'_>) -> Result<(), Errno> {
            if arg.str.contains(' ') { Err(Errno::INVAL) } else { Ok(()) }
        }
        fn named(pair: &DyneventArgPair<'_>) -> Result<(), Errno> {
            if pair.rhs.is_empty() { Err(Errno::INVAL) } else { Ok(()) }
        }
        let mut cmd = quiet(64);
        let arg = DyneventArg { str: "a b", ..dynevent_arg_init('\0') };
        assert_eq!(dynevent_arg_add(&mut cmd, &arg, Some(no_blanks)), Err(Errno::INVAL));
        let pair = DyneventArgPair { lhs: "u64", ..dynevent_arg_pair_init('\0', ';') };
        assert_eq!(dynevent_arg_pair_add(&mut cmd, &pair, Some(named)), Err(Errno::INVAL));
        assert_eq!(cmd.text(), "");
        let arg = DyneventArg { str: "ab", ..arg };
        dynevent_arg_add(&mut cmd, &arg, Some(no_blanks)).unwrap();
        assert_eq!(cmd.text(), " ab ");
    }

    #[test]
    fn past_the_bound_every_piece_is_refused() {
        let ran = std::cell::Cell::new(0);
        let mut cmd = dynevent_cmd_init(8, DyneventType::Synth, |_| {
            ran.set(ran.get() + 1);
            Ok(())
        });
        // Seven bytes and the NUL fit into eight.
        dynevent_str_add(&mut cmd, "1234567").unwrap();
        dynevent_create(&mut cmd).unwrap();
        assert_eq!(dynevent_str_add(&mut cmd, "8"), Err(Errno::TOOBIG));
        assert_eq!(dynevent_str_add(&mut cmd, ""), Err(Errno::TOOBIG));
        assert_eq!(dynevent_arg_add(&mut cmd, &dynevent_arg_init('\0'), None), Err(Errno::TOOBIG));
        assert_eq!(dynevent_create(&mut cmd), Err(Errno::TOOBIG));
        assert_eq!((cmd.text(), ran.get()), ("1234567", 1));
        let mut none = quiet(0);
        assert_eq!(dynevent_str_add(&mut none, ""), Err(Errno::TOOBIG));
        // Eight bytes at once.
        let mut cmd = quiet(8);
        assert_eq!(dynevent_str_add(&mut cmd, "12345678"), Err(Errno::TOOBIG));
        assert_eq!(dynevent_str_add(&mut cmd, "1"), Err(Errno::TOOBIG));
    }

    #[test]
    fn the_error_of_running_is_returned() {
        let mut cmd = dynevent_cmd_init(8, DyneventType::Kprobe, |text| {
            if text == "good" { Ok(()) } else { Err(Errno::EXIST) }
        });
        dynevent_str_add(&mut cmd, "go").unwrap();
        assert_eq!(dynevent_create(&mut cmd), Err(Errno::EXIST));
        dynevent_str_add(&mut cmd, "od").unwrap();
        assert_eq!(dynevent_create(&mut cmd), Ok(()));
        assert_eq!((cmd.kind(), cmd.is_for(DyneventType::Synth)), (DyneventType::Kprobe, Err(Errno::INVAL)));
    }
}
