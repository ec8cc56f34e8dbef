//! Fairness: which shares the next claims go to, among runs of one priority.
//!
//! Every share has a pass. The share with the lowest pass has the next turn, and a turn raises its pass by a step that is
//! the shorter the heavier the share is. A share that comes up, or comes back, begins at the pass of the last turn: it
//! neither waits for those before it nor makes up for the time in which it wanted nothing. So with n shares of equal
//! weight a run at the head of its share starts within n turns, however many runs the others have.
//!
//! Each worker keeps its own passes. What each of them divides fairly is divided fairly by all of them together, and no
//! worker waits for another to learn whose turn it is.

use std::collections::{BTreeMap, BTreeSet};

use crate::model::run::QueueHead;

/// By how much a turn raises the pass of a share of weight 1: divisible by many weights.
const STEP: u64 = 5_040 << 8;
/// The most shares whose passes are remembered.
const REMEMBERED: usize = 100_000;

/// The passes of shares.
#[derive(Debug, Default)]
pub struct Turns {
    passes: BTreeMap<String, u64>,
    /// The pass of the last turn.
    last: u64,
}

/// Turns of one share.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Turn {
    /// The tenant of the share; empty for runs without one.
    pub tenant: String,
    /// The priority of the runs that it is for.
    pub priority: i32,
    /// How many runs it may claim.
    pub runs: usize,
    step: u64,
}

impl Turns {
    /// Divides `limit` claims among the shares that have runs of the best priority. Shares of which it is known that they
    /// have nothing to claim at a priority are `passed` over.
    pub fn divide(&mut self, heads: &[QueueHead], passed: &BTreeSet<(String, i32)>, limit: usize) -> Vec<Turn> {
        let is_open = |head: &&QueueHead| !passed.contains(&(head.tenant().to_owned(), head.priority));
        let Some(best) = heads.iter().filter(is_open).map(|head| head.priority).min() else { return Vec::new() };
        let mut turns: Vec<Turn> = Vec::new();
        for head in heads.iter().filter(is_open).filter(|head| head.priority == best) {
            let step = STEP / u64::from(head.share.as_ref().map_or(1, |share| share.weight.max(1)));
            match turns.iter_mut().find(|turn| turn.tenant == head.tenant()) {
                // Runs of one share that disagree about its weight: the heaviest counts.
                Some(turn) => turn.step = turn.step.min(step),
                None => turns.push(Turn { tenant: head.tenant().into(), priority: best, runs: 0, step }),
            }
        }
        self.forget();
        let mut passes: Vec<u64> = turns.iter().map(|turn| self.pass_of(&turn.tenant)).collect();
        for _ in 0..limit {
            let next = (0..turns.len()).min_by_key(|place| (passes[*place], &turns[*place].tenant));
            let Some(next) = next else { break };
            self.last = self.last.max(passes[next]);
            passes[next] += turns[next].step;
            turns[next].runs += 1;
        }
        for (turn, pass) in turns.iter().zip(passes) {
            self.passes.insert(turn.tenant.clone(), pass);
        }
        turns.retain(|turn| turn.runs > 0);
        turns
    }

    /// Takes back what a share could not claim. One that could claim nothing is behind all others: its runs wait for keys,
    /// or are not for this worker, and a look at them costs.
    pub fn unused(&mut self, turn: &Turn, claimed: usize) {
        let highest = self.passes.values().copied().max().unwrap_or(self.last);
        let Some(pass) = self.passes.get_mut(&turn.tenant) else { return };
        let unused = u64::try_from(turn.runs.saturating_sub(claimed)).unwrap_or(u64::MAX);
        *pass = if claimed == 0 { highest } else { pass.saturating_sub(turn.step.saturating_mul(unused)) };
    }

    fn pass_of(&self, tenant: &str) -> u64 {
        self.passes.get(tenant).map_or(self.last, |pass| self.last.max(*pass))
    }

    /// Forgets shares that would begin at the pass of the last turn anyway.
    fn forget(&mut self) {
        let last = self.last;
        self.passes.retain(|_, pass| *pass > last);
        if self.passes.len() > REMEMBERED {
            self.passes.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::run::Share;
    use crate::model::time::Timestamp;

    fn head(share: &str, priority: i32) -> QueueHead {
        let share = (!share.is_empty()).then(|| share.parse::<Share>().unwrap());
        QueueHead { kind: "job".into(), share, priority, created_at: Timestamp::default() }
    }

    /// How many of so many claims, made one by one, each of these shares gets.
    fn claims(turns: &mut Turns, heads: &[QueueHead], count: usize) -> BTreeMap<String, usize> {
        let mut all = BTreeMap::new();
        for _ in 0..count {
            for turn in turns.divide(heads, &BTreeSet::new(), 1) {
                *all.entry(turn.tenant).or_default() += turn.runs;
            }
        }
        all
    }

    fn of<const N: usize>(counts: [(&str, usize); N]) -> BTreeMap<String, usize> {
        counts.into_iter().map(|(tenant, runs)| (tenant.to_owned(), runs)).collect()
    }

    #[test]
    fn weights_divide_turns_exactly() {
        let mut turns = Turns::default();
        let heads = [head("a:3", 0), head("b", 0), head("", 0)];
        assert_eq!(claims(&mut turns, &heads, 500), of([("a", 300), ("b", 100), ("", 100)]));
        let all = turns.divide(&heads, &BTreeSet::new(), 50);
        let all: BTreeMap<String, usize> = all.into_iter().map(|turn| (turn.tenant, turn.runs)).collect();
        assert_eq!(all, of([("a", 30), ("b", 10), ("", 10)]), "many at once are divided as one by one");
    }

    #[test]
    fn a_share_that_comes_up_is_next_and_makes_up_for_nothing() {
        let mut turns = Turns::default();
        claims(&mut turns, &[head("a", 0)], 1_000_000);
        let heads = [head("a", 0), head("b", 0)];
        assert_eq!(claims(&mut turns, &heads, 2), of([("a", 1), ("b", 1)]));
        assert_eq!(claims(&mut turns, &heads, 100), of([("a", 50), ("b", 50)]));
        // Its absence earns it nothing either.
        claims(&mut turns, &[head("a", 0)], 1_000);
        assert_eq!(claims(&mut turns, &heads, 100), of([("a", 50), ("b", 50)]));
    }

    #[test]
    fn a_better_priority_comes_first_whatever_the_share() {
        let mut turns = Turns::default();
        let heads = [head("a", 5), head("b", 0), head("b", 5)];
        assert_eq!(claims(&mut turns, &heads, 10), of([("b", 10)]));
        let passed = [("b".to_owned(), 0)].into();
        assert_eq!(turns.divide(&heads, &passed, 1)[0].priority, 5);
    }

    #[test]
    fn a_share_without_anything_to_claim_is_behind_the_others() {
        let mut turns = Turns::default();
        let heads = [head("a", 0), head("b", 0), head("c", 0)];
        let turn = turns.divide(&heads, &BTreeSet::new(), 1).remove(0);
        turns.unused(&turn, 0);
        assert_eq!(turn.tenant, "a");
        assert_eq!(claims(&mut turns, &heads, 2), of([("b", 1), ("c", 1)]));
    }
}
