//! Type lookup for definitions: first in the kernel's BTF, then in the BTF of the function's module.
//!
//! The type ids of a module continue after the kernel's ids, so several modules use the same ids. The functions of this
//! module therefore add the number of the module above the id. An id is below 2^20 (`BTF_MAX_TYPE`,
//! `include/uapi/linux/btf.h`).

use std::sync::{Arc, Mutex, PoisonError};

use crate::kernel::btf::{BitMember, Class, Shape, Signature};
use crate::kernel::{Btf, Symbols};

/// Bits of an id in one BTF.
const ID_BITS: u32 = 20;
const ID_MASK: u32 = (1 << ID_BITS) - 1;

/// The kernel's types, and the types of the modules used so far.
pub(super) struct Types<'a> {
    kernel: Option<&'a Btf>,
    modules: Mutex<Vec<Arc<Btf>>>,
}

impl<'a> Types<'a> {
    pub(super) fn new(kernel: Option<&'a Btf>) -> Self {
        Self { kernel, modules: Mutex::default() }
    }

    pub(super) fn kernel(&self) -> Option<&'a Btf> {
        self.kernel
    }

    /// Signature of a function: from the kernel, else from the first module that has such a function.
    pub(super) fn signature(&self, function: &str, symbols: Option<&Symbols>) -> Option<Signature> {
        let kernel = self.kernel?;
        if let Some(found) = kernel.signature(function).ok()? {
            return Some(found);
        }
        symbols?.modules_of(function).find_map(|module| {
            let types = kernel.module(module).ok()??;
            let found = types.signature(function).ok()??;
            let tag = self.tag(&types);
            let params = found.params.into_iter().map(|(name, ty)| (name, tagged(ty, tag))).collect();
            Some(Signature { params, returns: tagged(found.returns, tag) })
        })
    }

    /// Id of a struct: of the kernel, else of the first module that has one of this name.
    pub(super) fn structure(&self, name: &str) -> Option<u32> {
        let kernel = self.kernel?;
        if let Some(found) = kernel.structure(name).ok()? {
            return Some(found);
        }
        kernel.modules_naming(name).iter().find_map(|module| {
            let types = kernel.module(module).ok()??;
            let found = types.own_structure(name).ok()??;
            Some(tagged(found, self.tag(&types)))
        })
    }

    pub(super) fn shape(&self, id: u32) -> Option<Shape> {
        self.of(id, |types, id, tag| {
            let shape = types.shape(id)?;
            Some(match shape.class {
                Class::Pointer => Shape { word: tagged(shape.word, tag), ..shape },
                Class::Array(of) => Shape { class: Class::Array(tagged(of, tag)), ..shape },
                Class::Aggregate(id) => Shape { class: Class::Aggregate(tagged(id, tag)), ..shape },
                _ => shape,
            })
        })
    }

    pub(super) fn member(&self, id: u32, name: &str) -> Option<BitMember> {
        self.of(id, |types, id, tag| {
            let member = types.bit_member(id, name).ok()??;
            Some(BitMember { ty: tagged(member.ty, tag), ..member })
        })
    }

    pub(super) fn members(&self, id: u32) -> Vec<String> {
        self.of(id, |types, id, _| types.member_names(id).ok()).unwrap_or_default()
    }

    /// Bits to set in the type ids of a module.
    fn tag(&self, types: &Arc<Btf>) -> u32 {
        let mut modules = self.modules.lock().unwrap_or_else(PoisonError::into_inner);
        let known = modules.iter().position(|own| Arc::ptr_eq(own, types));
        let at = known.unwrap_or_else(|| {
            modules.push(Arc::clone(types));
            modules.len() - 1
        });
        (at as u32 + 1) << ID_BITS
    }

    fn of<T>(&self, id: u32, answer: impl FnOnce(&Btf, u32, u32) -> Option<T>) -> Option<T> {
        let (tag, own) = (id & !ID_MASK, id & ID_MASK);
        let Some(at) = (tag >> ID_BITS).checked_sub(1) else { return answer(self.kernel?, own, 0) };
        let modules = self.modules.lock().unwrap_or_else(PoisonError::into_inner);
        let types = Arc::clone(modules.get(at as usize)?);
        drop(modules);
        answer(&types, own, tag)
    }
}

/// Adds the tag to a type id of a module; void (0) stays void.
fn tagged(id: u32, tag: u32) -> u32 {
    if id == 0 { 0 } else { id | tag }
}
