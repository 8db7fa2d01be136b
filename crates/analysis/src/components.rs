//! Strongly connected components: the groups within which everything reaches everything.
//!
//! Tarjan's algorithm with a stack of its own, so that no chain of calls is too long for ours.

/// `edges[n]` lists where node n leads. Members of a group are in ascending order.
pub fn components(edges: &[Vec<u32>]) -> Vec<Vec<u32>> {
    const UNSEEN: u32 = u32::MAX;
    let mut order = vec![UNSEEN; edges.len()];
    let mut lowest = vec![0u32; edges.len()];
    let mut open = vec![false; edges.len()];
    let mut path: Vec<u32> = Vec::new();
    let mut groups = Vec::new();
    let mut next = 0;
    // A node and how many of its edges were followed.
    let mut pending: Vec<(u32, usize)> = Vec::new();

    for start in 0..edges.len() as u32 {
        if order[start as usize] != UNSEEN {
            continue;
        }
        pending.push((start, 0));
        while let Some((node, followed)) = pending.pop() {
            let at = node as usize;
            if followed == 0 {
                (order[at], lowest[at]) = (next, next);
                next += 1;
                open[at] = true;
                path.push(node);
            }
            if let Some(&to) = edges[at].get(followed) {
                pending.push((node, followed + 1));
                if order[to as usize] == UNSEEN {
                    pending.push((to, 0));
                } else if open[to as usize] {
                    lowest[at] = lowest[at].min(order[to as usize]);
                }
                continue;
            }
            if let Some(&(above, _)) = pending.last() {
                lowest[above as usize] = lowest[above as usize].min(lowest[at]);
            }
            if lowest[at] == order[at] {
                let first = path.iter().rposition(|&member| member == node);
                let mut group = path.split_off(first.expect("the node is on the path"));
                group
                    .iter()
                    .for_each(|&member| open[member as usize] = false);
                group.sort_unstable();
                groups.push(group);
            }
        }
    }
    groups
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rings_are_found_and_what_hangs_on_them_is_not_in_them() {
        //  0 -> 1 <-> 2 -> 3 -> 4 -> 3, 5 -> 5
        let edges = [vec![1], vec![2], vec![1, 3], vec![4], vec![3], vec![5]];
        let mut groups = components(&edges);
        groups.sort();
        assert_eq!(groups, [vec![0], vec![1, 2], vec![3, 4], vec![5]]);
    }

    #[test]
    fn a_ring_of_a_million_does_not_overflow_the_stack() {
        let count = 1_000_000;
        let edges: Vec<Vec<u32>> = (0..count).map(|node| vec![(node + 1) % count]).collect();
        assert_eq!(components(&edges).len(), 1);
    }
}
