//! Builds small BTF sections for tests: `struct btf_header`, types and strings, as in include/uapi/linux/btf.h.

use std::path::PathBuf;

use super::Btf;

/// A builder of a BTF section. Ids count from 1; 0 is void.
#[derive(Default)]
pub(crate) struct Build {
    types: Vec<u8>,
    strings: Vec<u8>,
    count: u32,
    /// Length in bytes of the strings of the base section; 0 without a base.
    base_strings: u32,
}

impl Build {
    pub(crate) fn new() -> Self {
        Self { strings: vec![0], ..Self::default() }
    }

    fn name(&mut self, name: &str) -> u32 {
        if name.is_empty() {
            return 0;
        }
        let at = self.base_strings + self.strings.len() as u32;
        self.strings.extend(name.bytes().chain([0]));
        at
    }

    /// Appends a type: its kind, its number of entries, the size or type word, and the words of the entries.
    fn push(&mut self, name: &str, kind: u32, entries: usize, word: u32, tail: &[u32]) -> u32 {
        let name = self.name(name);
        for word in [name, kind << 24 | entries as u32, word].iter().chain(tail) {
            self.types.extend(word.to_ne_bytes());
        }
        self.count += 1;
        self.count
    }

    /// `BTF_KIND_INT`.
    pub(crate) fn int(&mut self, name: &str, size: u32, signed: bool) -> u32 {
        self.push(name, 1, 0, size, &[(u32::from(signed) << 24) | (size * 8)])
    }

    /// `BTF_KIND_PTR`.
    pub(crate) fn pointer(&mut self, to: u32) -> u32 {
        self.push("", 2, 0, to, &[])
    }

    /// `BTF_KIND_ARRAY`.
    pub(crate) fn array(&mut self, of: u32, len: u32) -> u32 {
        self.push("", 3, 0, 0, &[of, of, len])
    }

    /// `BTF_KIND_STRUCT`: members with their offsets in bits.
    pub(crate) fn aggregate(&mut self, name: &str, size: u32, members: &[(&str, u32, u32)]) -> u32 {
        let tail: Vec<_> =
            members.iter().flat_map(|(name, ty, bits)| [self.name(name), *ty, *bits]).collect();
        self.push(name, 4, members.len(), size, &tail)
    }

    /// `BTF_KIND_ENUM` for values of four bytes, `BTF_KIND_ENUM64` for values of eight, without a name.
    pub(crate) fn enumeration(&mut self, size: u32, signed: bool, values: &[(&str, i64)]) {
        let tail: Vec<_> = values
            .iter()
            .flat_map(|(name, value)| {
                let words = [self.name(name), *value as u32, (*value >> 32) as u32];
                words.into_iter().take(1 + size as usize / 4)
            })
            .collect();
        let kind = if size == 8 { 19 } else { 6 };
        self.push("", u32::from(signed) << 7 | kind, values.len(), size, &tail);
    }

    /// `BTF_KIND_TYPEDEF`.
    pub(crate) fn typedef(&mut self, name: &str, of: u32) -> u32 {
        self.push(name, 8, 0, of, &[])
    }

    /// `BTF_KIND_FUNC_PROTO`.
    fn prototype(&mut self, params: &[(&str, u32)], returns: u32) -> u32 {
        let tail: Vec<_> = params.iter().flat_map(|(name, ty)| [self.name(name), *ty]).collect();
        self.push("", 13, params.len(), returns, &tail)
    }

    /// A tracepoint: the typedef `btf_trace_NAME` and the function `__traceiter_NAME` with the arguments' names.
    pub(crate) fn tracepoint(&mut self, name: &str, params: &[(&str, u32)]) {
        let data = self.pointer(0);
        let named: Vec<_> = [("__data", data)].into_iter().chain(params.iter().copied()).collect();
        let bare: Vec<_> = named.iter().map(|(_, ty)| ("", *ty)).collect();
        let prototype = self.prototype(&bare, 0);
        let pointer = self.pointer(prototype);
        self.typedef(&format!("btf_trace_{name}"), pointer);
        self.function(&format!("__traceiter_{name}"), &named, 0);
    }

    /// `BTF_KIND_FUNC` and its prototype.
    pub(crate) fn function(&mut self, name: &str, params: &[(&str, u32)], returns: u32) {
        let prototype = self.prototype(params, returns);
        self.push(name, 12, 0, prototype, &[]);
    }

    /// A module's section, whose ids and strings continue those of this one.
    pub(crate) fn split(&self) -> Self {
        let base_strings = self.base_strings + self.strings.len() as u32;
        Self { count: self.count, base_strings, ..Self::default() }
    }

    /// Writes the section to a file of that name in the temporary directory.
    pub(crate) fn write(&self, name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(name);
        std::fs::write(&path, self.bytes()).unwrap();
        path
    }

    /// The section, read back from a file. `test` is part of the file's name, so it must be unique to the test.
    pub(crate) fn read(&self, test: &str) -> Btf {
        let path = self.write(&format!("tracer-btf-{}-{test}", std::process::id()));
        let btf = Btf::read(&path).unwrap().unwrap();
        std::fs::remove_file(path).unwrap();
        btf
    }

    pub(super) fn bytes(&self) -> Vec<u8> {
        let (types, strings) = (self.types.len() as u32, self.strings.len() as u32);
        let mut bytes = 0xeb9f_u16.to_ne_bytes().to_vec();
        bytes.extend([1, 0]);
        for word in [24, 0, types, types, strings] {
            bytes.extend(word.to_ne_bytes());
        }
        bytes.extend(&self.types);
        bytes.extend(&self.strings);
        bytes
    }
}
