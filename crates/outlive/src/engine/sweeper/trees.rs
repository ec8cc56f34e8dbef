//! Trees of runs that are in each other's way: nothing is deleted of a tree that is also another run's, or in one, or around
//! one. Records are written by many, and two of them may name one place by different words.

use std::collections::BTreeMap;

use crate::model::id::RunId;

/// The runs whose trees are in the way of another's, each with one that it meets. A tree is named in full.
pub(super) fn clashes(mut trees: Vec<(String, RunId)>) -> BTreeMap<RunId, RunId> {
    for (tree, _) in &mut trees {
        tree.push('/');
    }
    trees.sort();
    let mut met = BTreeMap::new();
    // In this order whatever is in a tree comes right behind it.
    let mut around: Vec<&(String, RunId)> = Vec::new();
    for one in &trees {
        while around.last().is_some_and(|outer| !one.0.starts_with(&outer.0)) {
            around.pop();
        }
        if let Some(outer) = around.last() {
            met.insert(one.1, outer.1);
            met.entry(outer.1).or_insert(one.1);
        }
        around.push(one);
    }
    met
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trees_meet_that_are_the_same_or_in_one_another() {
        let id = |number: u8| RunId::foreign(crate::model::time::Timestamp::from_micros(0), &[number]);
        let met = |trees: &[&str]| -> Vec<usize> {
            let named = trees.iter().zip(0..).map(|(tree, number)| ((*tree).to_owned(), id(number))).collect();
            let met = clashes(named);
            (0..trees.len()).filter(|index| met.contains_key(&id(*index as u8))).collect()
        };
        assert_eq!(met(&["b/p/shards/run_id=a", "b/p/shards/run_id=b"]), [0_usize; 0]);
        assert_eq!(met(&["b/p/shards/run_id=a", "b/p/shards/run_id=ab", "b/p/shards/run_id=a!"]), [0_usize; 0]);
        assert_eq!(met(&["b/p/shards/run_id=a", "b/q", "b/p/shards/run_id=a"]), [0, 2]);
        assert_eq!(met(&["x/run_id=a", "x/run_id=a/shards/run_id=c", "x/run_id=a/shards/run_id=b", "y"]), [0, 1, 2]);
    }
}
