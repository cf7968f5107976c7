//! The numbers of files and directories, and the lookup of names.
//!
//! A number encodes the file, so that no table of numbers is needed: the instance, the kind of directory, the index
//! of the directory (its event or CPU), and the entry in the directory's table, 0 for the directory itself.

use crate::{
    engine::Engine,
    event::{EventId, InstanceId, SystemId},
    fs::files::{
        CPU, EVENT, EVENTS, KERNEL_EVENT, OPTION, PRINT_EVENT, SPECIAL_EVENT, SYNTHETIC_EVENT, SYSTEM, TOP,
        entry::{Entry, ReadKind},
    },
};

/// A directory in an instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dir {
    /// The instance itself: the root, or a directory in `instances`.
    Instance,
    /// `events`
    Events,
    /// `events/SYSTEM`
    System(SystemId),
    /// `events/SYSTEM/EVENT`
    Event(EventId),
    /// `per_cpu`
    PerCpu,
    /// `per_cpu/cpuN`
    Cpu(u32),
    /// `options`
    Options,
    /// `instances`
    Instances,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Node {
    pub(crate) instance: InstanceId,
    pub(crate) dir: Dir,
    /// The position in the directory's table, or the number of the option in `options`, from 1; 0 for the directory
    /// itself.
    pub(crate) entry: u32,
}

/// The number of the root in FUSE (`FUSE_ROOT_ID`).
pub(crate) const ROOT: u64 = 1;
/// A number has this many bits at most.
pub(crate) const NUMBER_BITS: u32 = 53;

impl Node {
    pub(crate) fn dir(instance: InstanceId, dir: Dir) -> Self {
        Self { instance, dir, entry: 0 }
    }

    /// The number: 22 bits of instance, 3 of kind, 20 of index, 8 of entry; plus 1, so that the root has [`ROOT`].
    pub(crate) fn number(self) -> u64 {
        let (kind, index) = match self.dir {
            Dir::Instance => (0, 0),
            Dir::Events => (1, 0),
            Dir::System(system) => (2, system.get()),
            Dir::Event(event) => (3, event.get()),
            Dir::PerCpu => (4, 0),
            Dir::Cpu(cpu) => (5, cpu),
            Dir::Options => (6, 0),
            Dir::Instances => (7, 0),
        };
        (u64::from(self.instance.get()) << 31 | kind << 28 | u64::from(index) << 8 | u64::from(self.entry))
            + ROOT
    }

    /// The node of a number. It need not exist.
    pub(crate) fn of(number: u64) -> Option<Self> {
        let number = number.checked_sub(ROOT)?;
        let index = (number >> 8 & 0xf_ffff) as u32;
        let dir = match number >> 28 & 7 {
            0 => Dir::Instance,
            1 => Dir::Events,
            2 => Dir::System(SystemId::new(index)),
            3 => Dir::Event(EventId::new(index)),
            4 => Dir::PerCpu,
            5 => Dir::Cpu(index),
            6 => Dir::Options,
            _ => Dir::Instances,
        };
        Some(Self { instance: InstanceId::new((number >> 31) as u32), dir, entry: (number & 0xff) as u32 })
    }

    pub(crate) fn is_dir(self) -> bool {
        self.entry == 0
    }

