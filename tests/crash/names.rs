//! The model of names and attributes: the state after each operation, as a set of facts.
//!
//! A journal applies operations in order and atomically, so a power cut must leave the state after
//! one of them. States are compared by the xor of their facts' hashes; the facts are compared only
//! after a mismatch.

use crate::crash::content::{ContentModel, Step};
use crate::crash::random::mix;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};

/// Number of an inode of the workload; unlike inode numbers, it is never reused.
pub(crate) type Node = usize;

/// Results of stat(2), listxattr(2) and readlink(2), without times, sizes and blocks.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct InodeAttributes {
    pub(crate) kind: char,
    pub(crate) mode: u16,
    pub(crate) owner: (u32, u32),
    pub(crate) links: u32,
    pub(crate) target: Vec<u8>,
    pub(crate) xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
}

impl fmt::Debug for InodeAttributes {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            kind,
            mode,
            owner: (uid, gid),
            links,
            target,
            xattrs,
        } = self;
        write!(out, "{kind} {mode:o} {uid}:{gid}, {links} links")?;
        if !target.is_empty() {
            write!(out, ", target of {} bytes", target.len())?;
        }
        for (name, value) in xattrs {
            write!(
                out,
                ", {}={} x {:?}",
                String::from_utf8_lossy(name),
                value.len(),
                value.first()
            )?;
        }
        Ok(())
    }
}

/// One fact about the namespace.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Fact {
    /// A directory's inode number, a name in it, and the inode number of that name.
    Entry(u64, String, u64),
    /// An inode number and its attributes.
    Inode(u64, InodeAttributes),
}

impl Fact {
    /// Returns the fact's part of a state's hash.
    pub(crate) fn hash(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        Hash::hash(self, &mut hasher);
        mix(hasher.finish())
    }
}

/// One inode of the workload.
#[derive(Debug)]
pub(crate) struct Inode {
    pub(crate) number: u64,
    pub(crate) attributes: InodeAttributes,
    /// Entries of a directory.
    pub(crate) entries: BTreeMap<String, Node>,
    pub(crate) parent: Node,
    /// Contents of a regular file.
    pub(crate) content: ContentModel,
    /// The first operation after which the inode has a name, and the first after which it has none.
    named: (Step, Step),
    /// The last operation that changed the inode.
    touched: Step,
    /// The operation that created the inode, which fdatasync(2) must make durable.
    created: Step,
}

#[derive(Debug)]
struct State {
    /// Length of the record before the operation.
    begun: usize,
    hash: u64,
    what: String,
    /// Facts that became true or false.
    toggled: Vec<Fact>,
}

/// The model of all operations of a workload.
#[derive(Debug)]
pub(crate) struct NamespaceModel {
    /// The directory of the workload.
    pub(crate) base: String,
    /// Length of the record when that directory was durable.
    pub(crate) since: usize,
    pub(crate) inodes: Vec<Inode>,
    by_number: HashMap<u64, Vec<Node>>,
    states: Vec<State>,
    /// Lengths of the record, and the operation that must survive from then on.
    floors: Vec<(usize, Step)>,
}

/// A step that is never reached.
const NEVER: Step = Step::MAX;

impl NamespaceModel {
    /// Creates the model of a root directory.
    pub(crate) fn new(base: &str, since: usize, root_number: u64, root: InodeAttributes) -> Self {
        let state = State {
            begun: 0,
            hash: 0,
            what: "initial state".to_owned(),
            toggled: Vec::new(),
        };
        let mut names = Self {
            base: base.to_owned(),
            since,
            inodes: Vec::new(),
            by_number: HashMap::new(),
            states: vec![state],
            floors: Vec::new(),
        };
        let root = names.add_inode(root_number, root, 0);
        names.inodes[root].named.0 = 0;
        let fact = names.inode_fact(root);
        names.toggle(fact);
        names
    }

    /// Returns the last operation.
    pub(crate) fn step(&self) -> Step {
        self.states.len() - 1
    }

    /// Returns the description of an operation.
    pub(crate) fn what(&self, step: Step) -> &str {
        &self.states[step].what
    }

    /// Records the start of an operation, when the record has `begun` entries.
    pub(crate) fn begin(&mut self, begun: usize, what: String) {
        let hash = self.states[self.step()].hash;
        self.states.push(State {
            begun,
            hash,
            what,
            toggled: Vec::new(),
        });
    }

