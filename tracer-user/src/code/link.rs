//! Linker: joins generated functions to a template object.
//!
//! The template is a relocatable BPF ELF whose programs call functions that it does not define: `extern "C"` in Rust,
//! an undefined symbol and `R_BPF_64_32` relocations in the object. The linker appends the functions to `.text` and
//! defines their symbols there. The result is again a relocatable object, and aya joins each program with the functions
//! that it calls. The linker drops `.BTF.ext`: the kernel requires a `func_info` for every function or for none, and
//! generated functions have none.

use object::{
    build::elf::{Builder, Relocation, Section, SectionData, SectionId, Symbol, SymbolId},
    elf,
};

use super::asm::{Function, INSN_SIZE};

/// Section of the functions that are not programs.
const TEXT: &[u8] = b".text";

/// Why an object could not be linked.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// The template is not an ELF object, or the result cannot be laid out.
    #[error("template object: {0}")]
    Object(#[from] object::build::Error),
    /// The template is not a BPF object file.
    #[error("template object: not a relocatable BPF object")]
    NotBpf,
    /// A symbol remains undefined.
    #[error("template object: no function for undefined symbol `{0}`")]
    Undefined(String),
    /// A generated function has the name of a function of the template, or two generated functions have the same name.
    #[error("template object: `{0}` is defined twice")]
    Twice(String),
}

/// Defines the functions in the template and returns the bytes of the new object.
///
/// # Errors
/// If the template is not a BPF object, a function is already defined, or an undefined symbol remains.
pub fn link(template: &[u8], functions: &[Function]) -> Result<Vec<u8>, LinkError> {
    let mut builder = Builder::read(template)?;
    if builder.header.e_machine != elf::EM_BPF || builder.header.e_type != elf::ET_REL {
        return Err(LinkError::NotBpf);
    }
    drop_btf_ext(&mut builder);
    section_names(&mut builder);
    let text = text_section(&mut builder);
    for function in functions {
        define(&mut builder, text, function)?;
    }
    relocate(&mut builder, text, functions);
    for symbol in &builder.symbols {
        if symbol.section.is_none() && symbol.st_shndx == elf::SHN_UNDEF && !symbol.name.is_empty() {
            return Err(LinkError::Undefined(String::from_utf8_lossy(symbol.name.as_slice()).into_owned()));
        }
    }
    let mut bytes = Vec::with_capacity(template.len() + 4096);
    builder.write(&mut bytes)?;
    Ok(bytes)
}

fn drop_btf_ext(builder: &mut Builder<'_>) {
    let Some(id) = section_named(builder, b".BTF.ext") else { return };
    for section in &mut builder.sections {
        if section.id() == id || section.sh_info_section == Some(id) {
            section.delete = true;
        }
    }
    builder.delete_orphan_symbols();
    builder.delete_orphan_relocations();
}

/// LLVM keeps the names of sections and symbols in one table; the builder requires one table for each.
fn section_names(builder: &mut Builder<'_>) {
    if !builder.sections.iter().any(|section| matches!(section.data, SectionData::SectionString)) {
        let section = builder.sections.add();
        section.name = b".shstrtab".as_slice().into();
        section.sh_type = elf::SHT_STRTAB;
        section.sh_addralign = 1;
        section.data = SectionData::SectionString;
    }
    for section in &mut builder.sections {
        if section.name.as_slice() == b".strtab" && matches!(section.data, SectionData::SectionString) {
            section.data = SectionData::String;
        }
    }
}

fn section_named(builder: &Builder<'_>, name: &[u8]) -> Option<SectionId> {
    builder.sections.iter().find(|section| section.name.as_slice() == name).map(Section::id)
}

/// `.text`, which is created if the template has none.
fn text_section(builder: &mut Builder<'_>) -> SectionId {
    section_named(builder, TEXT).unwrap_or_else(|| {
        let section = builder.sections.add();
        section.name = TEXT.into();
        section.sh_type = elf::SHT_PROGBITS;
        section.sh_flags = elf::SHF_ALLOC | elf::SHF_EXECINSTR;
        section.sh_addralign = INSN_SIZE as u64;
        section.data = SectionData::Data(Vec::new().into());
        section.id()
    })
}

/// Appends the code to `.text` and makes the symbol a function there.
fn define(builder: &mut Builder<'_>, text: SectionId, function: &Function) -> Result<(), LinkError> {
    let section = builder.sections.get_mut(text);
    let mut code = match &section.data {
        SectionData::Data(data) => data.as_slice().to_vec(),
        _ => Vec::new(),
    };
    let start = code.len() as u64;
    let bytes = function.bytes();
    let size = bytes.len() as u64;
    code.extend(bytes);
    section.data = SectionData::Data(code.into());

    let id = symbol(builder, &function.name);
    let symbol = builder.symbols.get_mut(id);
    if symbol.section.is_some() {
        return Err(LinkError::Twice(function.name.clone()));
    }
    symbol.section = Some(text);
    symbol.st_value = start;
    symbol.st_size = size;
    symbol.set_st_info(elf::STB_GLOBAL, elf::STT_FUNC);
    Ok(())
}

/// The symbol of this name, which is created if there is none.
fn symbol(builder: &mut Builder<'_>, name: &str) -> SymbolId {
    let mut symbols = builder.symbols.iter();
    let known = symbols.find(|symbol| symbol.name.as_slice() == name.as_bytes()).map(Symbol::id);
    known.unwrap_or_else(|| {
        let symbol = builder.symbols.add();
        symbol.name = name.to_owned().into_bytes().into();
        symbol.id()
    })
}

/// Adds relocations for the addresses of functions and maps that generated code loads.
fn relocate(builder: &mut Builder<'_>, text: SectionId, functions: &[Function]) {
    let mut relocations = Vec::new();
    for function in functions {
        let id = symbol(builder, &function.name);
        let start = builder.symbols.get(id).st_value;
        let addresses = function.addresses.iter().map(|(slot, name)| (*slot, name.as_str()));
        for (slot, name) in addresses.chain(function.maps()) {
            relocations.push(Relocation {
                r_offset: start + (slot * INSN_SIZE) as u64,
                symbol: Some(symbol(builder, name)),
                r_type: elf::R_BPF_64_64,
                r_addend: 0,
            });
        }
    }
    if relocations.is_empty() {
        return;
    }
    let existing = builder.sections.iter_mut().find(|section| {
        section.sh_info_section == Some(text) && matches!(section.data, SectionData::Relocation(_))
    });
    if let Some(Section { data: SectionData::Relocation(list), .. }) = existing {
        list.append(&mut relocations);
        return;
    }
    let symbols =
        builder.sections.iter().find(|section| matches!(section.data, SectionData::Symbol)).map(Section::id);
    let section = builder.sections.add();
    section.name = b".rel.text".as_slice().into();
    section.sh_type = elf::SHT_REL;
    section.sh_flags = elf::SHF_INFO_LINK;
    section.sh_link_section = symbols;
    section.sh_info_section = Some(text);
    section.sh_addralign = 8;
    section.sh_entsize = 16;
    section.data = SectionData::Relocation(relocations);
}

#[cfg(test)]
mod tests;
