//! Prototypes of functions and tracepoints, and types in the kernel's spelling.

use btf_rs::{BtfType, Type};

use super::{Btf, Kind, TypeInfo};
use crate::kernel::Error;

/// A function's or a tracepoint's parameters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prototype {
    /// In order; without the leading `void *__data` of a tracepoint.
    pub params: Vec<Param>,
    /// The return type; None for void and for tracepoints.
    pub returns: Option<TypeInfo>,
}

/// One parameter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Param {
    /// Name; None if BTF does not record it.
    pub name: Option<String>,
    /// C type in the kernel's spelling (`struct task_struct *`, `unsigned long`, `gfp_t`).
    pub ty: String,
    /// The type's layout.
    pub info: TypeInfo,
}

impl Btf {
    /// The arguments of a tracepoint, from the typedef `btf_trace_NAME`, which the kernel's verifier also uses. The
    /// names come from the function `__traceiter_NAME`, if it exists and its types agree. None if there is no such
    /// tracepoint.
    ///
    /// # Errors
    /// If the BTF is broken.
    pub fn tracepoint(&self, name: &str) -> Result<Option<Prototype>, Error> {
        let typedef = self.first(&format!("btf_trace_{name}"), |ty| matches!(ty, Type::Typedef(_)))?;
        let Some(typedef) = typedef else { return Ok(None) };
        let Kind::Pointer { to } = self.info(typedef)?.kind else { return Ok(None) };
        let Type::FuncProto(proto) = self.get(to)? else { return Ok(None) };
        let mut params = self.params(&proto)?;
        if params.is_empty() {
            return Ok(None);
        }
        params.remove(0);
        if let Some(named) = self.function(&format!("__traceiter_{name}"))?
            && named.params.iter().skip(1).map(|param| &param.ty).eq(params.iter().map(|param| &param.ty))
        {
            for (param, named) in params.iter_mut().zip(named.params.into_iter().skip(1)) {
                param.name = named.name;
            }
        }
        Ok(Some(Prototype { params, returns: None }))
    }

    /// The prototype of a kernel function. None if there is no such function, or if several of this name differ.
    pub(crate) fn function(&self, name: &str) -> Result<Option<Prototype>, Error> {
        let mut found: Option<Prototype> = None;
        for id in self.ids(name)? {
            let Type::Func(function) = self.get(id)? else { continue };
            let Some(proto) = function.get_type_id() else { continue };
            let Type::FuncProto(proto) = self.get(proto)? else { continue };
            let returns = match proto.return_type_id() {
                0 => None,
                id => Some(self.info(id)?),
            };
            let this = Prototype { params: self.params(&proto)?, returns };
            match &found {
                Some(other) if *other != this => return Ok(None),
                _ => found = Some(this),
            }
        }
        Ok(found)
    }

    /// The BTF id of a kernel function, for tracing programs. None if there is no such function.
    ///
    /// # Errors
    /// If the BTF is broken.
    pub fn function_id(&self, name: &str) -> Result<Option<u32>, Error> {
        self.first(name, |ty| matches!(ty, Type::Func(_)))
    }

    /// A type in C syntax. Whole numbers have the kernel's short names instead of the compiler's.
    pub(crate) fn type_name(&self, id: u32) -> Result<String, Error> {
        let ty = self.get(id)?;
        let inner = |of: &dyn BtfType| self.type_name(of.get_type_id().unwrap_or(0));
        Ok(match &ty {
            Type::Void => "void".to_owned(),
            Type::Int(int) => match self.name_of(int)?.as_str() {
                "long unsigned int" => "unsigned long".to_owned(),
                "long int" => "long".to_owned(),
                "long long unsigned int" => "unsigned long long".to_owned(),
                "long long int" => "long long".to_owned(),
                "short unsigned int" => "unsigned short".to_owned(),
                "short int" => "short".to_owned(),
                "_Bool" => "bool".to_owned(),
                name => name.to_owned(),
            },
            Type::Typedef(of) => self.name_of(of)?,
            Type::Float(of) => self.name_of(of)?,
            Type::Struct(of) => self.tagged("struct", of)?,
            Type::Union(of) => self.tagged("union", of)?,
            Type::Enum(of) => self.tagged("enum", of)?,
            Type::Enum64(of) => self.tagged("enum", of)?,
            Type::Fwd(of) => self.tagged(if of.is_union() { "union" } else { "struct" }, of)?,
            Type::Ptr(of) => {
                let to = inner(of)?;
                if to.ends_with('*') { format!("{to}*") } else { format!("{to} *") }
            }
            Type::Const(of) => {
                let of = inner(of)?;
                if of.ends_with('*') { format!("{of} const") } else { format!("const {of}") }
            }
            Type::Volatile(of) => format!("volatile {}", inner(of)?),
            Type::Restrict(of) => inner(of)?,
            Type::TypeTag(of) => inner(of)?,
            Type::Array(of) => format!("{}[{}]", inner(of)?, of.len()),
            _ => "function".to_owned(),
        })
    }

    fn tagged(&self, tag: &str, ty: &dyn BtfType) -> Result<String, Error> {
        let name = self.name_of(ty)?;
        Ok(if name.is_empty() { format!("{tag} {{...}}") } else { format!("{tag} {name}") })
    }

    pub(super) fn params(&self, proto: &btf_rs::FuncProto) -> Result<Vec<Param>, Error> {
        let mut params = Vec::with_capacity(proto.parameters.len());
        for param in proto.parameters.iter().filter(|param| !param.is_variadic()) {
            let id = param.get_type_id().unwrap_or(0);
            let name = self.name_of(param)?;
            params.push(Param {
                name: (!name.is_empty()).then_some(name),
                ty: self.type_name(id)?,
                info: self.info(id)?,
            });
        }
        Ok(params)
    }
}

#[cfg(test)]
mod tests {
    use super::super::build::Build;

    #[test]
    fn types_read_as_the_kernel_spells_them() {
        let mut build = Build::new();
        let long = build.int("long unsigned int", 8, false);
        let task = build.aggregate("task_struct", 8, &[("x", long, 0)]);
        let pointer = build.pointer(task);
        let double = build.pointer(pointer);
        let chars = build.array(long, 3);
        let size = build.typedef("size_t", long);
        build.tracepoint("tried", &[("t", pointer), ("n", size)]);
        let btf = build.read("types");
        let shown: Vec<_> = [long, pointer, double, chars, size, 0]
            .into_iter()
            .map(|id| btf.type_name(id).unwrap())
            .collect();
        assert_eq!(
            shown,
            [
                "unsigned long",
                "struct task_struct *",
                "struct task_struct **",
                "unsigned long[3]",
                "size_t",
                "void"
            ]
        );
        assert_eq!(btf.info(chars).unwrap().size, 24);
        let tracepoint = btf.tracepoint("tried").unwrap().unwrap();
        let params: Vec<_> = tracepoint.params.iter().map(|p| (p.name.as_deref(), p.ty.as_str())).collect();
        assert_eq!(params, [(Some("t"), "struct task_struct *"), (Some("n"), "size_t")]);
        assert_eq!(btf.tracepoint("other").unwrap(), None);
    }
}
