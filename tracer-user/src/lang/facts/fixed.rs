//! Facts from tables: a kernel with a few functions, for tests and fuzzing.

use std::collections::BTreeMap;

use rustix::io::Errno;

use super::{Arch, Facts, FileFact, Language, Spot};
use crate::event::{Format, Glob};
use crate::kernel::btf::{BitMember, Class, Shape, Signature};
use crate::lang::filter::{self, Dialect, FilterError};

/// A kernel described by tables.
#[derive(Clone, Debug)]
pub struct Fixed {
    /// Language features.
    pub language: Language,
    /// Architecture.
    pub arch: Arch,
    /// Functions: name with or without a `MODULE:` prefix, address and size.
    pub symbols: Vec<(String, u64, u64)>,
    /// Loaded modules.
    pub modules: Vec<String>,
    /// Addresses that must not be probed, and the kernel's errno.
    pub refused: BTreeMap<u64, Errno>,
    /// Tracepoints, and the function that describes their types.
    pub tracepoints: BTreeMap<String, String>,
    /// Signatures by function.
    pub signatures: BTreeMap<String, Signature>,
    /// Types by id.
    pub types: Vec<Shape>,
    /// Ids of structs by name.
    pub structures: BTreeMap<String, u32>,
    /// Members by id of the struct and name.
    pub members: BTreeMap<(u32, String), BitMember>,
    /// Offsets in bytes by struct and path.
    pub offsets: BTreeMap<(String, String), u32>,
    /// Existing events.
    pub events: Vec<Format>,
    /// Files by path.
    pub files: BTreeMap<Vec<u8>, FileFact>,
}

const SWITCH: &str = "name: sched_switch\nID: 300\nformat:\n\
    \tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;\n\n\
    \tfield:char prev_comm[16];\toffset:8;\tsize:16;\tsigned:0;\n\
    \tfield:pid_t prev_pid;\toffset:24;\tsize:4;\tsigned:1;\n\
    \tfield:char next_comm[16];\toffset:40;\tsize:16;\tsigned:0;\n\nprint fmt: \"\"\n";

fn file(regular: bool, inode: u64) -> FileFact {
    FileFact { regular, identity: (1, inode), symbol: None, opened: None }
}

impl Fixed {
    /// A kernel with `vfs_read()` and `vfs_open()`, the tracepoint and event `sched_switch`, a module `ext`, two static
    /// functions of the same name, a function that must not be traced, and the file `/bin/true`.
    pub fn small() -> Self {
        let int = |bits, signed| Shape { class: Class::Int { bits, signed }, word: bits / 8 };
        let pointer = |to| Shape { class: Class::Pointer, word: to };
        let aggregate = |id| Shape { class: Class::Aggregate(id), word: 64 };
        // The ids 1, 2, 4 and 8 are also sizes, so none of them is an unsigned byte.
        let types = vec![
            Shape { class: Class::Other, word: 0 },
            int(64, false),                            // 1 unsigned long
            int(64, true),                             // 2 long
            int(8, false),                             // 3 char
            int(32, true),                             // 4 int
            pointer(3),                                // 5 char *
            aggregate(6),                              // 6 struct file
            pointer(6),                                // 7 struct file *
            int(32, false),                            // 8 unsigned int
            aggregate(9),                              // 9 struct task_struct
            pointer(9),                                // 10 struct task_struct *
            Shape { class: Class::Array(3), word: 0 }, // 11 char[]
            aggregate(12),                             // 12 struct inner
            pointer(0),                                // 13 void *
            Shape { class: Class::Enum, word: 4 },     // 14 enum
            int(16, false),                            // 15 unsigned short
            int(8, true),                              // 16 signed char
        ];
        let member =
            |of: u32, name: &str, offset, bits, ty| ((of, name.to_owned()), BitMember { offset, bits, ty });
        let members = [
            member(6, "f_mode", 96, 0, 8),
            member(6, "f_inode", 256, 0, 13),
            member(6, "f_name", 320, 0, 5),
            member(6, "f_next", 384, 0, 7),
            member(6, "f_inner", 448, 0, 12),
            member(9, "comm", 1024, 0, 11),
            member(9, "start_time", 2048, 0, 1),
            member(9, "flag", 3, 2, 8),
            member(9, "parent", 4096, 0, 10),
            member(12, "a", 0, 0, 4),
            member(12, "b", 64, 0, 10),
        ];
        let signature = |params: &[(&str, u32)], returns| Signature {
            params: params.iter().map(|(name, ty)| ((*name).to_owned(), *ty)).collect(),
            returns,
        };
        let switch = [("__data", 13), ("preempt", 3), ("prev", 10), ("next", 10), ("prev_state", 8)];
        let signatures = [
            ("vfs_read", signature(&[("file", 7), ("buf", 5), ("count", 1), ("pos", 13)], 2)),
            ("vfs_open", signature(&[("path", 13), ("file", 7)], 4)),
            ("nothing", signature(&[], 0)),
            ("__probestub_sched_switch", signature(&switch, 0)),
        ];
        let symbols = [
            ("vfs_read", 0x1000, 0x100),
            ("vfs_open", 0x1100, 0x100),
            ("nothing", 0x1200, 0x10),
            ("twice", 0x1300, 0x10),
            ("twice", 0x1310, 0x10),
            ("hidden", 0x1400, 0x10),
            ("ext:ext_read", 0x9000, 0x40),
            ("jiffies", 0x5000, 8),
        ];
        let named = |path: &str| path.as_bytes().to_vec();
        let offset = |of: &str, path: &str, at| ((of.to_owned(), path.to_owned()), at);
        Self {
            language: Language::v6_12(),
            arch: Arch::X86_64,
            symbols: symbols.map(|(name, address, size)| (name.to_owned(), address, size)).to_vec(),
            modules: vec!["ext".to_owned()],
            refused: [(0x1400, Errno::INVAL), (0x1003, Errno::ILSEQ)].into(),
            tracepoints: [("sched_switch".to_owned(), "__probestub_sched_switch".to_owned())].into(),
            signatures: signatures.map(|(name, signature)| (name.to_owned(), signature)).into(),
            types,
            structures: [("file", 6), ("task_struct", 9), ("inner", 12)]
                .map(|(name, id)| (name.to_owned(), id))
                .into(),
            members: members.into(),
            offsets: [offset("dentry", "d_name.name", 40), offset("file", "f_path.dentry", 72)].into(),
            events: Format::parse("sched", SWITCH).into_iter().collect(),
            files: [
                (named("/bin/true"), file(true, 1)),
                (named("/bin/alias"), file(true, 1)),
                (named("/bin"), file(false, 2)),
            ]
            .into(),
        }
    }
}

