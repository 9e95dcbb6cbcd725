//! What a workload did to names and attributes: the state after each operation, as a set of facts.
//!
//! A journal applies operations in order and each as a whole, so what a power cut leaves must be
//! the state after one of them. States are compared by a hash to which each fact adds its own; only
//! a mismatch looks at the facts.

use crate::crash::content::{Content, Step};
use crate::crash::random::mix;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};

/// Number of an inode of the workload, never used again, otherwise than the file system's numbers.
pub(crate) type Node = usize;

/// What stat(2), listxattr(2) and readlink(2) tell, but for times, sizes and blocks.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Look {
    pub(crate) kind: char,
    pub(crate) mode: u16,
    pub(crate) owner: (u32, u32),
    pub(crate) links: u32,
    pub(crate) target: Vec<u8>,
    pub(crate) xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
}

impl fmt::Debug for Look {
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

/// One thing that is so.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Fact {
    /// A directory's inode number, a name in it, and the number it leads to.
    Entry(u64, String, u64),
    /// An inode number, and what it looks like.
    Inode(u64, Look),
}

impl Fact {
    /// What it adds to the hash of a state.
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
    pub(crate) look: Look,
    /// Names, of a directory.
    pub(crate) entries: BTreeMap<String, Node>,
    pub(crate) parent: Node,
    /// Bytes, of a regular file.
    pub(crate) content: Content,
    /// The first operation after which it has a name, and the first after which it has none.
    lived: (Step, Step),
    /// Its last change, and the last that fdatasync(2) must bring to the disk.
    touched: Step,
    born: Step,
}

#[derive(Debug)]
struct State {
    /// Length of the record before the operation.
    begun: usize,
    hash: u64,
    what: String,
    /// Facts that became true or ceased to be.
    toggled: Vec<Fact>,
}

/// Everything that a workload did.
#[derive(Debug)]
pub(crate) struct Names {
    /// The directory below which it worked.
    pub(crate) base: String,
    /// Length of the record when that directory was there for good.
    pub(crate) since: usize,
    pub(crate) inodes: Vec<Inode>,
    by_number: HashMap<u64, Vec<Node>>,
    states: Vec<State>,
    /// Lengths of the record, and the operation that must not be missing from then on.
    floors: Vec<(usize, Step)>,
}

/// Never: the end of what still lives.
const NEVER: Step = Step::MAX;