    /// Returns the node at a path from the root; panics for a missing path.
    pub(crate) fn find(&self, path: &str) -> Node {
        let mut node = 0;
        for name in path.split('/').filter(|name| !name.is_empty()) {
            node = *self.inodes[node]
                .entries
                .get(name)
                .unwrap_or_else(|| panic!("no {path} in the model"));
        }
        node
    }

    /// Returns whether a path exists.
    pub(crate) fn exists(&self, path: &str) -> bool {
        let mut names = path.split('/').filter(|name| !name.is_empty());
        names
            .try_fold(0, |node, name| self.inodes[node].entries.get(name).copied())
            .is_some()
    }

    /// Returns all paths of a kind (`d`, `f`, `l`), sorted.
    pub(crate) fn paths(&self, kind: char) -> Vec<String> {
        let mut found = Vec::new();
        let mut open = vec![(0, String::new())];
        while let Some((node, path)) = open.pop() {
            for (name, child) in &self.inodes[node].entries {
                let at = if path.is_empty() {
                    name.clone()
                } else {
                    format!("{path}/{name}")
                };
                if self.inodes[*child].attributes.kind == kind && name != "lost+found" {
                    found.push(at.clone());
                }
                if self.inodes[*child].attributes.kind == 'd' {
                    open.push((*child, at));
                }
            }
        }
        found.sort();
        found
    }

    /// Adds an inode without a name.
    pub(crate) fn add_inode(
        &mut self,
        number: u64,
        attributes: InodeAttributes,
        parent: Node,
    ) -> Node {
        let node = self.inodes.len();
        let step = self.step();
        self.inodes.push(Inode {
            number,
            attributes,
            entries: BTreeMap::new(),
            parent,
            content: ContentModel::new(node),
            named: (NEVER, NEVER),
            touched: step,
            created: step,
        });
        self.by_number.entry(number).or_default().push(node);
        node
    }

    fn inode_fact(&self, node: Node) -> Fact {
        Fact::Inode(
            self.inodes[node].number,
            self.inodes[node].attributes.clone(),
        )
    }

    fn toggle(&mut self, fact: Fact) {
        let state = self.states.last_mut().expect("the initial state");
        state.hash ^= fact.hash();
        state.toggled.push(fact);
    }

    /// Changes the attributes of a node.
    pub(crate) fn change(&mut self, node: Node, change: impl FnOnce(&mut InodeAttributes)) {
        let step = self.step();
        let before = self.inode_fact(node);
        let inode = &mut self.inodes[node];
        let was = inode.attributes.links > 0;
        change(&mut inode.attributes);
        inode.touched = step;
        let is = inode.attributes.links > 0;
        if is && inode.named.0 == NEVER {
            inode.named.0 = step;
        } else if was && !is {
            inode.named.1 = step;
        }
        let after = self.inode_fact(node);
        if (was, &before) == (is, &after) {
            return;
        }
        if was {
            self.toggle(before);
        }
        if is {
            self.toggle(after);
        }
    }

    /// Records a change without facts: of contents or times.
    pub(crate) fn touch(&mut self, node: Node) {
        self.inodes[node].touched = self.step();
    }

    /// Adds the name `name` in `parent` for `node`.
    pub(crate) fn link(&mut self, parent: Node, name: &str, node: Node) {
        let fact = Fact::Entry(
            self.inodes[parent].number,
            name.to_owned(),
            self.inodes[node].number,
        );
        self.toggle(fact);
        self.inodes[parent].entries.insert(name.to_owned(), node);
        self.inodes[node].parent = parent;
        self.touch(parent);
        self.touch(node);
    }

    /// Adds a name that existed before the first operation.
    pub(crate) fn adopt(&mut self, parent: Node, name: &str, node: Node) {
        self.inodes[node].named.0 = 0;
        let fact = self.inode_fact(node);
        self.toggle(fact);
        self.link(parent, name, node);
    }

    /// Removes the name `name` from `parent`; returns its node.
    pub(crate) fn unlink(&mut self, parent: Node, name: &str) -> Node {
        let node = self.inodes[parent]
            .entries
            .remove(name)
            .unwrap_or_else(|| panic!("no {name}"));
        let fact = Fact::Entry(
            self.inodes[parent].number,
            name.to_owned(),
            self.inodes[node].number,
        );
        self.toggle(fact);
        self.touch(parent);
        self.touch(node);
        node
    }

