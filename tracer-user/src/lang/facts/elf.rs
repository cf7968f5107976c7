//! Symbols of an ELF file, for probes on `PATH:SYMBOL`.
//!
//! The content of the file is untrusted input.

use object::{Object, ObjectSegment, ObjectSymbol, ReadRef, SymbolKind};

/// Returns the file offset of a function, from the symbol table or else from the dynamic symbol table.
pub fn symbol_offset<'data, R: ReadRef<'data>>(content: R, symbol: &str) -> Option<u64> {
    let file = object::File::parse(content).ok()?;
    let mut all = file.symbols().chain(file.dynamic_symbols()).filter(is_function);
    let found = all.find(|found| found.name() == Ok(symbol))?;
    let address = found.address();
    file.segments().find_map(|segment| {
        let (start, (offset, length)) = (segment.address(), segment.file_range());
        let ahead = address.checked_sub(start)?;
        if ahead < length { offset.checked_add(ahead) } else { None }
    })
}

fn is_function<'data>(symbol: &impl ObjectSymbol<'data>) -> bool {
    symbol.is_definition() && symbol.kind() == SymbolKind::Text
}

/// Returns the names of the functions of a file.
pub fn function_names<'data, R: ReadRef<'data>>(content: R) -> Vec<String> {
    let Ok(file) = object::File::parse(content) else { return Vec::new() };
    let all = file.symbols().chain(file.dynamic_symbols());
    all.filter(is_function).filter_map(|symbol| symbol.name().ok().map(str::to_owned)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_of_this_program() {
        let bytes = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        let at = symbol_offset(&*bytes, "main").unwrap();
        assert!(at > 0 && at < bytes.len() as u64, "{at} in {} bytes", bytes.len());
        assert!(function_names(&*bytes).iter().any(|name| name == "main"));
        assert_eq!(symbol_offset(&*bytes, "no_such_function_in_here"), None);
        assert_eq!(symbol_offset(&b"no program"[..], "main"), None);
    }
}