impl Names {
    /// A tree of nothing but a root directory.
    pub(crate) fn new(base: &str, since: usize, root_number: u64, root: Look) -> Self {
        let state = State {
            begun: 0,
            hash: 0,
            what: "the beginning".to_owned(),
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
        names.inodes[root].lived.0 = 0;
        let fact = names.inode_fact(root);
        names.toggle(fact);
        names
    }

    /// The last operation.
    pub(crate) fn step(&self) -> Step {
        self.states.len() - 1
    }

    /// What an operation was.
    pub(crate) fn what(&self, step: Step) -> &str {
        &self.states[step].what
    }

    /// An operation begins, when the record has `begun` entries.
    pub(crate) fn begin(&mut self, begun: usize, what: String) {
        let hash = self.states[self.step()].hash;
        self.states.push(State {
            begun,
            hash,
            what,
            toggled: Vec::new(),
        });
    }

    /// The node at a path from the root; panics if there is none.
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

    /// Whether there is such a path.
    pub(crate) fn exists(&self, path: &str) -> bool {
        let mut names = path.split('/').filter(|name| !name.is_empty());
        names
            .try_fold(0, |node, name| self.inodes[node].entries.get(name).copied())
            .is_some()
    }

    /// Every path of that kind (`d`, `f`, `l`), in order.
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
                if self.inodes[*child].look.kind == kind && name != "lost+found" {
                    found.push(at.clone());
                }
                if self.inodes[*child].look.kind == 'd' {
                    open.push((*child, at));
                }
            }
        }
        found.sort();
        found
    }

    /// A new inode without a name.
    pub(crate) fn add_inode(&mut self, number: u64, look: Look, parent: Node) -> Node {
        let node = self.inodes.len();
        let step = self.step();
        self.inodes.push(Inode {
            number,
            look,
            entries: BTreeMap::new(),
            parent,
            content: Content::new(node),
            lived: (NEVER, NEVER),
            touched: step,
            born: step,
        });
        self.by_number.entry(number).or_default().push(node);
        node
    }

    fn inode_fact(&self, node: Node) -> Fact {
        Fact::Inode(self.inodes[node].number, self.inodes[node].look.clone())
    }

    fn toggle(&mut self, fact: Fact) {
        let state = self.states.last_mut().expect("there is a beginning");
        state.hash ^= fact.hash();
        state.toggled.push(fact);
    }

    /// Changes what a node looks like.
    pub(crate) fn change(&mut self, node: Node, change: impl FnOnce(&mut Look)) {
        let step = self.step();
        let before = self.inode_fact(node);
        let inode = &mut self.inodes[node];
        let was = inode.look.links > 0;
        change(&mut inode.look);
        inode.touched = step;
        let is = inode.look.links > 0;
        if is && inode.lived.0 == NEVER {
            inode.lived.0 = step;
        } else if was && !is {
            inode.lived.1 = step;
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

    /// Notes a change that no fact tells: of bytes, or times.
    pub(crate) fn touch(&mut self, node: Node) {
        self.inodes[node].touched = self.step();
    }

    /// Gives `node` the name `name` in `parent`.
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

    /// Gives a name to what was there before the first operation.
    pub(crate) fn adopt(&mut self, parent: Node, name: &str, node: Node) {
        self.inodes[node].lived.0 = 0;
        let fact = self.inode_fact(node);
        self.toggle(fact);
        self.link(parent, name, node);
    }

    /// Takes the name `name` away from `parent`.
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

    /// fsync(2) of a node returned (`data_only`: fdatasync(2)), when the record had so many
    /// entries.
    pub(crate) fn synced(&mut self, node: Node, recorded: usize, data_only: bool) {
        let step = self.step();
        let inode = &mut self.inodes[node];
        inode.content.promise(step, recorded);
        let floor = if data_only { inode.born } else { inode.touched };
        self.floors.push((recorded, floor));
    }

    /// sync(2) returned.
    pub(crate) fn synced_all(&mut self, recorded: usize) {
        let step = self.step();
        for inode in &mut self.inodes {
            inode.content.promise(step, recorded);
        }
        self.floors.push((recorded, step));
    }

    /// The last operation that may have left something in the first `recorded` entries of the
    /// record.
    pub(crate) fn begun(&self, recorded: usize) -> Step {
        self.states
            .partition_point(|state| state.begun < recorded)
            .saturating_sub(1)
    }

    /// The operations whose states may be found when the record had so many entries.
    pub(crate) fn allowed(&self, recorded: usize) -> std::ops::RangeInclusive<Step> {
        let floors = self
            .floors
            .iter()
            .filter(|(at, _)| *at <= recorded)
            .map(|(_, step)| *step);
        floors.max().unwrap_or(0)..=self.begun(recorded)
    }

    /// The operations after which the state had this hash, of those allowed.
    pub(crate) fn states_like(&self, hash: u64, recorded: usize) -> Vec<Step> {
        self.allowed(recorded)
            .filter(|step| self.states[*step].hash == hash)
            .collect()
    }

    /// Which node had an inode number after an operation.
    pub(crate) fn node_of(&self, number: u64, step: Step) -> Option<Node> {
        let nodes = self.by_number.get(&number)?;
        nodes.iter().copied().find(|node| {
            let (from, to) = self.inodes[*node].lived;
            from <= step && step < to
        })
    }

    /// Lengths of the record when a sync returned, of any kind.
    pub(crate) fn returns(&self) -> impl Iterator<Item = usize> {
        self.floors.iter().map(|(at, _)| *at)
    }

    /// Lengths of the record when sync(2) had just returned: everything had to be there.
    pub(crate) fn sync_points(&self) -> impl Iterator<Item = usize> {
        let all = self
            .floors
            .iter()
            .filter(|(at, step)| self.begun(*at) == *step);
        all.map(|(at, _)| *at)
    }

    /// The last operations on a file's bytes before a cut, in words.
    pub(crate) fn story(&self, node: Node, recorded: usize) -> String {
        let (promise, steps) = self.inodes[node]
            .content
            .story(recorded, self.begun(recorded));
        let mut told: Vec<String> = steps
            .iter()
            .map(|step| format!("{step} {}", self.what(*step)))
            .collect();
        told.push(format!("promised by {promise} {}", self.what(promise)));
        told.join("\n")
    }

    /// How what was found differs from the allowed state that is most like it.
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
                let strange: Vec<_> = found.difference(&state).take(6).collect();
                nearest = Some((
                    distance,
                    step,
                    format!("missing {lost:?}\nnot expected {strange:?}"),
                ));
            }
        }
        let (_, step, text) = nearest.unwrap_or_default();
        let what = self.what(step);
        format!("no state of operations {allowed:?}; nearest is {step} ({what}):\n{text}")
    }
}
