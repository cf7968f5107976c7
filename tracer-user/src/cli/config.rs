//! The configuration file of `tracer mount`, in TOML.
//!
//! Each key is the name of a long option of `tracer mount`, without the dashes. A file is read as the words of a command
//! line, so the command line's own parser checks all values, and options on the real command line replace those of the
//! file.

use std::{
    ffi::{OsStr, OsString},
    fs::File,
    io::{self, Read as _},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
};

use clap::{Arg, ArgAction, CommandFactory as _, FromArgMatches as _, error::ErrorKind, parser::ValueSource};
use rustix::fs::OFlags;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::args::{Args, Command, MountArgs};
use crate::plan::resolve::nearest;

/// The command that has a configuration.
const MOUNT: &str = "mount";
/// Its options that a file cannot have.
const COMMAND_LINE_ONLY: [&str; 7] =
    ["config", "check", "background", "until", "state-dir", "help", "version"];
/// The key for the mount point, which has no option of its own.
pub(super) const DIR: &str = "dir";
/// The key with permissions.
const MODE: &str = "mode";
/// Maximum number of bytes of a file.
const BYTES_MAX: u64 = 1 << 14;
/// Maximum number of bytes of a line that an error shows.
const SHOWN_MAX: usize = 200;

/// Why a configuration is refused.
#[derive(Debug, thiserror::Error)]
pub(super) enum ConfigError {
    #[error("cannot be read")]
    Io(#[from] io::Error),
    #[error("is not a regular file")]
    NotRegular,
    #[error("has more than {BYTES_MAX} bytes")]
    TooLong,
    #[error("is not UTF-8")]
    NotText,
    #[error("the command line is not one of `tracer mount`")]
    NotMount,
    /// A message with the place in the file.
    #[error("{0}")]
    At(String),
}

/// Whether an option can be a key: it is documented, and belongs to the mirror and not to one start of it.
pub(super) fn is_key(option: &Arg) -> bool {
    !option.is_hide_set() && option.get_long().is_some_and(|name| !COMMAND_LINE_ONLY.contains(&name))
}

/// The definition of `tracer mount`.
pub(super) fn mount_command() -> clap::Command {
    let mut all = Args::command();
    all.build();
    all.find_subcommand(MOUNT).cloned().unwrap_or(all)
}

/// The arguments of `tracer mount` of a command line, with those options of a file that the command line lacks. `words`
/// are all words of the command line.
pub(super) fn load(path: &Path, words: impl IntoIterator<Item = OsString>) -> Result<MountArgs, ConfigError> {
    let text = read(path)?;
    let program = [OsString::from("tracer"), OsString::from(MOUNT)];
    let given: Vec<_> = words.into_iter().skip(1).skip_while(|word| word != MOUNT).skip(1).collect();
    let parse = |of_file: Vec<OsString>| {
        let all = program.iter().cloned().chain(of_file).chain(given.iter().cloned());
        Args::command().try_get_matches_from(all).map_err(|error| ConfigError::At(message(&error)))
    };
    let alone = parse(Vec::new())?;
    let is_given = |name: &str| {
        let mount = alone.subcommand_matches(MOUNT);
        let id = name.replace('-', "_");
        mount.is_some_and(|mount| mount.value_source(&id) == Some(ValueSource::CommandLine))
    };
    let Contents { dir, words: of_file } = Contents::parse(&text, is_given)?;
    // Each word of the file was checked alone, so what fails now is the combination of both.
    let matches = parse(of_file)?;
    match Args::from_arg_matches(&matches).map_err(|error| ConfigError::At(message(&error)))?.command {
        Command::Mount(args) => Ok(MountArgs { dir: dir.unwrap_or(args.dir), ..args }),
        _ => Err(ConfigError::NotMount),
    }
}

/// Reads a file without waiting for a writer of a FIFO.
fn read(path: &Path) -> Result<String, ConfigError> {
    let flags = OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = File::options().read(true).custom_flags(flags.bits().cast_signed()).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(ConfigError::NotRegular);
    }
    let mut bytes = Vec::new();
    file.take(BYTES_MAX + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > BYTES_MAX {
        return Err(ConfigError::TooLong);
    }
    String::from_utf8(bytes).map_err(|_| ConfigError::NotText)
}

/// What a file says.
#[derive(Debug, Default)]
struct Contents {
    /// The mount point.
    dir: Option<PathBuf>,
    /// Words of a command line.
    words: Vec<OsString>,
}

impl Contents {
    /// Reads a text, without the keys that are given otherwise.
    fn parse(text: &str, is_given: impl Fn(&str) -> bool) -> Result<Self, ConfigError> {
        let table = DeTable::parse(text).map_err(|error| {
            let at = error.span().map_or(0, |span| span.start);
            refused(text, at, error.message())
        })?;
        let command = mount_command();
        let mut contents = Self::default();
        let mut entries: Vec<_> = table.get_ref().iter().collect();
        entries.sort_by_key(|(key, _)| key.span().start);
        for (key, value) in entries {
            let name = key.get_ref().as_ref();
            let at = value.span().start;
            if name == DIR {
                let dir = scalar(DIR, value.get_ref()).map_err(|needed| refused(text, at, needed))?;
                contents.dir = Some(PathBuf::from(dir)).filter(|_| !is_given(DIR));
                continue;
            }
            let option =
                command.get_arguments().find(|option| is_key(option) && option.get_long() == Some(name));
            let option = option.ok_or_else(|| refused(text, key.span().start, &unknown(&command, name)))?;
            let words = option_words(option, value).map_err(|needed| refused(text, at, needed))?;
            for word in &words {
                check(&command, word).map_err(|error| refused(text, at, &message(&error)))?;
            }
            if !is_given(name) {
                contents.words.extend(words);
            }
        }
        Ok(contents)
    }
}

/// The words for a key and its value. The error says which kind of value is needed.
fn option_words(option: &Arg, value: &Spanned<DeValue<'_>>) -> Result<Vec<OsString>, &'static str> {
    let name = option.get_long().unwrap_or_default();
    let word = |text: String| OsString::from(format!("--{name}={text}"));
    match (option.get_action(), value.get_ref()) {
        (ArgAction::SetTrue, DeValue::Boolean(true)) => Ok(vec![format!("--{name}").into()]),
        (ArgAction::SetTrue, DeValue::Boolean(false)) => Ok(Vec::new()),
        (ArgAction::SetTrue, _) => Err("true or false is needed"),
        (ArgAction::Append, DeValue::Array(values)) => {
            values.iter().map(|value| scalar(name, value.get_ref()).map(word)).collect()
        }
        (ArgAction::Append, _) => Err("a list of texts is needed"),
        (_, value) => Ok(vec![word(scalar(name, value)?)]),
    }
}

/// The text of a value that is one word. The error says what is needed.
fn scalar(name: &str, value: &DeValue<'_>) -> Result<String, &'static str> {
    match value {
        DeValue::String(text) => Ok(text.to_string()),
        // Permissions are octal on the command line too.
        DeValue::Integer(number) if number.radix() == 10 || number.radix() == 8 && name == MODE => {
            Ok(number.as_str().to_owned())
        }
        DeValue::Integer(_) => Err("a decimal number is needed"),
        _ => Err("a text or a number is needed"),
    }
}

/// Checks one word as the command line would.
fn check(command: &clap::Command, word: &OsStr) -> Result<(), clap::Error> {
    let words = [OsStr::new(MOUNT), word];
    match command.clone().try_get_matches_from(words) {
        Err(error) if error.kind() != ErrorKind::MissingRequiredArgument => Err(error),
        _ => Ok(()),
    }
}

/// An error of the command line in one line: without its prefix, with the possible values.
fn message(error: &clap::Error) -> String {
    let text = error.to_string();
    let mut lines = text.lines().map(str::trim);
    let first = lines.next().unwrap_or_default();
    let first = first.strip_prefix("error: ").unwrap_or(first);
    match lines.next().filter(|line| line.starts_with('[')) {
        Some(values) => format!("{first} {values}"),
        None => first.to_owned(),
    }
}

/// The message for an unknown key, with the nearest known one.
fn unknown(command: &clap::Command, name: &str) -> String {
    if COMMAND_LINE_ONLY.contains(&name) {
        return "this option is only for the command line".to_owned();
    }
    let keys = command.get_arguments().filter(|option| is_key(option)).filter_map(Arg::get_long);
    match nearest(name, keys.chain([DIR]).map(str::to_owned)) {
        Some(key) => format!("unknown key; did you mean `{key}`?"),
        None => "unknown key".to_owned(),
    }
}

/// An error at a place of the text: its line with a caret, if it is not too long.
fn refused(text: &str, at: usize, message: &str) -> ConfigError {
    let before = text.get(..at).unwrap_or(text);
    let number = before.matches('\n').count() + 1;
    let line = text.lines().nth(number - 1).unwrap_or_default();
    let caret = " ".repeat(before.rsplit('\n').next().unwrap_or_default().chars().count());
    ConfigError::At(if line.len() > SHOWN_MAX {
        format!("line {number}: {message}")
    } else {
        format!("line {number}: {message}\n  {line}\n  {caret}^")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Result<Vec<String>, String> {
        let contents = Contents::parse(text, |_| false).map_err(|error| error.to_string())?;
        Ok(contents.words.into_iter().map(|word| word.into_string().unwrap()).collect())
    }

    #[test]
    fn each_key_becomes_an_option() {
        let text = "boot = true\nrestore = false\ngid = 1000\nmode = \"750\"\n\
                    trace-event = [\"sched:sched_switch\", \"irq\"]\n";
        let mut all = words(text).unwrap();
        all.sort();
        let expected =
            ["--boot", "--gid=1000", "--mode=750", "--trace-event=irq", "--trace-event=sched:sched_switch"];
        assert_eq!(all, expected);
    }

    #[test]
    fn the_installed_file_is_valid_with_each_of_its_lines() {
        let text = include_str!("../../../packaging/tracer.toml");
        assert_eq!(words(text).unwrap(), ["--boot", "--restore", "--keep-state"]);
        let keys =
            text.lines().filter_map(|line| line.strip_prefix('#')).filter(|line| !line.starts_with(' '));
        let all = keys.collect::<Vec<_>>().join("\n");
        assert!(words(&all).unwrap().len() >= 6, "{all}");
    }

    #[test]
    fn wrong_keys_and_values_are_refused_at_their_place() {
        let cases = [
            (
                "boot = true\ntrace-events = []\n",
                "line 2: unknown key; did you mean `trace-event`?\n  trace-events = []\n  ^",
            ),
            ("zzzzzzzz = 1\n", "line 1: unknown key\n  zzzzzzzz = 1\n  ^"),
            ("boot = 1\n", "line 1: true or false is needed\n  boot = 1\n         ^"),
            ("background = true\n", "line 1: this option is only for the command line"),
            (
                "language = \"new\"\n",
                "line 1: invalid value 'new' for '--language <WHICH>' [possible values: kernel, newest]",
            ),
            ("gid = 0x10\n", "line 1: a decimal number is needed"),
            ("b = 1\na = 1\n", "line 1: unknown key"),
            ("gid = \"x\"\n", "line 1: invalid value 'x' for '--gid <GID>'"),
            ("mode = [7]\n", "line 1: a text or a number is needed"),
            ("trace-event = [1.5]\n", "line 1: a text or a number is needed"),
            ("trace-event = \"irq\"\n", "line 1: a list of texts is needed"),
            ("boot = true\nboot = true\n", "line 2: duplicate key"),
            ("boot\n", "line 1: "),
        ];
        for (text, expected) in cases {
            let error = words(text).unwrap_err();
            assert!(error.starts_with(expected), "{text:?}: {error}");
        }
        assert_eq!(words("mode = 0o750\n").unwrap(), words("mode = 750\n").unwrap());
        let long = format!("dir = \"{}", "x".repeat(BYTES_MAX as usize - 7));
        let error = words(&long).unwrap_err();
        assert!(error.starts_with("line 1: ") && error.len() < SHOWN_MAX, "{error}");
    }

    #[test]
    fn the_command_line_has_precedence() {
        let path = std::env::temp_dir().join(format!("tracer-config-{}.toml", std::process::id()));
        std::fs::write(&path, "mode = \"750\"\ngid = 7\ntrace-event = [\"irq\"]\ndir = \"/run/x\"\n")
            .unwrap();
        // The program's own name may be the command's.
        let line = ["mount", "mount", "--config", path.to_str().unwrap(), "--gid=9"].map(OsString::from);
        let args = load(&path, line.clone()).unwrap();
        let owner = args.serving.owner();
        assert_eq!((owner.gid, owner.mode), (9, 0o750));
        assert_eq!((args.trace_event, args.dir), (vec!["irq".to_owned()], "/run/x".into()));
        let more = ["--trace-event=sched", "/run/y"].map(OsString::from);
        let other = load(&path, line.into_iter().chain(more)).unwrap();
        assert_eq!((other.trace_event, other.dir), (vec!["sched".to_owned()], "/run/y".into()));
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn only_regular_files_of_limited_size_are_read() {
        assert!(matches!(read(Path::new("/dev/null")), Err(ConfigError::NotRegular)));
        assert!(matches!(read(Path::new("/no/such/file")), Err(ConfigError::Io(_))));
        let path = std::env::temp_dir().join(format!("tracer-config-long-{}", std::process::id()));
        std::fs::write(&path, vec![b'#'; BYTES_MAX as usize + 1]).unwrap();
        assert!(matches!(read(&path), Err(ConfigError::TooLong)));
        std::fs::write(&path, b"\xff").unwrap();
        assert!(matches!(read(&path), Err(ConfigError::NotText)));
        std::fs::remove_file(&path).unwrap();
    }
}
