//! Types of modules (`/sys/kernel/btf/MODULE`, 5.11 and later), whose ids continue the kernel's.
//!
//! The BTF of a module is read when a function turns out to be the module's, or when a struct that the kernel lacks may
//! be; other modules are not read.

use std::{
    fs::File,
    os::{fd::AsRawFd, unix::fs::MetadataExt},
    path::Path,
    sync::{Arc, Mutex, OnceLock, PoisonError},
};

use memchr::memmem;

use super::{Btf, bad};
use crate::{kernel::Error, sys::memory::mapped_file::MappedFile};

/// Modules read so far: name, inode of the file (a reloaded module has another one), types.
pub(super) type Modules = Mutex<Vec<(String, u64, Arc<Btf>)>>;

impl Btf {
    /// The loaded modules whose types may have this name. The strings of a module's types are its own or the kernel's.
    pub(crate) fn modules_naming(&self, name: &str) -> Vec<String> {
        let text = [&b"\0"[..], name.as_bytes(), b"\0"].concat();
        let names = |path: &Path| {
            File::open(path)
                .and_then(|file| Ok(MappedFile::map_or_copy(&file)?))
                .is_ok_and(|types| memmem::find(types.bytes(), &text).is_some())
        };
        let all = self.module_names();
        if names(&self.path) {
            return all;
        }
        all.into_iter().filter(|module| names(&self.path.with_file_name(module))).collect()
    }

    /// The names of the loaded modules that have types.
    fn module_names(&self) -> Vec<String> {
        let files = self.path.parent().and_then(|dir| std::fs::read_dir(dir).ok());
        let names =
            files.into_iter().flatten().flatten().filter_map(|file| file.file_name().into_string().ok());
        names.filter(|name| self.path.file_name().is_none_or(|own| own != name.as_str())).collect()
    }

    /// The types of a loaded module together with the kernel's; None if the file cannot be opened.
    ///
    /// # Errors
    /// If the file is open but cannot be read or is not BTF.
    pub fn module(&self, name: &str) -> Result<Option<Arc<Self>>, Error> {
        let path = self.path.with_file_name(name);
        let Ok(file) = File::open(&path) else { return Ok(None) };
        let inode = file.metadata().map_err(|error| Error::io(path.display().to_string(), error))?.ino();
        let mut modules = self.modules.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((.., known)) = modules.iter().find(|(own, at, _)| own == name && *at == inode) {
            return Ok(Some(Arc::clone(known)));
        }
        // Opened by its descriptor, so that the inode number above belongs to the same file.
        let opened = format!("/proc/self/fd/{}", file.as_raw_fd());
        let types = btf_rs::Btf::from_split_file(opened, &self.types).map_err(|error| bad(&path, &error))?;
        // The index supports whole sections only; a module has few types, and all are decoded by now.
        let read = Arc::new(Self::new(path, file, types, OnceLock::from(None)));
        modules.retain(|(own, ..)| own != name);
        modules.push((name.to_owned(), inode, Arc::clone(&read)));
        Ok(Some(read))
    }
}

#[cfg(test)]
mod tests {
    use super::super::build::Build;

    #[test]
    fn a_modules_types_continue_the_kernels() {
        let mut build = Build::new();
        let int = build.int("int", 4, true);
        let outer = build.aggregate("outer", 8, &[("a", int, 0), ("b", int, 32)]);
        let pointer = build.pointer(outer);
        let base = build.read("split");
        let mut split = build.split();
        let own = split.aggregate("own", 16, &[("o", pointer, 0), ("n", int, 64)]);
        let to_own = split.pointer(own);
        split.function("ext_read", &[("own", to_own), ("flags", int)], int);
        let name = format!("tracer-btf-{}-ext", std::process::id());
        let path = split.write(&name);
        let module = base.module(&name).unwrap().unwrap();
        std::fs::remove_file(path).unwrap();
        let signature = module.signature("ext_read").unwrap().unwrap();
        assert_eq!(signature.params, [("own".to_owned(), to_own), ("flags".to_owned(), int)]);
        assert_eq!(module.bit_member(own, "n").unwrap().unwrap().offset, 64);
        assert_eq!(module.bit_member(outer, "b").unwrap().unwrap().offset, 32);
        assert_eq!(module.member("outer", "b").unwrap().unwrap().offset, 4);
        assert!(own > pointer && module.function_id("ext_read").unwrap() > Some(own));
        assert!(base.signature("ext_read").unwrap().is_none());
        assert!(base.module("none").unwrap().is_none());
        assert_eq!(module.own_structure("own").unwrap(), Some(own));
        assert_eq!(module.own_structure("outer").unwrap(), None);
    }
}
