//! The kernel's type information (`/sys/kernel/btf/vmlinux`): offsets of struct members, prototypes of functions and
//! tracepoints.
//!
//! `btf-rs` decodes single types directly from mapped memory. Decoding all types takes 110 ms and twice the file's
//! memory (measured on 6.18, 126,586 types), more than the time allowed up to a first event. Mapping takes 2 ms, and
//! a plan needs only a few types. An [index] built once in 3 ms finds names; each scan over all types would take 1.5
//! ms.

#[cfg(test)]
pub(crate) mod build;
mod enums;
mod event_class;
mod index;
mod module;
mod prototype;
mod shape;

use std::collections::HashMap;
use std::fs::File;
use std::io::{Read, Write};
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock, PoisonError};

use btf_rs::{Backend, BtfType, Type};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};

pub(crate) use self::event_class::RecordField;
pub use self::prototype::{Param, Prototype};
pub use self::shape::{BitMember, Class, Shape, Signature};
use self::{enums::Enumerators, index::Index};
use super::Error;
use crate::sys::memory::mapped_file::MappedFile;

/// Where the running kernel exposes its types (`CONFIG_DEBUG_INFO_BTF`, 5.4 and later).
const VMLINUX: &str = "/sys/kernel/btf/vmlinux";

/// The types of a kernel or of a module. Functions that look up types fail if the BTF is broken.
pub struct Btf {
    path: PathBuf,
    /// The file that `types` is mapped from, for the index.
    file: File,
    types: btf_rs::Btf,
    /// None if the section cannot be indexed (foreign byte order); lookups are slow then.
    index: OnceLock<Option<Index>>,
    /// Ids by name, for all names found so far.
    found: Mutex<HashMap<String, Vec<u32>>>,
    constants: OnceLock<Option<Enumerators>>,
    modules: module::Modules,
}

/// The location of a member in a struct.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Member {
    /// Offset in bytes from the start of the struct.
    pub offset: u32,
    /// The member's type.
    pub ty: TypeInfo,
}

/// The properties of a type that are needed to read a value of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TypeInfo {
    /// BTF id, for [`Btf::member_of`] and [`Btf::type_name`].
    pub id: u32,
    /// Size in bytes; 0 for void, functions and types that are only declared.
    pub size: u32,
    /// The kind of the value.
    pub kind: Kind,
}

/// The kind of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A whole number, including bool and enum.
    Number {
        /// Whether it is signed.
        signed: bool,
    },
    /// A pointer.
    Pointer {
        /// BTF id of the target type, 0 for void.
        to: u32,
    },
    /// An array.
    Array {
        /// BTF id of the element type.
        of: u32,
        /// Number of elements.
        len: u32,
    },
    /// A struct or union.
    Struct,
    /// Anything else (void, a function, a float).
    Other,
}

impl Btf {
    /// The running kernel's types; None if it exposes none.
    ///
    /// # Errors
    /// If the file exists but cannot be read or is not BTF.
    pub fn running() -> Result<Option<Self>, Error> {
        Self::read(Path::new(VMLINUX))
    }

    /// Reads an unsplit BTF file (for split BTF see [`Btf::module`]); None if the file does not exist.
    ///
    /// # Errors
    /// If the file cannot be read or is not BTF.
    pub fn read(path: &Path) -> Result<Option<Self>, Error> {
        let fail = |error: std::io::Error| Error::io(path.display().to_string(), error);
        let mut file = match File::open(path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            opened => opened.map_err(fail)?,
        };
        // Opened by its descriptor, so that both readers see the same file.
        let read = |file: &File| {
            let opened = format!("/proc/self/fd/{}", file.as_raw_fd());
            btf_rs::Btf::from_file_with_backend(opened, Backend::Mmap)
        };
        let types = match read(&file) {
            Ok(types) => types,
            // Before 6.16 this sysfs file cannot be mapped, but a copy in memory can.
            Err(btf_rs::Error::IO(_)) => {
                file = copy(&mut file).map_err(fail)?;
                read(&file).map_err(|error| bad(path, &error))?
            }
            Err(error) => return Err(bad(path, &error)),
        };
        Ok(Some(Self::new(path.to_owned(), file, types, OnceLock::new())))
    }

