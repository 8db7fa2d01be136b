//! How rarely functions are called: probes that nobody has run for a while have left the caches,
//! because the program has used them for something else meanwhile.
//!
//! ```text
//!   between   processor time of all threads while the function was not off / its calls
//!   part      of what a call costs more that finds nothing in any cache (`first`):
//!             none up to the time of `often`, half from the time of `rarely` on, in between along the logarithm
//! ```
//!
//! Under a budget nearly all calls that are left are such calls: functions that are called often are off. Half, because
//! what `first` is measured after is a program that leaves nothing at all.

use thalweg_model::{FuncId, Profile};

use crate::tunables::TUNABLES;

/// By the number of the function. The default knows of no time, and of none that is called rarely.
#[derive(Default)]
pub struct Rarity {
    parts: Vec<f64>,
}

impl Rarity {
    pub fn from_profile(profile: &Profile) -> Rarity {
        let mut time = 0.0;
        let mut calls = vec![0.0; profile.functions.len()];
        for (_, thread) in crate::threads(profile) {
            for node in &thread.nodes {
                time += node.self_ns as f64;
                calls[node.function.index()] += node.calls as f64;
            }
        }
        let whole = (profile.meta.duration_ns as f64).max(1.0);
        let mut on = vec![1.0; calls.len()];
        for one in &profile.switched {
            if let Some(on) = on.get_mut(one.function.index()) {
                *on = (1.0 - one.off_ns as f64 / whole).max(0.0);
            }
        }
        let part = |(calls, on): (f64, f64)| match calls > 0.0 {
            true => part(time * on / calls),
            false => 0.0,
        };
        Rarity {
            parts: calls.into_iter().zip(on).map(part).collect(),
        }
    }

    /// What part of a call's way through no cache each of its calls goes.
    pub fn part(&self, function: FuncId) -> f64 {
        let part = self.parts.get(function.index());
        part.copied().unwrap_or(0.0)
    }
}

/// `between`: nanoseconds from one of a function's calls to the next.
fn part(between: f64) -> f64 {
    let (often, rarely) = (TUNABLES.often_ns, TUNABLES.rarely_ns);
    let part = (between.max(often) / often).log2() / (rarely / often).log2();
    part.min(1.0) / 2.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{self, A, B, MAIN};
    use thalweg_model::Switched;

    #[test]
    fn what_is_called_seldom_while_it_is_on_is_rare() {
        let mut profile = fixture::chain(&[(MAIN, 900_000), (A, 50_000), (B, 50_000)]);
        profile.meta.duration_ns = 2_000_000;
        let nodes = &mut profile.processes[0].threads[0].nodes;
        (nodes[1].calls, nodes[2].calls) = (100, 1_000);
        let rarity = Rarity::from_profile(&profile);
        assert_eq!(rarity.part(MAIN), 0.5, "once in a millisecond");
        let (a, b) = (rarity.part(A), rarity.part(B));
        assert!(0.5 > a && a > b && b > 0.0, "10 us, 1 us: {a}, {b}");
        // All of its calls were in the first tenth of the time.
        profile.switched = vec![Switched {
            function: B,
            off_ns: 1_800_000,
            ..Switched::default()
        }];
        assert_eq!(Rarity::from_profile(&profile).part(B), 0.0);
        assert_eq!(Rarity::default().part(A), 0.0);
    }
}
