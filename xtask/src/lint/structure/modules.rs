//! The modules of a crate, the file that a path leads to, and the results: the edges between files and the methods of
//! types.
//!
//! A module is found by its `mod` declaration; one with a `#[path]` is not followed. Macros are not expanded: their
//! paths are used as written. A method call names no module and is not an edge. [`super::source`] reads the files, and
//! [`super::cycles`] uses the graph.

use std::collections::BTreeMap;

use super::source::{Body, Import};

/// The content of files, by their paths from the workspace's root.
pub(super) type Files = BTreeMap<String, Body>;

/// The names that each file uses, by the files that define them.
pub(super) type Graph<'a> = BTreeMap<&'a str, BTreeMap<&'a str, Vec<&'a str>>>;

/// The top module whose types are components: functions that take one first count as its methods. Elsewhere, such
/// functions often write to a buffer that they are given.
const COMPONENTS: &str = "engine";

/// Maximum number of re-exports to follow for one path.
const DEEPEST: usize = 16;

/// A crate, from one root file.
pub(super) struct Crate<'a> {
    /// The package's folder. For an additional program or a test: its file without `.rs`, or its folder.
    pub(super) name: &'a str,
    /// Modules; the root is the first.
    modules: Vec<Module<'a>>,
}

struct Module<'a> {
    name: &'a str,
    file: &'a str,
    body: &'a Body,
    parent: Option<usize>,
    children: BTreeMap<&'a str, usize>,
}

/// The target of a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct ItemPath<'a> {
    module: usize,
    /// The item that the module defines. `None` if the path names the module itself.
    item: Option<&'a str>,
}

/// The methods of a type in one top-level module.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Type<'a> {
    /// The module directly below the root.
    pub(super) module: &'a str,
    pub(super) name: &'a str,
    pub(super) methods: usize,
    /// Their number and the line of the first `impl`, by file.
    pub(super) files: BTreeMap<&'a str, (usize, usize)>,
}

/// The folder of a file.
pub(super) fn folder(file: &str) -> &str {
    file.rsplit_once('/').map_or("", |(folder, _)| folder)
}

/// The crates whose root files are among `files`.
pub(super) fn crates(files: &Files) -> Vec<Crate<'_>> {
    let name = |file: &str| {
        let stem = file.strip_suffix(".rs")?.len();
        match file.split('/').collect::<Vec<_>>()[..] {
            [package, "src", "lib.rs" | "main.rs"] => Some(package.len()),
            [_, "src", "bin", _] | [_, "tests", _] => Some(stem),
            [_, "tests", _, "main.rs"] => Some(stem - "/main".len()),
            _ => None,
        }
    };
    files.keys().filter_map(|file| Some(Crate::new(files, file, &file[..name(file)?]))).collect()
}

impl<'a> Crate<'a> {
    fn new(files: &'a Files, root: &'a str, name: &'a str) -> Self {
        let mut new = Self { name, modules: Vec::new() };
        let stem = root.rsplit('/').next().and_then(|file| file.strip_suffix(".rs")).unwrap_or(root);
        if let Some(body) = files.get(root) {
            new.add(
                files,
                Module { name: stem, file: root, body, parent: None, children: BTreeMap::new() },
                folder(root),
            );
        }
        new
    }

    /// Adds a module and the modules below it, whose files are in `dir`.
    fn add(&mut self, files: &'a Files, module: Module<'a>, dir: &str) -> usize {
        let own = self.modules.len();
        let (file, body) = (module.file, module.body);
        self.modules.push(module);
        let below =
            |name, file, body| Module { name, file, body, parent: Some(own), children: BTreeMap::new() };
        for name in &body.files {
            // A module may be declared twice, under a condition and under its opposite.
            if self.modules[own].children.contains_key(&**name) {
                continue;
            }
            let dir = format!("{dir}/{name}");
            let found = files.get_key_value(&format!("{dir}.rs"));
            if let Some((file, body)) = found.or_else(|| files.get_key_value(&format!("{dir}/mod.rs"))) {
                let child = self.add(files, below(name, file, body), &dir);
                self.modules[own].children.insert(name, child);
            }
        }
        for (name, body) in &body.inline {
            let child = self.add(files, below(name, file, body), &format!("{dir}/{name}"));
            self.modules[own].children.insert(name, child);
        }
        own
    }