    fn table(dir: Dir, engine: &Engine) -> &'static [Entry] {
        let events = engine.registry.events();
        match dir {
            Dir::Instance => TOP,
            Dir::Events => EVENTS,
            Dir::System(system) if events.is_special(system) => &[],
            Dir::System(_) => SYSTEM,
            Dir::Event(event) => match events.get(event) {
                Some(event) if events.is_special(event.system) && event.name == "print" => PRINT_EVENT,
                Some(event) if events.is_special(event.system) => SPECIAL_EVENT,
                Some(_) if engine.registry.synthetic().contains(event) => SYNTHETIC_EVENT,
                Some(_) if !events.is_made(event) => KERNEL_EVENT,
                _ => EVENT,
            },
            Dir::Cpu(_) => CPU,
            Dir::PerCpu | Dir::Options | Dir::Instances => &[],
        }
    }

    /// The entry of a file; `None` for a directory.
    pub(crate) fn entry(self, engine: &Engine) -> Option<&'static Entry> {
        if self.dir == Dir::Options {
            return (self.entry > 0).then_some(&OPTION);
        }
        Self::table(self.dir, engine).get((self.entry as usize).checked_sub(1)?)
    }

    pub(crate) fn parent(self, engine: &Engine) -> Self {
        let dir = match self.dir {
            Dir::Instance if self.instance == InstanceId::TOP => Dir::Instance,
            Dir::Instance => return Self::dir(InstanceId::TOP, Dir::Instances),
            Dir::Events | Dir::PerCpu | Dir::Options | Dir::Instances => Dir::Instance,
            Dir::System(_) => Dir::Events,
            Dir::Event(event) => {
                engine.registry.events().get(event).map_or(Dir::Events, |event| Dir::System(event.system))
            }
            Dir::Cpu(_) => Dir::PerCpu,
        };
        Self::dir(self.instance, dir)
    }

    /// The files and directories in a directory, by name; `None` if the instance, system or event is gone.
    pub(crate) fn children(self, engine: &Engine) -> Option<Vec<(String, Self)>> {
        let state = engine.instances.get(self.instance)?;
        let top = self.instance == InstanceId::TOP;
        let dir = |dir| Self::dir(self.instance, dir);
        let (table, events) = (Self::table(self.dir, engine), engine.registry.events());
        let mut found: Vec<(String, Self)> = (1..)
            .zip(table)
            .filter(|(_, entry)| entry.is_in(self.instance, engine))
            .map(|(index, entry)| (entry.name.to_owned(), Self { entry: index, ..self }))
            .collect();
        match self.dir {
            Dir::Instance => {
                let dirs = [("events", Dir::Events), ("per_cpu", Dir::PerCpu), ("options", Dir::Options)];
                let instances = top.then_some(("instances", Dir::Instances));
                found.extend(dirs.into_iter().chain(instances).map(|(name, of)| (name.to_owned(), dir(of))));
            }
            Dir::Events => {
                for (id, system) in events.systems() {
                    if !table.iter().any(|file| file.name == system.name && file.is_in(self.instance, engine))
                    {
                        found.push((system.name.clone(), dir(Dir::System(id))));
                    }
                }
            }
            Dir::System(system) => {
                for event in &events.system(system)?.events {
                    let name = &events.get(*event)?.name;
                    if !table.iter().any(|file| file.name == name && file.is_in(self.instance, engine)) {
                        found.push((name.clone(), dir(Dir::Event(*event))));
                    }
                }
            }
            Dir::PerCpu => {
                let cpus = state.buffer.select(None);
                found.extend(cpus.map(|(cpu, _)| (format!("cpu{cpu}"), dir(Dir::Cpu(cpu)))));
            }
            Dir::Options => found.extend(state.options.files().filter_map(|option| {
                Some((state.options.name(option)?.to_owned(), Self { entry: option + 1, ..self }))
            })),
            Dir::Instances => {
                let below = engine.instances.below();
                found.extend(below.map(|(id, name)| (name.to_owned(), Self::dir(id, Dir::Instance))));
            }
            Dir::Event(_) | Dir::Cpu(_) => {}
        }
        Some(found)
    }

    pub(crate) fn child(self, name: &str, engine: &Engine) -> Option<Self> {
        if !self.is_dir() {
            return None;
        }
        engine.instances.get(self.instance)?;
        // Files come first: an event or system of the same name does not hide them.
        let own = (1..).zip(Self::table(self.dir, engine)).find(|(_, entry)| entry.name == name);
        if let Some((index, entry)) = own
            && entry.is_in(self.instance, engine)
        {
            return Some(Self { entry: index, ..self });
        }
        // These directories can be large, so a name is found without a list of all.
        let large = match self.dir {
            Dir::Events => engine.registry.events().find_system(name).map(Dir::System),
            Dir::System(system) => engine.registry.events().find(system, name).map(Dir::Event),
            _ => None,
        };
        if let Some(dir) = large {
            return Some(Self::dir(self.instance, dir));
        }
        self.children(engine)?.into_iter().find(|(known, _)| known == name).map(|(_, node)| node)
    }

    pub(crate) fn exists(self, engine: &Engine) -> bool {
        let Some(state) = engine.instances.get(self.instance) else { return false };
        let here = match self.dir {
            Dir::System(system) => engine.registry.events().system(system).is_some(),
            Dir::Event(event) => engine.registry.events().get(event).is_some(),
            Dir::Cpu(cpu) => state.buffer.cpu(cpu).is_some(),
            Dir::Instances => self.instance == InstanceId::TOP,
            _ => true,
        };
        here && (self.is_dir() || self.entry(engine).is_some())
    }

    /// The serial number of the event or system that the file belongs to, which tells it from an earlier one with the
    /// same number; 0 for other files, whose numbers are not reused.
    pub(crate) fn serial(self, engine: &Engine) -> u64 {
        let events = engine.registry.events();
        let serial = match self.dir {
            Dir::System(system) => events.system(system).map(|system| system.serial),
            Dir::Event(event) => events.get(event).map(|event| event.serial),
            _ => None,
        };
        serial.unwrap_or(0)
    }

    /// Whether it exists as long as its instance, so that the kernel can keep its name.
    pub(crate) fn is_permanent(self, engine: &Engine) -> bool {
        match self.dir {
            Dir::System(system) => engine.registry.events().is_permanent_system(system),
            Dir::Event(event) => engine.registry.events().is_permanent(event),
            _ => true,
        }
    }

    /// The size for stat(2): 0, except for files that can be mapped.
    pub(crate) fn size(self, engine: &Engine) -> u64 {
        match self.entry(engine).map(|entry| entry.read_kind) {
            Some(ReadKind::Page(_, make)) => make(engine).len() as u64,
            _ => 0,
        }
    }

    /// The permissions and the number of links.
    pub(crate) fn mode(self, engine: &Engine) -> (u16, u32) {
        if let Some(entry) = self.entry(engine) {
            return (entry.mode, 1);
        }
        let state = engine.instances.get(self.instance);
        let cpus = state.map_or(0, |state| state.buffer.select(None).count() as u32);
        match self.dir {
            Dir::Instance if self.instance == InstanceId::TOP => (0o700, 6),
            Dir::Instance => (0o750, 5),
            // As in eventfs: 1 link tells programs that walk the tree not to count subdirectories by links.
            Dir::Events | Dir::System(_) | Dir::Event(_) => (0o755, 1),
            Dir::PerCpu => (0o750, 2 + cpus),
            Dir::Instances => (0o750, 2 + engine.instances.below().count() as u32),
            Dir::Cpu(_) | Dir::Options => (0o750, 2),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_decoded_to_their_parts() {
        for dir in [
            Dir::Instance,
            Dir::Events,
            Dir::System(SystemId::new(70)),
            Dir::Event(EventId::new(2304)),
            Dir::PerCpu,
            Dir::Cpu(511),
            Dir::Options,
            Dir::Instances,
        ] {
            for (instance, entry) in [(0, 0), (1, 7), (100_000, 40)] {
                let node = Node { instance: InstanceId::new(instance), dir, entry };
                assert_eq!(Node::of(node.number()), Some(node));
                assert!(node.number() < 1 << NUMBER_BITS);
            }
        }
        assert_eq!(Node::dir(InstanceId::TOP, Dir::Instance).number(), ROOT);
        assert_eq!(Node::of(0), None);
    }
}
