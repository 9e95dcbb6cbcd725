//! Links between the files of one crate: from each file to the files that define what it names.

use super::scope::{self, Module, Path};
use crate::source;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::path::Path as FilePath;

/// The links of one crate.
#[derive(Debug, Default)]
pub(crate) struct Links {
    /// Paths from the repository's root.
    pub(crate) files: Vec<String>,
    /// (from, to) with each mention: its line and path.
    pub(crate) links: BTreeMap<(usize, usize), BTreeSet<(usize, String)>>,
}

impl Links {
    /// Reads the crate whose sources are `files`: paths below `crates/x/src/`, with their text.
    pub(crate) fn read(source: &str, files: &[(String, String)]) -> Self {
        let files = without_tests(source, files);
        let mut krate = Crate::read(source, &files);
        krate.modules[0].parent = None;
        let mut out = Self {
            files: files.iter().map(|(file, _)| file.clone()).collect(),
            links: BTreeMap::new(),
        };
        for at in 0..krate.modules.len() {
            krate.link(at, &mut out);
        }
        out
    }

    /// The links without their mentions.
    pub(crate) fn edges(&self) -> BTreeSet<(usize, usize)> {
        self.links.keys().copied().collect()
    }
}

/// Module path of a file: `crates/x/src/a/mod.rs` is `[a]`, `lib.rs` and `main.rs` are the root.
fn module_path(source: &str, file: &str) -> Vec<String> {
    let inside = file.strip_prefix(source).unwrap_or(file);
    let inside = inside.strip_suffix(".rs").unwrap_or(inside);
    let inside = inside.strip_suffix("/mod").unwrap_or(inside);
    inside
        .split('/')
        .filter(|part| !matches!(*part, "" | "lib" | "main"))
        .map(str::to_owned)
        .collect()
}

/// Leaves out modules that exist in test builds only, and what is below them.
fn without_tests(source: &str, files: &[(String, String)]) -> Vec<(String, String)> {
    let mut hidden: HashSet<Vec<String>> = HashSet::new();
    for (file, text) in files {
        let mut modules = vec![Module::default()];
        scope::read(&source::tokens(text), &mut modules, 0);
        let path = module_path(source, file);
        for name in modules.iter().flat_map(|module| &module.test_children) {
            hidden.insert([path.as_slice(), std::slice::from_ref(name)].concat());
        }
    }
    let is_hidden = |file: &str| {
        let path = module_path(source, file);
        path.iter().any(|part| part == "tests")
            || (1..=path.len()).any(|len| hidden.contains(&path[..len]))
    };
    files
        .iter()
        .filter(|(file, _)| !is_hidden(file))
        .cloned()
        .collect()
}

/// The module tree of a crate; module 0 is the root.
struct Crate {
    modules: Vec<Module>,
    /// Whether a file holds a folder's (or the crate's) root module.
    is_root: Vec<bool>,
}

/// What a name means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Target {
    Module(usize),
    /// An item in the file with this index.
    Item(usize),
}

impl Crate {
    fn read(source: &str, files: &[(String, String)]) -> Self {
        let mut modules = vec![Module::default()];
        let mut is_root = Vec::new();
        for (index, (file, text)) in files.iter().enumerate() {
            let mut at = 0;
            for name in module_path(source, file) {
                at = match modules[at].children.get(&name) {
                    Some(&child) => child,
                    None => {
                        let child = modules.len();
                        modules.push(Module {
                            parent: Some(at),
                            ..Module::default()
                        });
                        modules[at].children.insert(name, child);
                        child
                    }
                };
            }
            modules[at].file = index;
            scope::read(&source::tokens(text), &mut modules, at);
            let name = FilePath::new(file).file_name().unwrap_or_default();
            is_root.push(name == "mod.rs" || name == "lib.rs" || name == "main.rs");
        }
        Self { modules, is_root }
    }