    fn new(path: PathBuf, file: File, types: btf_rs::Btf, index: OnceLock<Option<Index>>) -> Self {
        let (found, modules) = (Mutex::default(), Mutex::default());
        Self { path, file, types, index, found, constants: OnceLock::new(), modules }
    }

    /// The location of a member in a struct or union. The path may lead into embedded structs
    /// (`se.sum_exec_runtime`); members of anonymous structs and unions are found as in C. None if there is no such
    /// struct or member, or if the member is a bit field.
    ///
    /// # Errors
    /// If the BTF is broken.
    pub fn member(&self, of: &str, path: &str) -> Result<Option<Member>, Error> {
        match self.struct_id(of)? {
            Some(id) => self.member_of(id, path),
            None => Ok(None),
        }
    }

    /// Like [`Btf::member`], by the struct's id. Qualifiers and typedefs are resolved.
    pub(crate) fn member_of(&self, id: u32, path: &str) -> Result<Option<Member>, Error> {
        let mut at = Member { offset: 0, ty: self.info(id)? };
        for name in path.split('.') {
            let Some(BitMember { offset, bits, ty }) = self.bit_member(at.ty.id, name)? else {
                return Ok(None);
            };
            if bits > 0 || !offset.is_multiple_of(8) {
                return Ok(None);
            }
            at = Member { offset: at.offset + offset / 8, ty: self.info(ty)? };
        }
        Ok(Some(at))
    }

    /// The offsets to follow from a pointer to the struct, for a path such as `a->b.c->d`, and the value's type.
    /// There is one offset for each pointer that is followed, and a last one for the value. None if a name of the
    /// path does not exist or is not a pointer where one is required.
    pub(crate) fn walk(&self, from: u32, path: &str) -> Result<Option<(Vec<u32>, TypeInfo)>, Error> {
        let mut offsets = Vec::new();
        let mut id = from;
        let mut value = None;
        for step in path.split("->") {
            if let Some(TypeInfo { kind, .. }) = value {
                let Kind::Pointer { to } = kind else { return Ok(None) };
                id = to;
            }
            let Some(member) = self.member_of(id, step)? else { return Ok(None) };
            offsets.push(member.offset);
            value = Some(member.ty);
        }
        Ok(value.map(|ty| (offsets, ty)))
    }

    /// The BTF id of a struct or union defined under this name.
    ///
    /// # Errors
    /// If the BTF is broken.
    pub fn struct_id(&self, name: &str) -> Result<Option<u32>, Error> {
        self.first(name, |ty| matches!(ty, Type::Struct(_) | Type::Union(_)))
    }

    /// The BTF id of a struct defined under this name.
    ///
    /// # Errors
    /// If the BTF is broken.
    pub(crate) fn structure(&self, name: &str) -> Result<Option<u32>, Error> {
        self.first(name, |ty| matches!(ty, Type::Struct(_)))
    }

    /// The id of the first struct of this name among a module's own types.
    ///
    /// # Errors
    /// If the BTF is broken.
    pub(crate) fn own_structure(&self, name: &str) -> Result<Option<u32>, Error> {
        let Some(own) = self.types.split() else { return Ok(None) };
        let ids = own.resolve_ids_by_name(name).map_err(|error| bad(&self.path, &error))?;
        for id in ids {
            if matches!(self.get(id)?, Type::Struct(_)) {
                return Ok(Some(id));
            }
        }
        Ok(None)
    }

    /// The value of an enumerator, sign-extended if its enum is signed. `of` is the enum's name; an empty name
    /// searches all anonymous enums.
    ///
    /// # Errors
    /// If the BTF is broken.
    #[cfg(any(test, feature = "internals"))]
    pub fn enumerator(&self, of: &str, name: &str) -> Result<Option<i64>, Error> {
        for id in self.ids(of)? {
            match self.get(id)? {
                Type::Enum(found) => {
                    for one in &found.members {
                        if self.name_of(one)? == name {
                            let value = one.val();
                            let signed = found.is_signed();
                            return Ok(Some(if signed { i64::from(value as i32) } else { i64::from(value) }));
                        }
                    }
                }
                Type::Enum64(found) => {
                    for one in &found.members {
                        if self.name_of(one)? == name {
                            return Ok(Some(one.val() as i64));
                        }
                    }
                }
                _ => {}
            }
        }
        Ok(None)
    }