    /// The target of `path` from module `from`. `None` if the path starts at another crate or at an item.
    fn resolve(&self, from: usize, path: &'a [String], depth: usize) -> Option<ItemPath<'a>> {
        if depth == DEEPEST {
            return None;
        }
        let (first, mut rest) = path.split_first()?;
        let mut module = match &**first {
            "crate" => 0,
            "self" => from,
            "super" => self.modules[from].parent?,
            name => {
                if let Some(child) = self.modules[from].children.get(name) {
                    *child
                } else {
                    let import = self.import(from, name)?;
                    let place = self.resolve(from, &import.path, depth + 1)?;
                    // The rest of a path through an imported item adds nothing to the import.
                    if place.item.is_some() {
                        return None;
                    }
                    place.module
                }
            }
        };
        while let [up, behind @ ..] = rest
            && up == "super"
        {
            module = self.modules[module].parent?;
            rest = behind;
        }
        Some(self.walk(module, rest, depth))
    }

    /// The target of `rest` from module `module`.
    fn walk(&self, mut module: usize, mut rest: &'a [String], depth: usize) -> ItemPath<'a> {
        while let [name, behind @ ..] = rest {
            let child = self.modules[module].children.get(&**name);
            // A module and a function may have the same name. The last name of a path is the function.
            let exported = self.exports(module, name).next().is_some();
            match child.filter(|_| !(behind.is_empty() && exported)) {
                Some(child) => module = *child,
                None => match self.re_exported(module, name, depth) {
                    Some(place) if place.item.is_some() => return place,
                    Some(place) => module = place.module,
                    None => return ItemPath { module, item: Some(name) },
                },
            }
            rest = behind;
        }
        ItemPath { module, item: None }
    }

    /// The import that brings `name` into a module.
    fn import(&self, module: usize, name: &str) -> Option<&'a Import> {
        self.modules[module].body.imports.iter().find(|import| import.name == name)
    }

    /// The imports by which other modules see `name` in a module.
    fn exports(&self, module: usize, name: &str) -> impl Iterator<Item = &'a Import> {
        let imports = self.modules[module].body.imports.iter();
        imports.filter(move |import| import.public && import.name == name)
    }

    /// The target of a re-export of `name` in a module, by name or by `*`.
    fn re_exported(&self, module: usize, name: &'a str, depth: usize) -> Option<ItemPath<'a>> {
        let by_name = |module| {
            self.exports(module, name).find_map(|import| self.resolve(module, &import.path, depth + 1))
        };
        by_name(module).or_else(|| {
            self.exports(module, "*").find_map(|import| {
                let place = self.resolve(module, &import.path, depth + 1)?;
                let behind = &self.modules[place.module];
                if place.item.is_some() {
                    None
                } else if behind.body.defined.contains(name) {
                    Some(ItemPath { item: Some(name), ..place })
                } else if let Some(child) = behind.children.get(name) {
                    Some(ItemPath { module: *child, item: None })
                } else {
                    by_name(place.module)
                }
            })
        })
    }

    /// The names that each file uses of other files.
    ///
    /// An import of a module is not an edge; the paths through it are. A re-export in the root or in a `mod.rs` is not
    /// an edge either.
    pub(super) fn graph(&self) -> Graph<'a> {
        let mut graph = Graph::new();
        for (from, module) in self.modules.iter().enumerate() {
            let used = graph.entry(module.file).or_default();
            let mut add = |place: ItemPath<'a>, name: &'a str| {
                let file = self.modules[place.module].file;
                if file != module.file {
                    let names: &mut Vec<_> = used.entry(file).or_default();
                    if !names.contains(&name) {
                        names.push(name);
                    }
                }
            };
            let gathers = module.file == self.modules[0].file || module.file.ends_with("/mod.rs");
            for import in module.body.imports.iter().filter(|import| !(gathers && import.public)) {
                match self.resolve(from, &import.path, 0) {
                    Some(place) if import.name == "*" => add(place, "*"),
                    Some(place @ ItemPath { item: Some(item), .. }) => add(place, item),
                    _ => {}
                }
            }
            for path in &module.body.paths {
                if let Some(place) = self.resolve(from, path, 0) {
                    add(place, place.item.unwrap_or(self.modules[place.module].name));
                }
            }
        }
        graph
    }

    /// The module that defines the type of an `impl` in module `from`, if it can be found.
    fn definer(&self, from: usize, path: &'a [String], depth: usize) -> Option<usize> {
        let (module, name) = match path {
            [name] => (from, &**name),
            _ => self.resolve(from, path, depth).and_then(|place| Some((place.module, place.item?)))?,
        };
        if self.modules[module].body.defined.contains(name) {
            return Some(module);
        }
        // A module sees the imports of the modules above it, even private ones.
        let import = self.import(module, name).filter(|_| depth < DEEPEST)?;
        self.definer(module, &import.path, depth + 1)
    }