    /// Adds the links of one module.
    fn link(&self, at: usize, out: &mut Links) {
        let module = &self.modules[at];
        let mut add = |path: &Path, targets: Vec<Target>| {
            for target in targets {
                if let Target::Item(file) = target
                    && file != module.file
                {
                    let mention = (path.line, path.segments.join("::"));
                    let mentions = out.links.entry((module.file, file)).or_default();
                    mentions.insert(mention);
                }
            }
        };
        for import in &module.imports {
            let is_facade = import.is_reexport && self.is_root[module.file];
            if !is_facade {
                add(&import.path, self.resolve(at, &import.path.segments));
            }
        }
        for path in &module.paths {
            // A single name is linked by the `use` that brings it in, unless that is a facade or
            // a glob.
            let is_plain = path.segments.len() == 1
                && module.imports.iter().any(|import| {
                    import.name == path.segments[0]
                        && !(import.is_reexport && self.is_root[module.file])
                });
            if !is_plain {
                add(path, self.resolve(at, &path.segments));
            }
        }
    }

    fn resolve(&self, at: usize, segments: &[String]) -> Vec<Target> {
        self.resolve_once(at, segments, &mut HashSet::new())
    }

    /// The items that a path means; `seen` ends circular imports.
    fn resolve_once(
        &self,
        at: usize,
        segments: &[String],
        seen: &mut HashSet<(usize, String)>,
    ) -> Vec<Target> {
        let mut module = at;
        let mut rest = segments;
        while let Some((first, after)) = rest.split_first() {
            module = match first.as_str() {
                "crate" => 0,
                "self" => module,
                "super" => match self.modules[module].parent {
                    Some(parent) => parent,
                    None => return Vec::new(),
                },
                _ => break,
            };
            rest = after;
        }
        self.descend(module, rest, seen)
    }

    fn descend(
        &self,
        module: usize,
        rest: &[String],
        seen: &mut HashSet<(usize, String)>,
    ) -> Vec<Target> {
        let Some((first, after)) = rest.split_first() else {
            return vec![Target::Module(module)];
        };
        let mut found = self.lookup(module, first, seen);
        if after.is_empty() {
            return found;
        }
        found.sort_by_key(|target| matches!(target, Target::Item(_)));
        for target in found {
            match target {
                Target::Item(_) => return vec![target],
                Target::Module(inner) => {
                    let targets = self.descend(inner, after, seen);
                    if !targets.is_empty() {
                        return targets;
                    }
                }
            }
        }
        Vec::new()
    }

    /// All that `name` means in a module: its own items first, then imports, then globs.
    fn lookup(&self, at: usize, name: &str, seen: &mut HashSet<(usize, String)>) -> Vec<Target> {
        if !seen.insert((at, name.to_owned())) {
            return Vec::new();
        }
        let module = &self.modules[at];
        let mut out = Vec::new();
        if module.items.iter().any(|item| item == name) {
            out.push(Target::Item(module.file));
        }
        if let Some(&child) = module.children.get(name) {
            out.push(Target::Module(child));
        }
        for import in module.imports.iter().filter(|import| import.name == name) {
            // A path that begins with the imported name itself means the child module.
            let is_own = import.path.segments.first().is_some_and(|own| own == name);
            if is_own {
                seen.remove(&(at, name.to_owned()));
                if let Some(&child) = module.children.get(name) {
                    out.extend(self.descend(child, &import.path.segments[1..], seen));
                }
                seen.insert((at, name.to_owned()));
            } else {
                out.extend(self.resolve_once(at, &import.path.segments, seen));
            }
        }
        if out.is_empty() {
            for glob in module.imports.iter().filter(|import| import.name == "*") {
                for target in self.resolve_once(at, &glob.path.segments, seen) {
                    if let Target::Module(inner) = target {
                        out.extend(self.lookup(inner, name, seen));
                    }
                }
            }
        }
        seen.remove(&(at, name.to_owned()));
        out.dedup();
        out
    }
}