    /// Byte range of a per-CPU variable in the kernel's per-CPU section, as pahole records it in the data section
    /// `.data..percpu`. Only the difference between two such offsets is meaningful. None if BTF does not list the
    /// variable.
    pub(crate) fn per_cpu(&self, variable: &str) -> Result<Option<Range<u32>>, Error> {
        let vars = self.ids(variable)?;
        for section in self.ids(".data..percpu")? {
            let Type::Datasec(section) = self.get(section)? else { continue };
            let place =
                section.variables.iter().find(|var| var.get_type_id().is_some_and(|id| vars.contains(&id)));
            if let Some(var) = place {
                return Ok(Some(var.offset()..var.offset() + var.size() as u32));
            }
        }
        Ok(None)
    }

    /// The value of an enumerator of any enum; None if there is none of this name, or if several enums give it
    /// different values.
    pub fn constant(&self, name: &str) -> Option<i64> {
        let constants = self.constants.get_or_init(|| {
            let mapped = MappedFile::map(&self.file).ok()?;
            Enumerators::build(mapped.bytes())
        });
        constants.as_ref()?.value(name)
    }

    /// The location of a member that may be a bit field: offset and width in bits, and whether it is signed. None if
    /// there is no such member or if it is neither a number nor a pointer.
    pub(crate) fn bits(&self, of: &str, name: &str) -> Result<Option<(u32, u32, bool)>, Error> {
        let Some(id) = self.struct_id(of)? else { return Ok(None) };
        let Some(BitMember { offset, bits, ty }) = self.bit_member(id, name)? else { return Ok(None) };
        let info = self.info(ty)?;
        let signed = match info.kind {
            Kind::Number { signed } => signed,
            Kind::Pointer { .. } => false,
            _ => return Ok(None),
        };
        Ok(Some((offset, if bits > 0 { bits } else { info.size * 8 }, signed)))
    }

    /// Size in bytes of a named struct, union, enum or typedef, and whether it is signed. None if there is no such
    /// type.
    pub(crate) fn size_of(&self, name: &str) -> Result<Option<(u32, bool)>, Error> {
        let named = |ty: &Type| {
            matches!(
                ty,
                Type::Struct(_) | Type::Union(_) | Type::Enum(_) | Type::Enum64(_) | Type::Typedef(_)
            )
        };
        let Some(id) = self.first(name, named)? else { return Ok(None) };
        let info = self.info(id)?;
        Ok(Some((info.size, matches!(info.kind, Kind::Number { signed: true }))))
    }

    /// Size and kind of a type. Qualifiers and typedefs are resolved.
    pub(crate) fn info(&self, id: u32) -> Result<TypeInfo, Error> {
        let (id, ty) = self.plain(id)?;
        let pointer = size_of::<u64>() as u32;
        let (size, kind) = match &ty {
            Type::Int(int) => (int.size() as u32, Kind::Number { signed: int.is_signed() }),
            Type::Enum(of) => (of.size() as u32, Kind::Number { signed: of.is_signed() }),
            Type::Enum64(of) => (of.size() as u32, Kind::Number { signed: of.is_signed() }),
            Type::Ptr(to) => (pointer, Kind::Pointer { to: to.get_type_id().unwrap_or(0) }),
            Type::Struct(of) | Type::Union(of) => (of.size() as u32, Kind::Struct),
            Type::Float(of) => (of.size() as u32, Kind::Other),
            Type::Array(array) => {
                let of = array.get_type_id().unwrap_or(0);
                let len = array.len() as u32;
                (self.info(of)?.size.saturating_mul(len), Kind::Array { of, len })
            }
            _ => (0, Kind::Other),
        };
        Ok(TypeInfo { id, size, kind })
    }

    /// Resolves typedefs and qualifiers.
    fn plain(&self, mut id: u32) -> Result<(u32, Type), Error> {
        // Chains are short; a cycle means broken BTF.
        for _ in 0..64 {
            let ty = self.get(id)?;
            let next = match &ty {
                Type::Typedef(of) => of.get_type_id(),
                Type::Const(of) | Type::Volatile(of) | Type::Restrict(of) => of.get_type_id(),
                Type::TypeTag(of) => of.get_type_id(),
                _ => return Ok((id, ty)),
            };
            id = next.unwrap_or(0);
        }
        Err(Error::form(self.path.display().to_string(), format!("type {id} refers to itself")))
    }