    /// Records the return of fsync(2) for a node (`data_only`: fdatasync(2)), when the record had
    /// `recorded` entries.
    pub(crate) fn synced(&mut self, node: Node, recorded: usize, data_only: bool) {
        let step = self.step();
        let inode = &mut self.inodes[node];
        inode.content.promise(step, recorded);
        let floor = if data_only {
            inode.created
        } else {
            inode.touched
        };
        self.floors.push((recorded, floor));
    }

    /// Records the return of sync(2), when the record had `recorded` entries.
    pub(crate) fn synced_all(&mut self, recorded: usize) {
        let step = self.step();
        for inode in &mut self.inodes {
            inode.content.promise(step, recorded);
        }
        self.floors.push((recorded, step));
    }

    /// Returns the last operation that may have written one of the first `recorded` entries.
    pub(crate) fn begun(&self, recorded: usize) -> Step {
        self.states
            .partition_point(|state| state.begun < recorded)
            .saturating_sub(1)
    }

    /// Returns the operations whose states are allowed after a cut at `recorded` entries.
    pub(crate) fn allowed(&self, recorded: usize) -> std::ops::RangeInclusive<Step> {
        let floors = self
            .floors
            .iter()
            .filter(|(at, _)| *at <= recorded)
            .map(|(_, step)| *step);
        floors.max().unwrap_or(0)..=self.begun(recorded)
    }

    /// Returns the allowed operations after which the state has this hash.
    pub(crate) fn states_like(&self, hash: u64, recorded: usize) -> Vec<Step> {
        self.allowed(recorded)
            .filter(|step| self.states[*step].hash == hash)
            .collect()
    }

    /// Returns the node that had an inode number after an operation.
    pub(crate) fn node_of(&self, number: u64, step: Step) -> Option<Node> {
        let nodes = self.by_number.get(&number)?;
        nodes.iter().copied().find(|node| {
            let (from, to) = self.inodes[*node].named;
            from <= step && step < to
        })
    }

    /// Iterates over the lengths of the record at each return of a sync of any kind.
    pub(crate) fn returns(&self) -> impl Iterator<Item = usize> {
        self.floors.iter().map(|(at, _)| *at)
    }

    /// Iterates over the lengths of the record at each return of sync(2), when all is durable.
    pub(crate) fn sync_points(&self) -> impl Iterator<Item = usize> {
        let all = self
            .floors
            .iter()
            .filter(|(at, step)| self.begun(*at) == *step);
        all.map(|(at, _)| *at)
    }

    /// Describes the last operations on a file's contents before a cut.
    pub(crate) fn history(&self, node: Node, recorded: usize) -> String {
        let (promise, steps) = self.inodes[node]
            .content
            .history(recorded, self.begun(recorded));
        let mut lines: Vec<String> = steps
            .iter()
            .map(|step| format!("{step} {}", self.what(*step)))
            .collect();
        lines.push(format!("synced by {promise} {}", self.what(promise)));
        lines.join("\n")
    }

    /// Describes the difference between the found facts and the nearest allowed state.
    pub(crate) fn difference(&self, found: &BTreeSet<Fact>, recorded: usize) -> String {
        let allowed = self.allowed(recorded);
        let mut state = BTreeSet::new();
        let mut nearest: Option<(usize, Step, String)> = None;
        for step in 0..=*allowed.end() {
            for fact in &self.states[step].toggled {
                if !state.remove(fact) {
                    state.insert(fact.clone());
                }
            }
            let distance = state.symmetric_difference(found).count();
            if allowed.contains(&step)
                && nearest.as_ref().is_none_or(|(least, ..)| distance < *least)
            {
                let lost: Vec<_> = state.difference(found).take(6).collect();
                let unexpected: Vec<_> = found.difference(&state).take(6).collect();
                nearest = Some((
                    distance,
                    step,
                    format!("missing {lost:?}\nunexpected {unexpected:?}"),
                ));
            }
        }
        let (_, step, text) = nearest.unwrap_or_default();
        let what = self.what(step);
        format!("no state of operations {allowed:?}; nearest is {step} ({what}):\n{text}")
    }
}