impl Facts for Fixed {
    fn language(&self) -> Language {
        self.language
    }

    fn arch(&self) -> Arch {
        self.arch
    }

    fn possible_cpus(&self) -> u32 {
        2
    }

    fn address(&self, symbol: &str) -> Option<u64> {
        self.symbols.iter().find(|(name, ..)| name == symbol).map(|(_, address, _)| *address)
    }

    fn count(&self, module: Option<&str>, symbol: &str) -> usize {
        let fits = |name: &str| {
            let (own, name) = name.split_once(':').map_or((None, name), |(own, name)| (Some(own), name));
            name == symbol && (module.is_none() || own == module)
        };
        self.symbols.iter().filter(|(name, ..)| fits(name)).count()
    }

    fn has_module(&self, name: &str) -> bool {
        self.modules.iter().any(|module| module == name)
    }

    fn spot(&self, symbol: &str, offset: u64) -> Spot {
        let Some(start) = self.address(symbol) else { return Spot::Nowhere };
        let at = start + offset;
        match self.symbols.iter().find(|(_, start, size)| (*start..start + size).contains(&at)) {
            Some((_, start, _)) if *start == at => Spot::Entry,
            Some(_) => Spot::Inside,
            None => Spot::Nowhere,
        }
    }

    fn probe(&self, address: u64) -> Result<(), Errno> {
        let known = self.symbols.iter().any(|(_, start, size)| (*start..start + size).contains(&address));
        match self.refused.get(&address) {
            Some(errno) => Err(*errno),
            None if known => Ok(()),
            None => Err(Errno::NOENT),
        }
    }

    fn is_traceable(&self, pattern: &str) -> bool {
        let glob = Glob::new(pattern);
        let free = |address| !self.refused.contains_key(address);
        self.symbols.iter().any(|(name, address, _)| glob.matches(name) && free(address))
    }

    fn tracepoint(&self, name: &str) -> Option<String> {
        self.tracepoints.get(name).cloned()
    }

    fn signature(&self, function: &str) -> Option<Signature> {
        self.signatures.get(function).cloned()
    }

    fn structure(&self, name: &str) -> Option<u32> {
        self.structures.get(name).copied()
    }

    fn shape(&self, id: u32) -> Option<Shape> {
        self.types.get(id as usize).copied()
    }

    fn member(&self, id: u32, name: &str) -> Option<BitMember> {
        self.members.get(&(id, name.to_owned())).copied()
    }

    fn offset_of(&self, name: &str, path: &str) -> Option<u32> {
        self.offsets.get(&(name.to_owned(), path.to_owned())).copied()
    }

    fn event(&self, system: &str, name: &str) -> Option<Format> {
        self.events.iter().find(|event| event.system == system && event.name == name).cloned()
    }

    fn has_event(&self, system: &str, name: &str) -> bool {
        self.event(system, name).is_some()
    }

    fn file(&self, path: &[u8], symbol: Option<&str>) -> Result<FileFact, Errno> {
        let known = self.files.get(path).cloned().ok_or(Errno::NOENT)?;
        Ok(FileFact { symbol: (symbol == Some("main")).then_some(0x1040), ..known })
    }

    fn filter(&self, _event: &Format, text: &[u8]) -> Result<(), FilterError> {
        filter::parse(text, &Dialect::newest()).map(|_| ())
    }
}
