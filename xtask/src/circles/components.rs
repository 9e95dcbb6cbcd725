//! Strongly connected components of a small graph, and edges whose removal breaks them.

use std::collections::BTreeSet;

/// An edge from one node to another.
pub(crate) type Edge = (usize, usize);

/// Returns the strongly connected components of more than one node, each sorted, largest first.
pub(crate) fn components(nodes: usize, edges: &BTreeSet<Edge>) -> Vec<Vec<usize>> {
    let mut forward = vec![Vec::new(); nodes];
    let mut backward = vec![Vec::new(); nodes];
    for &(from, to) in edges {
        forward[from].push(to);
        backward[to].push(from);
    }
    let mut order = Vec::new();
    let mut is_seen = vec![false; nodes];
    for node in 0..nodes {
        visit(node, &forward, &mut is_seen, &mut order);
    }
    let mut out = Vec::new();
    is_seen.fill(false);
    for &node in order.iter().rev() {
        let mut members = Vec::new();
        visit(node, &backward, &mut is_seen, &mut members);
        if members.len() > 1 {
            members.sort_unstable();
            out.push(members);
        }
    }
    out.sort_by_key(|members| (usize::MAX - members.len(), members[0]));
    out
}

/// Visits every node that is reachable and unseen, depth first; appends them as they finish.
fn visit(start: usize, next: &[Vec<usize>], is_seen: &mut [bool], finished: &mut Vec<usize>) {
    if std::mem::replace(&mut is_seen[start], true) {
        return;
    }
    let mut open = vec![(start, 0)];
    while let Some((node, at)) = open.last_mut() {
        if let Some(&target) = next[*node].get(*at) {
            *at += 1;
            if !std::mem::replace(&mut is_seen[target], true) {
                open.push((target, 0));
            }
        } else {
            finished.push(*node);
            open.pop();
        }
    }
}

/// Returns edges within `members` without which no circle is left: those that point backwards in
/// an order that keeps their weight small.
pub(crate) fn cuts(
    members: &[usize],
    edges: &BTreeSet<Edge>,
    weight: impl Fn(&Edge) -> usize,
) -> Vec<Edge> {
    let inside: Vec<(Edge, usize)> = edges
        .iter()
        .filter(|(from, to)| members.contains(from) && members.contains(to))
        .map(|edge| (*edge, weight(edge)))
        .collect();
    let mut order = members.to_vec();
    while improve(&mut order, &inside) {}
    let place = |node: usize| order.iter().position(|&other| other == node);
    inside
        .iter()
        .map(|(edge, _)| *edge)
        .filter(|(from, to)| place(*from) > place(*to))
        .collect()
}

/// Moves each node to where the weight of backward edges is smallest; whether anything moved.
fn improve(order: &mut Vec<usize>, edges: &[(Edge, usize)]) -> bool {
    let mut has_moved = false;
    for node in order.clone() {
        let Some(from) = order.iter().position(|&other| other == node) else {
            continue;
        };
        let rest: Vec<usize> = order
            .iter()
            .copied()
            .filter(|&other| other != node)
            .collect();
        let sum = |edge: Edge| -> isize {
            let found = edges.iter().filter(|(other, _)| *other == edge);
            found.map(|(_, weight)| *weight as isize).sum()
        };
        // At the front, every edge into the node points backwards.
        let mut cost: isize = rest.iter().map(|&other| sum((other, node))).sum();
        let mut costs = vec![cost];
        for &other in &rest {
            cost += sum((node, other)) - sum((other, node));
            costs.push(cost);
        }
        let best = (0..costs.len()).min_by_key(|&at| costs[at]).unwrap_or(from);
        if costs[best] < costs[from] {
            *order = rest;
            order.insert(best, node);
            has_moved = true;
        }
    }
    has_moved
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn components_leave_out_single_nodes() {
        let edges = BTreeSet::from([(0, 1), (1, 2), (2, 0), (2, 3), (4, 5), (5, 4), (3, 4)]);
        assert_eq!(components(6, &edges), [vec![0, 1, 2], vec![4, 5]]);
    }

    #[test]
    fn cuts_are_the_cheap_backward_edges() {
        let edges = BTreeSet::from([(0, 1), (1, 2), (2, 0), (0, 2)]);
        let weight = |edge: &Edge| if *edge == (2, 0) { 1 } else { 5 };
        assert_eq!(cuts(&[0, 1, 2], &edges, weight), [(2, 0)]);
    }
}
