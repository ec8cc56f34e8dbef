//! Rounds: variants measured side by side, compared within each round.
//!
//! A machine is faster at one moment than at another, so two numbers measured apart say little about each other. Each
//! round measures every variant in small slices that alternate; only the ratios within a round are compared.

use std::fmt;
use std::time::Duration;

use crate::scratch::Outcome;

/// One way to do the work: does a slice of it and tells how long that took.
pub struct Variant<'a> {
    name: &'static str,
    slice: Box<dyn FnMut() -> Outcome<Duration> + 'a>,
}

impl<'a> Variant<'a> {
    /// The way called `name`.
    pub fn new(name: &'static str, slice: impl FnMut() -> Outcome<Duration> + 'a) -> Self {
        Self { name, slice: Box::new(slice) }
    }
}

/// How much is measured.
#[derive(Debug, Clone, Copy)]
pub struct Plan {
    /// How many rounds count. One more is made first and forgotten.
    pub rounds: usize,
    /// How many slices of each variant a round has.
    pub slices: usize,
    /// How many units of work a slice has.
    pub units: usize,
}

/// What was measured: for each variant, the seconds per unit of work in each round.
pub struct Measured {
    names: Vec<&'static str>,
    seconds: Vec<Vec<f64>>,
}

/// Measures the variants side by side.
pub fn interleave(plan: Plan, mut variants: Vec<Variant<'_>>) -> Outcome<Measured> {
    let count = variants.len();
    let mut seconds = vec![Vec::new(); count];
    for round in 0..=plan.rounds {
        let mut spent = vec![Duration::ZERO; count];
        for slice in 0..plan.slices {
            for step in 0..count {
                // Nobody always follows the same neighbour's traces in the caches and the journal.
                let index = (step + slice) % count;
                spent[index] += (variants[index].slice)()?;
            }
        }
        if round > 0 {
            let units = (plan.slices * plan.units) as f64;
            seconds.iter_mut().zip(spent).for_each(|(all, spent)| all.push(spent.as_secs_f64() / units));
        }
    }
    Ok(Measured { names: variants.iter().map(|variant| variant.name).collect(), seconds })
}

impl Measured {
    /// How often a second each variant does a unit of work. Context, not a result.
    pub fn print_rates(&self, unit: &str) {
        for (name, seconds) in self.names.iter().zip(&self.seconds) {
            let rates: Vec<f64> = seconds.iter().map(|seconds| 1.0 / seconds).collect();
            println!("  {name:<28} {:>9.0} {unit}/s", Spread::of(&rates).median);
        }
    }

    /// The seconds per unit of two variants, round by round.
    pub fn pairs(&self, one: usize, other: usize) -> impl Iterator<Item = (f64, f64)> {
        self.seconds[one].iter().copied().zip(self.seconds[other].iter().copied())
    }

    /// The rate of one variant over that of another, round by round.
    pub fn ratio(&self, of: usize, to: usize) -> Spread {
        let ratios: Vec<f64> = self.pairs(to, of).map(|(to, of)| to / of).collect();
        Spread::of(&ratios)
    }

    /// Prints a ratio of rates and holds it to `bar`, if there is one. Answers whether that is met.
    pub fn print_ratio(&self, of: usize, to: usize, bar: Option<std::ops::RangeInclusive<f64>>) -> bool {
        let ratio = self.ratio(of, to);
        let met = bar.as_ref().is_none_or(|bar| bar.contains(&ratio.median));
        let verdict = match &bar {
            None => String::new(),
            Some(bar) => format!("  bar {}: {}", show_bar(bar), if met { "met" } else { "MISSED" }),
        };
        println!("  {} / {} = {ratio}{verdict}", self.names[of], self.names[to]);
        met
    }
}

fn show_bar(bar: &std::ops::RangeInclusive<f64>) -> String {
    if bar.end().is_infinite() { format!(">= {}", bar.start()) } else { format!("{}..{}", bar.start(), bar.end()) }
}

/// The middle and the extremes of what several rounds measured.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Spread {
    /// Half of the rounds measured less.
    pub median: f64,
    /// The least.
    pub min: f64,
    /// The most.
    pub max: f64,
    /// How many rounds.
    pub rounds: usize,
}

impl Spread {
    /// The spread of these values; of none, nothing but NaN.
    pub fn of(values: &[f64]) -> Self {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        let at = |index: usize| sorted.get(index).copied().unwrap_or(f64::NAN);
        let half = sorted.len() / 2;
        let median = if sorted.len() % 2 == 1 { at(half) } else { f64::midpoint(at(half.wrapping_sub(1)), at(half)) };
        Self { median, min: at(0), max: at(sorted.len().wrapping_sub(1)), rounds: sorted.len() }
    }
}

impl fmt::Display for Spread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.3} ({:.3}..{:.3}, {} rounds)", self.median, self.min, self.max, self.rounds)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spread_has_its_middle_and_its_extremes() {
        assert_eq!(Spread::of(&[3.0, 1.0, 2.0]), Spread { median: 2.0, min: 1.0, max: 3.0, rounds: 3 });
        assert_eq!(Spread::of(&[4.0, 1.0]).median, 2.5);
        assert!(Spread::of(&[]).median.is_nan());
    }

    #[test]
    fn a_ratio_is_of_rates_and_within_a_round() {
        // The machine slows down between the rounds; the second way stays half as fast.
        let clock = std::cell::Cell::new(0);
        let slice = |factor: u64| {
            clock.set(clock.get() + 1);
            Ok(Duration::from_millis(factor * (1 + clock.get() / 4)))
        };
        let variants = vec![Variant::new("fast", || slice(10)), Variant::new("slow", || slice(20))];
        let measured = interleave(Plan { rounds: 3, slices: 2, units: 1 }, variants).unwrap();
        assert_eq!(measured.ratio(1, 0).rounds, 3);
        assert!((measured.ratio(1, 0).median - 0.5).abs() < 0.1, "{}", measured.ratio(1, 0));
        assert!(!measured.print_ratio(1, 0, Some(0.9..=f64::INFINITY)));
        assert!(measured.print_ratio(0, 1, Some(0.9..=f64::INFINITY)));
    }
}