    /// The module directly below the root that holds `module`.
    fn top(&self, mut module: usize) -> &'a str {
        while let Some(parent) = self.modules[module].parent.filter(|parent| *parent != 0) {
            module = parent;
        }
        self.modules[module].name
    }

    /// The types with methods. Types with the same name in one module are distinct if their definitions are.
    pub(super) fn types(&self) -> Vec<Type<'a>> {
        let mut types = BTreeMap::new();
        for (from, module) in self.modules.iter().enumerate() {
            for block in &module.body.impls {
                let Some(name) = block.of.last() else { continue };
                let definer = self.definer(from, &block.of, 0);
                if block.is_function && definer.is_none_or(|module| self.top(module) != COMPONENTS) {
                    continue;
                }
                let top = self.top(from);
                let found = types.entry((top, &**name, definer)).or_insert_with(|| Type {
                    module: top,
                    name,
                    methods: 0,
                    files: BTreeMap::new(),
                });
                found.methods += block.methods;
                found.files.entry(module.file).or_insert((0, block.line)).0 += block.methods;
            }
        }
        types.into_values().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lint::structure::source;

    fn files(tree: &[(&str, &str)]) -> Files {
        tree.iter().map(|(file, text)| ((*file).to_owned(), source::read(text))).collect()
    }

    /// The edges of a crate whose sources below `c/src` are `tree`.
    fn edges(tree: &[(&str, &str)]) -> Vec<String> {
        let tree: Vec<_> = tree.iter().map(|(file, text)| (format!("c/src/{file}"), *text)).collect();
        let files = files(&tree.iter().map(|(file, text)| (&**file, *text)).collect::<Vec<_>>());
        let mut edges = Vec::new();
        for of in crates(&files) {
            for (from, used) in of.graph() {
                edges.extend(used.into_iter().map(|(to, names)| {
                    let short = |file: &str| file["c/src/".len()..].to_owned();
                    format!("{} -> {}: {}", short(from), short(to), names.join(" "))
                }));
            }
        }
        edges
    }

    #[test]
    fn a_path_leads_to_the_longest_module() {
        let tree = [
            ("lib.rs", "mod a; mod b;"),
            ("a/mod.rs", "mod c; pub mod d;"),
            (
                "a/c.rs",
                "use super::d::{X, y}; fn f() { crate::b::Z::new(); self::g(); super::super::b::h() }",
            ),
            ("a/d.rs", "use super::W;"),
            ("b.rs", "use crate::a; fn f() { a::d::g() } use {std::fmt, anyhow::Result};"),
        ];
        assert_eq!(
            edges(&tree),
            ["a/c.rs -> a/d.rs: X y", "a/c.rs -> b.rs: Z h", "a/d.rs -> a/mod.rs: W", "b.rs -> a/d.rs: g"]
        );
    }

    #[test]
    fn a_module_uses_its_children_by_path() {
        let tree = [
            ("lib.rs", "mod a;"),
            ("a/mod.rs", "mod b; use b::X; fn f() { b::g(); X::h(); self::b::i() }"),
            ("a/b.rs", ""),
        ];
        assert_eq!(edges(&tree), ["a/mod.rs -> a/b.rs: X g i"]);
        let tree = [("lib.rs", "mod a;"), ("a.rs", "mod b; pub use b::X;"), ("a/b.rs", "")];
        assert_eq!(edges(&tree), ["a.rs -> a/b.rs: X"], "only a mod.rs may re-export freely");
    }

    #[test]
    fn re_exports_are_followed_to_the_definition() {
        let tree = [
            ("lib.rs", "mod a; mod user; mod z;"),
            ("a/mod.rs", "mod b; mod d; pub use b::{X as Y, inner}; pub(crate) use d::*; use b::Hidden;"),
            ("a/b.rs", "pub mod inner; pub use crate::z::Far; pub struct X;"),
            ("a/b/inner.rs", ""),
            ("a/d.rs", "pub struct Starred; pub use super::b::Far as Near;"),
            ("z.rs", ""),
            (
                "user.rs",
                "use crate::a::{Y, Starred, Near, inner::deep, Hidden, Own}; use crate::a::inner; \
                 fn f() { inner::g() }",
            ),
        ];
        assert_eq!(
            edges(&tree),
            [
                "a/b.rs -> z.rs: Far",
                "a/d.rs -> z.rs: Far",
                "a/mod.rs -> a/b.rs: Hidden",
                "user.rs -> a/b.rs: X",
                "user.rs -> a/b/inner.rs: deep g",
                "user.rs -> a/d.rs: Starred",
                "user.rs -> a/mod.rs: Hidden Own",
                "user.rs -> z.rs: Far",
            ]
        );
    }

    #[test]
    fn cycles_of_re_exports_end() {
        let tree = [
            ("lib.rs", "mod a; mod b; mod c;"),
            ("a.rs", "pub use crate::b::X; pub use crate::b::*;"),
            ("b.rs", "pub use crate::a::X; pub use crate::a::*;"),
            ("c.rs", "use crate::a::{X, Y}; use c; use d::d;"),
        ];
        assert!(edges(&tree).iter().any(|edge| edge.starts_with("c.rs -> ")), "{:?}", edges(&tree));
    }

    #[test]
    fn inline_modules_belong_to_their_file() {
        let tree = [
            ("lib.rs", "mod a; mod b;"),
            (
                "a.rs",
                "mod c { pub use super::super::b::X; use super::Y; mod d { fn f() { crate::b::z() } } }",
            ),
            ("b.rs", "use crate::a::c::X; use crate::a::c::W;"),
        ];
        assert_eq!(edges(&tree), ["a.rs -> b.rs: X z", "b.rs -> a.rs: W"]);
    }

    #[test]
    fn tests_are_no_edges() {
        let tree = [
            ("lib.rs", "mod a; mod b; #[cfg(test)] mod t;"),
            ("a.rs", "#[cfg(test)] mod tests { use crate::b::X; } #[cfg(test)] use crate::b::Y;"),
            ("b.rs", "use crate::a::Z;"),
            ("t.rs", "use crate::a::Z; impl Z { fn f() {} }"),
        ];
        assert_eq!(edges(&tree), ["b.rs -> a.rs: Z"]);
    }

    #[test]
    fn globs_are_edges() {
        let tree =
            [("lib.rs", "mod a; mod b;"), ("a.rs", "use crate::b::*; use super::b::E::*;"), ("b.rs", "")];
        assert_eq!(edges(&tree), ["a.rs -> b.rs: *"]);
    }

    #[test]
    fn each_root_is_a_crate() {
        let files = files(&[
            ("c/src/lib.rs", ""),
            ("c/src/main.rs", ""),
            ("c/src/bin/d.rs", ""),
            ("c/src/e.rs", ""),
            ("c/tests/f.rs", ""),
            ("c/tests/g/mod.rs", ""),
            ("c/tests/h/main.rs", "mod i;"),
            ("c/tests/h/i.rs", ""),
        ]);
        let names: Vec<_> = crates(&files).into_iter().map(|c| c.name).collect();
        assert_eq!(names, ["c/src/bin/d", "c", "c", "c/tests/f", "c/tests/h"]);
    }

    #[test]
    fn methods_of_a_type_are_summed_over_a_module() {
        let files = files(&[
            ("c/src/lib.rs", "mod a; mod z; pub struct R; impl R { fn f() {} }"),
            ("c/src/a/mod.rs", "mod b; mod c; mod d;\npub struct T; impl T { fn f() {} fn g() {} }"),
            ("c/src/a/b.rs", "use super::T;\n\nimpl T { fn h() {} } impl T { fn i() {} }"),
            ("c/src/a/c.rs", "mod e; impl super::T { fn j() {} } impl<'a> Lost<'a> { fn k() {} }"),
            ("c/src/a/c/e.rs", "use super::super::b::T; impl T { fn n() {} }"),
            ("c/src/a/d.rs", "struct T; impl T { fn f() {} } impl Lost { fn l() {} }"),
            ("c/src/z.rs", "use crate::a::T; impl T { fn m() {} }"),
        ]);
        let crates = crates(&files);
        let types = crates[0].types();
        let seen: Vec<_> = types.iter().map(|t| (t.module, t.name, t.methods)).collect();
        assert_eq!(
            seen,
            [("a", "Lost", 2), ("a", "T", 6), ("a", "T", 1), ("lib", "R", 1), ("z", "T", 1)],
            "types that are not found count as one"
        );
        assert_eq!(types[1].files["c/src/a/b.rs"], (2, 3));
    }
}
