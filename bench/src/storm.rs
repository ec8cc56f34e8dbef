//! Many `outlive run -- true` at once in one registry: all must succeed, and nobody should wait for long.

use std::path::Path;
use std::process::{Command, Stdio};

use crate::rounds::Spread;
use crate::scratch::{Outcome, outlive};
use crate::time::measure;

const AT_ONCE: usize = 256;
const ROUNDS: usize = 3;

/// Measures, and answers whether all of them succeeded.
pub fn main(dir: &Path) -> Outcome<bool> {
    let (outlive, url) = (outlive()?, format!("sqlite:{}", dir.join("registry").display()));
    let call = || {
        let mut command = Command::new(&outlive);
        command.args(["--registry", &url, "run", "--", "true"]).stdin(Stdio::null()).stdout(Stdio::null());
        measure(|| match command.status()? {
            status if status.success() => Ok(()),
            status => Err(format!("`outlive run -- true` ended with {status}").into()),
        })
        .map_err(|error| error.to_string())
    };
    call()?;
    let (mut took, mut failed, mut rates) = (Vec::new(), 0, Vec::new());
    for _ in 0..ROUNDS {
        let whole = measure(|| {
            let ended: Vec<_> = std::thread::scope(|scope| {
                let calls: Vec<_> = (0..AT_ONCE).map(|_| scope.spawn(call)).collect();
                calls.into_iter().map(|call| call.join().unwrap_or_else(|_| Err("a thread panicked".into()))).collect()
            });
            for ended in ended {
                match ended {
                    Ok(one) => took.push(one.as_secs_f64() * 1_000.0),
                    Err(error) => {
                        failed += 1;
                        println!("  {error}");
                    }
                }
            }
            Ok(())
        })?;
        rates.push(AT_ONCE as f64 / whole.as_secs_f64());
    }
    took.sort_by(f64::total_cmp);
    let at = |part: f64| took.get((took.len() as f64 * part) as usize).copied().unwrap_or(f64::NAN);
    println!("{AT_ONCE} at once, {ROUNDS} times: {failed} failed");
    println!("  each, ms: p50 {:.0}, p99 {:.0}, longest {:.0}", at(0.5), at(0.99), took.last().unwrap_or(&f64::NAN));
    println!("  runs/s: {}", Spread::of(&rates));
    Ok(failed == 0)
}
