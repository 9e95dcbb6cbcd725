//! Container images of random layers: umoci unpacks the same tree.

use super::TestDir;
use super::container::{Member, PLATFORM, layer, layout, unpack_and_compare};
use crate::support::random::Random;
use crate::support::requires;
use crate::support::tools::fsck;
use folio_tree::{Compression, EntryKind};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

const IMAGES: u64 = 25;
const LAYERS: usize = 8;
const MEMBERS: usize = 24;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Directory,
    File,
    Other,
}

/// The tree of all layers so far.
type Tree = BTreeMap<String, Kind>;

/// A member of a layer that owns its texts.
struct NewMember {
    path: String,
    kind: EntryKind,
    content: String,
}

struct Generator {
    random: Random,
    tree: Tree,
    /// The layer so far: paths that it touched, and its members.
    touched: Vec<String>,
    members: Vec<NewMember>,
}

impl Generator {
    fn new(seed: u64) -> Self {
        Self {
            random: Random::new(seed),
            tree: Tree::from([(String::new(), Kind::Directory)]),
            touched: Vec::new(),
            members: Vec::new(),
        }
    }

    fn some(&mut self, kind: Kind) -> Option<String> {
        let found = self.tree.iter().filter(|(_, found)| **found == kind);
        let paths: Vec<_> = found.map(|(path, _)| path.clone()).collect();
        (!paths.is_empty()).then(|| self.random.pick(&paths))
    }

    /// Whether the layer says something about the path, or about one above or below it.
    fn is_touched(&self, path: &str) -> bool {
        let is_below = |low: &str, high: &str| {
            low.strip_prefix(high)
                .is_some_and(|rest| rest.starts_with('/'))
        };
        self.touched
            .iter()
            .any(|at| at == path || is_below(path, at) || is_below(at, path))
    }

    fn remove(&mut self, path: &str) {
        let below = format!("{path}/");
        self.tree
            .retain(|at, _| at != path && !at.starts_with(&below));
    }

    fn push(&mut self, path: String, kind: EntryKind, content: String) {
        self.members.push(NewMember {
            path,
            kind,
            content,
        });
    }

    /// Adds a name: a new one, or one that replaces whatever has it.
    fn add(&mut self) {
        let Some(parent) = self.some(Kind::Directory) else {
            return;
        };
        let name = format!(
            "{}{}",
            ["a", "b", "c.d", "\u{e9}"][self.random.below(4usize)],
            self.random.below(6usize)
        );
        let path = if parent.is_empty() {
            name
        } else {
            format!("{parent}/{name}")
        };
        if self.is_touched(&path) {
            return;
        }
        let was = self.tree.get(&path).copied();
        let (kind, entry, content) = match self.random.below(8usize) {
            0..=2 => (Kind::Directory, EntryKind::Directory, String::new()),
            3 => {
                let target = ["..", "/a1", "nowhere", "b2/../b2"][self.random.below(4usize)];
                (
                    Kind::Other,
                    EntryKind::Symlink(target.into()),
                    String::new(),
                )
            }
            4 => match self
                .some(Kind::File)
                .filter(|target| *target != path && !target.starts_with(&format!("{path}/")))
            {
                Some(target) => (
                    Kind::File,
                    EntryKind::HardLink(target.into()),
                    String::new(),
                ),
                None => return,
            },
            _ => {
                let content = "x".repeat(self.random.below(5000usize));
                let size_bytes = content.len() as u64;
                (Kind::File, EntryKind::File { size_bytes }, content)
            }
        };
        if was.is_some() && (kind != Kind::Directory || was != Some(Kind::Directory)) {
            self.remove(&path);
        }
        self.tree.insert(path.clone(), kind);
        // The content of a new directory may follow in the same layer.
        if kind != Kind::Directory {
            self.touched.push(path.clone());
        }
        self.push(path, entry, content);
    }

    /// Hides a name, or all that is in a directory.
    fn hide(&mut self) {
        let paths: Vec<_> = self
            .tree
            .keys()
            .filter(|path| !path.is_empty())
            .cloned()
            .collect();
        if paths.is_empty() {
            return;
        }
        let path = self.random.pick(&paths);
        let is_own = self
            .members
            .iter()
            .any(|member| member.path == path || member.path.starts_with(&format!("{path}/")));
        if self.is_touched(&path) || is_own {
            return;
        }
        let empty = EntryKind::File { size_bytes: 0 };
        if self.tree[&path] == Kind::Directory && self.random.percent(40) {
            let below = format!("{path}/");
            self.tree.retain(|at, _| !at.starts_with(&below));
            self.push(format!("{path}/.wh..wh..opq"), empty, String::new());
            return;
        }
        self.remove(&path);
        self.touched.push(path.clone());
        let (above, name) = path.rsplit_once('/').unwrap_or(("", &path));
        let lead = if above.is_empty() {
            String::new()
        } else {
            format!("{above}/")
        };
        self.push(format!("{lead}.wh.{name}"), empty, String::new());
    }

    fn layer(&mut self) -> Vec<u8> {
        self.touched.clear();
        self.members.clear();
        for _ in 0..MEMBERS {
            if self.random.percent(25) {
                self.hide();
            } else {
                self.add();
            }
        }
        let members: Vec<Member<'_>> = self
            .members
            .iter()
            .map(|member| {
                (
                    member.path.as_str(),
                    member.kind.clone(),
                    member.content.as_str(),
                )
            })
            .collect();
        layer(&members)
    }
}

/// Makes the tag that of the image itself: umoci does not choose a platform.
fn point_at_manifest(folder: &Path) {
    let read = |path: &Path| -> Value { serde_json::from_slice(&fs::read(path).unwrap()).unwrap() };
    let file = folder.join("index.json");
    let mut index = read(&file);
    let digest = index["manifests"][0]["digest"].as_str().unwrap();
    let list = read(&folder.join("blobs").join(digest.replace(':', "/")));
    let annotations = index["manifests"][0]["annotations"].take();
    index["manifests"] = json!([list["manifests"][1]]);
    index["manifests"][0]["annotations"] = annotations;
    fs::write(file, index.to_string()).unwrap();
}

#[test]
fn random_layers_are_equal_for_umoci() {
    requires!(
        root,
        loop_devices,
        tool("umoci"),
        tool("tar"),
        tool("e2fsck")
    );
    for seed in 0..IMAGES {
        let dir = TestDir::new();
        let mut generator = Generator::new(seed);
        let layers: Vec<_> = (0..LAYERS).map(|_| generator.layer()).collect();
        layout(
            &dir.path("lay"),
            &layers,
            &[Compression::Gzip, Compression::None],
        );
        point_at_manifest(&dir.path("lay"));
        let words = ["cp", "-a", "oci:lay:app", "new.img:/", "--create", "auto"];
        dir.ok(&[&words, &PLATFORM[..]].concat());
        fsck(&dir.path("new.img"));
        unpack_and_compare(&dir, "lay:app", "new.img");
        assert!(generator.tree.len() > 20, "image {seed}");
    }
}
