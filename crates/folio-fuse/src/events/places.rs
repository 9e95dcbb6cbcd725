//! The places of directories in the client: where its kernel found each of them last.

use crate::nodes::ROOT;
use parking_lot::Mutex;
use std::collections::HashMap;

/// Most directories in a path; more are a loop, made by concurrent moves.
const DEPTH_MAX: usize = 2048;

/// A name in a directory.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Place {
    /// The node of the directory.
    pub(crate) parent: u64,
    pub(crate) name: Box<[u8]>,
}

/// The places of directories by node, and the reverse.
#[derive(Default)]
pub(crate) struct DirectoryPlaces(Mutex<Places>);

#[derive(Default)]
struct Places {
    of: HashMap<u64, Place>,
    at: HashMap<Place, u64>,
}

impl Places {
    fn set(&mut self, node: u64, place: Place) {
        self.remove(node);
        if let Some(before) = self.at.insert(place.clone(), node) {
            self.of.remove(&before);
        }
        self.of.insert(node, place);
    }

    fn remove(&mut self, node: u64) {
        if let Some(place) = self.of.remove(&node) {
            self.at.remove(&place);
        }
    }
}

impl DirectoryPlaces {
    pub(crate) fn set(&self, node: u64, place: Place) {
        let mut places = self.0.lock();
        if places.of.get(&node) != Some(&place) {
            places.set(node, place);
        }
    }

    /// Forgets the place of a directory unless the client has it again: its lookup may have been
    /// answered since.
    pub(crate) fn forget(&self, node: u64, is_known: impl FnOnce() -> bool) {
        let mut places = self.0.lock();
        // Under the lock: an entry is in the table of nodes before its place is set.
        if !is_known() {
            places.remove(node);
        }
    }

    /// Forgets all places.
    pub(crate) fn clear(&self) {
        *self.0.lock() = Places::default();
    }

    /// Returns whether the client has a directory in a place.
    pub(crate) fn contains(&self, node: u64) -> bool {
        self.0.lock().of.contains_key(&node)
    }

    /// Notes that names have moved; `exchanges` if each became the other.
    pub(crate) fn note_move(&self, from: &Place, to: &Place, exchanges: bool) {
        let mut places = self.0.lock();
        let moved = places.at.get(from).copied();
        let other = places.at.get(to).copied();
        // Both leave their places before one has that of the other.
        moved
            .iter()
            .chain(&other)
            .for_each(|node| places.remove(*node));
        if let Some(moved) = moved {
            places.set(moved, to.clone());
        }
        if let Some(other) = other.filter(|_| exchanges) {
            places.set(other, from.clone());
        }
    }

    /// Returns the directory that the client has at a name.
    pub(crate) fn node_at(&self, parent: u64, name: &[u8]) -> Option<u64> {
        let name = name.into();
        self.0.lock().at.get(&Place { parent, name }).copied()
    }

    /// Returns the places from the root to a directory, each with its node; `None` if the client
    /// has it in no place.
    pub(crate) fn path(&self, node: u64) -> Option<Vec<(Place, u64)>> {
        let places = self.0.lock();
        let mut path = Vec::new();
        let mut at = node;
        while at != ROOT {
            let place = places.of.get(&at).filter(|_| path.len() < DEPTH_MAX)?;
            path.push((place.clone(), at));
            at = place.parent;
        }
        path.reverse();
        Some(path)
    }

    /// Returns all directories but the root.
    pub(crate) fn nodes(&self) -> Vec<u64> {
        self.0.lock().of.keys().copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn path_follows_moves() {
        let at = |parent, name: &[u8]| Place {
            parent,
            name: name.into(),
        };
        let places = DirectoryPlaces::default();
        places.set(7, at(ROOT, b"a"));
        places.set(8, at(7, b"b"));
        let names = |node| {
            let path = places.path(node)?;
            Some(
                path.into_iter()
                    .map(|(place, _)| place.name)
                    .collect::<Vec<_>>(),
            )
        };
        assert_eq!(names(8), Some(vec![(*b"a").into(), (*b"b").into()]));
        places.note_move(&at(ROOT, b"a"), &at(ROOT, b"c"), false);
        assert_eq!(names(8), Some(vec![(*b"c").into(), (*b"b").into()]));
        places.note_move(&at(7, b"b"), &at(ROOT, b"c"), true);
        assert_eq!(names(8), Some(vec![(*b"c").into()]));
        // A loop.
        assert_eq!(names(7), None);
        places.set(9, at(ROOT, b"c"));
        assert_eq!((names(8), names(ROOT)), (None, Some(Vec::new())));
        // The directory was looked up again before its last forget was handled.
        places.forget(9, || true);
        assert_eq!(names(9), Some(vec![(*b"c").into()]));
        places.forget(9, || false);
        assert_eq!(names(9), None);
    }
}
