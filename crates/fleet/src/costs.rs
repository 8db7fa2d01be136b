//! What the probes cost where a profile was made, as one text: with it a profile that is made of the store's rows again says
//! how far off its times may be.

use thalweg_model::{KINDS_OF_WORK, ProbeCosts};

pub fn to_text(costs: &ProbeCosts) -> String {
    let figures: Vec<String> = costs.figures().iter().map(f64::to_string).collect();
    figures.join(" ")
}

/// `None`: not ours.
pub fn from_text(text: &str) -> Option<ProbeCosts> {
    let figures: Result<Vec<f64>, _> = text.split(' ').map(str::parse).collect();
    let figures = figures
        .ok()
        .filter(|all| all.iter().all(|one| one.is_finite()))?;
    let (
        &[
            inner_ns,
            outer_ns,
            joint_ns,
            error,
            spread,
            first_ns,
            near,
            near_ns,
            far,
            far_ns,
            sample_ns,
            counted_ns,
            leaf_ns,
            counted_error,
        ],
        rest,
    ) = figures.split_first_chunk()?;
    let pairs: Vec<(f64, f64)> = rest
        .chunks_exact(2)
        .map(|pair| (pair[0], pair[1]))
        .collect();
    let (timed, counted) = pairs.split_at_checked(KINDS_OF_WORK)?;
    Some(ProbeCosts {
        inner_ns,
        outer_ns,
        joint_ns,
        error,
        spread,
        first_ns,
        far: [(near, near_ns), (far, far_ns)],
        sample_ns,
        counted_ns,
        leaf_ns,
        counted_error,
        hidden: [timed.try_into().ok()?, counted.try_into().ok()?],
        taken_out: true,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn costs_survive_as_text() {
        let costs = ProbeCosts {
            inner_ns: 7.25,
            outer_ns: 1.0 / 3.0,
            far: [(100.0, 2.0), (1e6, 9.5)],
            hidden: [[(1.0, 2.0); KINDS_OF_WORK], [(3.0, 4.5); KINDS_OF_WORK]],
            taken_out: true,
            ..ProbeCosts::default()
        };
        assert_eq!(from_text(&to_text(&costs)), Some(costs));
        for bad in ["", "1 2 3", "nan", &"1 ".repeat(40)] {
            assert_eq!(from_text(bad), None);
        }
    }
}
