//! Symbols of a file, for probes on `PATH:SYMBOL`.

use std::path::Path;

use object::{Object, ObjectSegment, ObjectSymbol, SymbolKind};

/// Offset in the file of a function, by its name: the symbol table's, else the dynamic one's.
pub(super) fn offset(path: &Path, symbol: &str) -> Option<u64> {
    let bytes = std::fs::read(path).ok()?;
    let file = object::File::parse(&*bytes).ok()?;
    let wanted = |found: &object::Symbol<'_, '_>| {
        found.is_definition() && found.kind() == SymbolKind::Text && found.name() == Ok(symbol)
    };
    let found = file.symbols().find(wanted).or_else(|| file.dynamic_symbols().find(wanted))?;
    let address = found.address();
    file.segments().find_map(|segment| {
        let (start, (offset, length)) = (segment.address(), segment.file_range());
        let ahead = address.checked_sub(start)?;
        (ahead < length).then(|| offset + ahead)
    })
}

/// The names of a file's functions.
pub(super) fn functions(path: &Path) -> Vec<String> {
    let Ok(bytes) = std::fs::read(path) else { return Vec::new() };
    let Ok(file) = object::File::parse(&*bytes) else { return Vec::new() };
    let all = file.symbols().chain(file.dynamic_symbols());
    let functions = all.filter(|symbol| symbol.is_definition() && symbol.kind() == SymbolKind::Text);
    functions.filter_map(|symbol| symbol.name().ok().map(str::to_owned)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_of_this_program() {
        let path = std::env::current_exe().unwrap();
        let at = offset(&path, "main").unwrap();
        let length = std::fs::metadata(&path).unwrap().len();
        assert!(at > 0 && at < length, "{at} in {length} bytes");
        assert!(functions(&path).iter().any(|name| name == "main"));
        assert_eq!(offset(&path, "no_such_function_in_here"), None);
        assert_eq!(offset(Path::new("/proc/self/status"), "main"), None);
    }
}
