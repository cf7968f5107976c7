//! Cycles of files that use each other: the strongly connected components of a graph of files, by Tarjan's algorithm.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::modules::{Graph, folder};

/// Maximum number of names shown for an edge.
const NAMES_SHOWN: usize = 4;

/// Two or more files, sorted, each of which reaches every other one.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Cycle<'a> {
    pub(super) files: Vec<&'a str>,
}

impl Cycle<'_> {
    /// Whether its files are in different folders.
    pub(super) fn is_across(&self) -> bool {
        self.files.iter().any(|file| folder(file) != folder(self.files[0]))
    }

    /// Its edges, one per line, with the first names that each uses.
    pub(super) fn edges(&self, graph: &Graph) -> String {
        let mut text = String::new();
        for from in &self.files {
            for (to, names) in &graph[from] {
                if self.files.binary_search(to).is_ok() {
                    let shown = names.iter().take(NAMES_SHOWN).copied().collect::<Vec<_>>().join(", ");
                    let more = if names.len() > NAMES_SHOWN { ", .." } else { "" };
                    // Writing to a string cannot fail.
                    let _ = write!(text, "\n    {from} -> {to}: {shown}{more}");
                }
            }
        }
        text
    }
}

/// The state of a visited file.
struct Seen {
    order: usize,
    open: bool,
}

struct Walk<'a, 'g> {
    graph: &'g Graph<'a>,
    seen: BTreeMap<&'a str, Seen>,
    /// Files whose component is incomplete.
    open: Vec<&'a str>,
    found: Vec<Cycle<'a>>,
}

impl<'a> Walk<'a, '_> {
    /// Visits a file. Returns the earliest open file that it reaches.
    fn visit(&mut self, file: &'a str) -> usize {
        let order = self.seen.len();
        self.seen.insert(file, Seen { order, open: true });
        let start = self.open.len();
        self.open.push(file);
        let mut lowest = order;
        for to in self.graph.get(file).into_iter().flat_map(|used| used.keys()) {
            match self.seen.get(to) {
                None => lowest = lowest.min(self.visit(to)),
                Some(seen) if seen.open => lowest = lowest.min(seen.order),
                Some(_) => {}
            }
        }
        if lowest == order {
            let mut files = self.open.split_off(start);
            for file in &files {
                if let Some(seen) = self.seen.get_mut(file) {
                    seen.open = false;
                }
            }
            if files.len() > 1 {
                files.sort_unstable();
                self.found.push(Cycle { files });
            }
        }
        lowest
    }
}

/// The cycles of a graph, in the order of their first files.
pub(super) fn find<'a>(graph: &Graph<'a>) -> Vec<Cycle<'a>> {
    let mut walk = Walk { graph, seen: BTreeMap::new(), open: Vec::new(), found: Vec::new() };
    for file in graph.keys() {
        if !walk.seen.contains_key(file) {
            walk.visit(file);
        }
    }
    walk.found.sort_unstable_by_key(|cycle| cycle.files[0]);
    walk.found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn graph<'a>(edges: &[(&'a str, &'a str)]) -> Graph<'a> {
        let mut graph = Graph::new();
        for (from, to) in edges {
            graph.entry(from).or_default().entry(to).or_default().push("X");
            graph.entry(to).or_default();
        }
        graph
    }

    #[test]
    fn separate_components_are_distinguished() {
        let graph = graph(&[
            ("a", "b"),
            ("b", "c"),
            ("c", "a"),
            ("c", "d"),
            ("d", "e"),
            ("e", "d"),
            ("f", "a"),
            ("f", "e"),
            ("e", "g"),
        ]);
        let found: Vec<_> = find(&graph).into_iter().map(|cycle| cycle.files).collect();
        assert_eq!(found, [vec!["a", "b", "c"], vec!["d", "e"]]);
    }

    #[test]
    fn cycles_that_share_a_file_are_one_cycle() {
        let graph = graph(&[("a", "b"), ("b", "a"), ("b", "c"), ("c", "d"), ("d", "b"), ("d", "e")]);
        let found: Vec<_> = find(&graph).into_iter().map(|cycle| cycle.files).collect();
        assert_eq!(found, [["a", "b", "c", "d"]]);
        assert_eq!(find(&self::graph(&[("a", "b"), ("a", "c"), ("b", "d"), ("c", "d")])), []);
    }

    #[test]
    fn a_mod_file_belongs_to_its_folder() {
        let across = |files: &[&'static str]| Cycle { files: files.to_vec() }.is_across();
        assert!(!across(&["c/a/b.rs", "c/a/mod.rs"]));
        assert!(across(&["c/a/mod.rs", "c/b.rs"]));
        assert!(across(&["c/a.rs", "c/a/b.rs"]));
    }

    #[test]
    fn edges_inside_are_shown_with_their_first_names() {
        let mut graph = graph(&[("a", "b"), ("b", "a"), ("b", "c")]);
        graph.insert("a", [("b", vec!["V", "W", "X", "Y", "Z"])].into());
        assert_eq!(find(&graph)[0].edges(&graph), "\n    a -> b: V, W, X, Y, ..\n    b -> a: X");
    }
}
