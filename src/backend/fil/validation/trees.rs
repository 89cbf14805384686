//! The structure of one tree: from its root every node is reached once, and every path ends at a leaf.

/// The children of a node; `None` for a leaf.
pub type Children = Option<(i64, i64)>;

/// The length of the longest path from the root to a leaf, in steps. `children` are those of a node that exists.
pub fn depth_of(
    node_count: usize,
    mut children: impl FnMut(usize) -> Result<Children, String>,
) -> Result<usize, String> {
    if node_count == 0 {
        return Err("it has no nodes".to_owned());
    }
    let mut reached = vec![false; node_count];
    let mut pending = vec![(0usize, 0usize)];
    let mut deepest = 0;
    while let Some((node, depth)) = pending.pop() {
        match reached.get_mut(node) {
            None => return Err(format!("there is no node {node}")),
            Some(true) => return Err(format!("node {node} is reached twice")),
            Some(seen) => *seen = true,
        }
        deepest = deepest.max(depth);
        let Some((left, right)) = children(node)? else { continue };
        for child in [left, right] {
            let child = usize::try_from(child).map_err(|_| format!("node {node} has the child {child}"))?;
            pending.push((child, depth + 1));
        }
    }
    Ok(deepest)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn depth(nodes: &[Children]) -> Result<usize, String> {
        depth_of(nodes.len(), |node| Ok(nodes[node]))
    }

    #[test]
    fn depths_are_counted_in_steps() {
        assert_eq!(depth(&[None]), Ok(0));
        assert_eq!(depth(&[Some((1, 2)), None, Some((3, 4)), None, None]), Ok(2));
        // A node that nothing leads to is never used.
        assert_eq!(depth(&[Some((1, 2)), None, None, Some((0, 0))]), Ok(1));
    }

    #[test]
    fn circles_shared_nodes_and_missing_ones_are_found() {
        assert_eq!(depth(&[]), Err("it has no nodes".to_owned()));
        assert_eq!(depth(&[Some((1, 0)), None]), Err("node 0 is reached twice".to_owned()));
        assert_eq!(depth(&[Some((1, 1)), None]), Err("node 1 is reached twice".to_owned()));
        assert_eq!(depth(&[Some((1, 2)), Some((2, 3)), None, None]), Err("node 2 is reached twice".to_owned()));
        assert_eq!(depth(&[Some((1, 2)), None]), Err("there is no node 2".to_owned()));
        assert_eq!(depth(&[Some((1, -2)), None]), Err("node 0 has the child -2".to_owned()));
    }
}
