//! The lines that `dynamic_events`, `kprobe_events` and `uprobe_events` show for an event, and the events that a
//! deletion selects.

use super::{Arg, Event, Place, Target, raw};

/// Bytes of a place that are compared with a deletion's words: `MAX_ARGSTR_LEN`, kernel/trace/trace_probe.h.
const HEAD_MAX: usize = 63;

impl Event {
    /// The first letter of the event's definition.
    pub fn letter(&self) -> char {
        match self.target {
            Target::Function { .. } => 'f',
            Target::Tracepoint { .. } => 't',
            Target::Kernel { exit: true, .. } | Target::File { exit: true, .. } => 'r',
            Target::Kernel { .. } | Target::File { .. } => 'p',
            Target::Event { .. } => 'e',
        }
    }

    /// The event's line, including the newline. It defines the same event again, except that the filter of an event
    /// probe is omitted.
    pub fn read_back(&self) -> Vec<u8> {
        let mut line = vec![self.letter() as u8];
        if self.is_exit() && self.maxactive != 0 {
            line.extend(self.maxactive.to_string().bytes());
        }
        line.extend(raw(&format!(":{}/{} ", self.group, self.name)));
        match &self.target {
            Target::Function { symbol, exit } => {
                line.extend(raw(symbol));
                line.extend_from_slice(if *exit { b"%return" } else { b"" });
            }
            Target::Event { system, name, .. } => line.extend(raw(&format!("{system}.{name}"))),
            _ => line.extend(self.place()),
        }
        for arg in &self.args {
            line.push(b' ');
            line.extend(arg.read_back());
        }
        line.push(b'\n');
        line
    }

    /// The place in the form that a deletion must use.
    fn place(&self) -> Vec<u8> {
        match &self.target {
            Target::Function { symbol: name, .. }
            | Target::Tracepoint { name }
            | Target::Kernel { place: Place::Symbol { name, offset: 0 }, .. } => raw(name),
            Target::Kernel { place: Place::Address(address), .. } => format!("0x{address:016x}").into_bytes(),
            Target::Kernel { place: Place::Symbol { name, offset }, .. } => raw(&format!("{name}+{offset}")),
            Target::File { path, offset, reference, .. } => {
                let mut place = path.clone();
                place.extend(format!(":0x{offset:016x}").bytes());
                if *reference != 0 {
                    place.extend(format!("(0x{reference:x})").bytes());
                }
                place
            }
            Target::Event { system, name, .. } => raw(&format!("{system}/{name}")),
        }
    }

    /// Whether a deletion selects this event. Compares the group if one is given, the name if it is not empty, and
    /// the place and the arguments as far as the deletion contains them.
    pub fn is_named(&self, group: Option<&[u8]>, name: &[u8], words: &[&[u8]]) -> bool {
        if !name.is_empty() && raw(&self.name) != name || group.is_some_and(|group| raw(&self.group) != group)
        {
            return false;
        }
        let Some((place, args)) = words.split_first() else { return true };
        let fits = match &self.target {
            Target::Event { system, name, .. } => {
                let separator = if place.contains(&b'/') { '/' } else { '.' };
                raw(&format!("{system}{separator}{name}")) == *place
            }
            Target::File { path, .. } => {
                let own = self.place();
                let (head, shown) = own.split_at_checked(path.len() + 1).unwrap_or((&own, &[]));
                place.strip_prefix(head) == Some(shown.get(..HEAD_MAX).unwrap_or(shown))
            }
            _ => {
                let own = self.place();
                own.get(..HEAD_MAX).unwrap_or(&own) == *place
            }
        };
        fits && args.len() <= self.args.len()
            && args.iter().zip(&self.args).all(|(word, arg)| **word == arg.read_back()[..])
    }
}

impl Arg {
    /// `NAME=` and the definition.
    fn read_back(&self) -> Vec<u8> {
        let mut text = raw(&self.name);
        text.push(b'=');
        text.extend(&self.text);
        text
    }
}