    fn first(&self, name: &str, wanted: impl Fn(&Type) -> bool) -> Result<Option<u32>, Error> {
        for id in self.ids(name)? {
            if wanted(&self.get(id)?) {
                return Ok(Some(id));
            }
        }
        Ok(None)
    }

    /// The ids of all types of this name.
    fn ids(&self, name: &str) -> Result<Vec<u32>, Error> {
        let mut found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(ids) = found.get(name) {
            return Ok(ids.clone());
        }
        let ids = match self.index()? {
            Some(index) => {
                let mut ids = Vec::new();
                for id in index.candidates(name) {
                    let ty = self.get(id)?;
                    if let Some(ty) = ty.as_btf_type()
                        && ty.get_name_offset().is_some()
                        && self.name_of(ty)? == name
                    {
                        ids.push(id);
                    }
                }
                ids
            }
            None => self.types.resolve_ids_by_name(name).map_err(|error| bad(&self.path, &error))?,
        };
        // Clients can ask for any number of names that nothing has.
        if !ids.is_empty() {
            found.insert(name.to_owned(), ids.clone());
        }
        Ok(ids)
    }

    fn index(&self) -> Result<Option<&Index>, Error> {
        if let Some(index) = self.index.get() {
            return Ok(index.as_ref());
        }
        let mapped =
            MappedFile::map(&self.file).map_err(|error| Error::io(self.path.display().to_string(), error))?;
        Ok(self.index.get_or_init(|| Index::build(mapped.bytes())).as_ref())
    }

    fn get(&self, id: u32) -> Result<Type, Error> {
        self.types.resolve_type_by_id(id).map_err(|error| bad(&self.path, &error))
    }

    fn name_of(&self, ty: &dyn BtfType) -> Result<String, Error> {
        match ty.get_name_offset() {
            None | Some(0) => Ok(String::new()),
            Some(_) => self.types.resolve_name(ty).map_err(|error| bad(&self.path, &error)),
        }
    }
}

impl std::fmt::Debug for Btf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Btf").field("path", &self.path).finish_non_exhaustive()
    }
}

/// Copies a file into a memfd.
fn copy(file: &mut File) -> std::io::Result<File> {
    let mut bytes = Vec::with_capacity(8 << 20);
    file.read_to_end(&mut bytes)?;
    let mut copy = File::from(memfd_create("btf", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?);
    copy.write_all(&bytes)?;
    // `MappedFile` maps only files that can no longer change.
    fcntl_add_seals(&copy, SealFlags::WRITE | SealFlags::GROW | SealFlags::SHRINK)?;
    Ok(copy)
}

fn bad(path: &Path, error: &btf_rs::Error) -> Error {
    Error::form(path.display().to_string(), error.to_string())
}

#[cfg(test)]
mod tests {
    use super::build::Build;
    use super::*;

    #[test]
    fn members_are_found_as_in_c() {
        let mut build = Build::new();
        let int = build.int("int", 4, true);
        let inner = build.aggregate("", 8, &[("deep", int, 32)]);
        let outer = build.aggregate("outer", 24, &[("a", int, 0), ("", inner, 64), ("bits", int, 3)]);
        let pointer = build.pointer(outer);
        let holder = build.aggregate("holder", 16, &[("next", pointer, 64)]);
        let btf = build.read("members");
        let offset = |of: &str, path: &str| btf.member(of, path).unwrap().map(|member| member.offset);
        assert_eq!(offset("outer", "a"), Some(0));
        assert_eq!(offset("outer", "deep"), Some(12));
        assert_eq!(offset("outer", "bits"), None);
        assert_eq!(offset("outer", "none"), None);
        assert_eq!(offset("nothing", "a"), None);
        let (path, value) = btf.walk(holder, "next->deep").unwrap().unwrap();
        assert_eq!((path, value.size, value.kind), (vec![8, 12], 4, Kind::Number { signed: true }));
        assert_eq!(btf.walk(holder, "next->none").unwrap(), None);
        assert_eq!(btf.walk(outer, "a->deep").unwrap(), None);
    }
}
