//! Whether two groups of measurements differ: Welch's test, and Holm's correction for many tests at once.

/// Sums of one group: of how many values, of them, of their squares.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Group {
    pub count: f64,
    pub sum: f64,
    pub squares: f64,
}

impl Group {
    pub fn add(&mut self, value: f64) {
        self.count += 1.0;
        self.sum += value;
        self.squares += value * value;
    }

    /// The same with values that are 0, until there are `count`.
    pub fn filled(self, count: f64) -> Group {
        Group { count, ..self }
    }

    pub fn mean(&self) -> f64 {
        if self.count > 0.0 {
            self.sum / self.count
        } else {
            0.0
        }
    }

    /// Of the mean: its square is the variance of a group of as many.
    fn variance_of_mean(&self) -> Option<f64> {
        let deviations = (self.squares - self.count * self.mean().powi(2)).max(0.0);
        (self.count > 1.0).then(|| deviations / (self.count - 1.0) / self.count)
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Difference {
    /// Of the difference of the means.
    pub standard_error: f64,
    pub freedom: f64,
}

impl Difference {
    /// `None`: a group of one tells nothing of how much there is between its like.
    pub fn between(one: &Group, other: &Group) -> Option<Difference> {
        let (a, b) = (one.variance_of_mean()?, other.variance_of_mean()?);
        let variance = a + b;
        let parts = a * a / (one.count - 1.0) + b * b / (other.count - 1.0);
        let freedom = if parts > 0.0 {
            variance * variance / parts
        } else {
            one.count + other.count - 2.0
        };
        Some(Difference {
            standard_error: variance.sqrt(),
            freedom,
        })
    }

    /// How often chance alone would make a difference as large as this.
    pub fn probability(&self, difference: f64) -> f64 {
        if self.standard_error <= 0.0 {
            return if difference == 0.0 { 1.0 } else { 0.0 };
        }
        let t = difference / self.standard_error;
        incomplete_beta(
            self.freedom / (self.freedom + t * t),
            self.freedom / 2.0,
            0.5,
        )
    }

    /// What chance stays within 19 times of 20.
    pub fn noise(&self) -> f64 {
        let (mut low, mut high) = (0.0, 1e3 * self.standard_error);
        for _ in 0..60 {
            let middle = (low + high) / 2.0;
            if self.probability(middle) > 0.05 {
                low = middle;
            } else {
                high = middle;
            }
        }
        high
    }
}

/// Which of many tests hold all together 19 times of 20 (Holm).
pub fn significant(probabilities: &[f64]) -> Vec<bool> {
    let mut order: Vec<usize> = (0..probabilities.len()).collect();
    order.sort_by(|&a, &b| probabilities[a].total_cmp(&probabilities[b]));
    let mut holds = vec![false; probabilities.len()];
    for (passed, &index) in order.iter().enumerate() {
        if probabilities[index] * (probabilities.len() - passed) as f64 > 0.05 {
            break;
        }
        holds[index] = true;
    }
    holds
}

/// I_x(a, b), by its continued fraction (Lentz).
fn incomplete_beta(x: f64, a: f64, b: f64) -> f64 {
    if x <= 0.0 || x >= 1.0 {
        return x.clamp(0.0, 1.0);
    }
    let front =
        (ln_gamma(a + b) - ln_gamma(a) - ln_gamma(b) + a * x.ln() + b * (1.0 - x).ln()).exp();
    if x < (a + 1.0) / (a + b + 2.0) {
        front * fraction(x, a, b) / a
    } else {
        1.0 - front * fraction(1.0 - x, b, a) / b
    }
}

fn fraction(x: f64, a: f64, b: f64) -> f64 {
    const TINY: f64 = 1e-300;
    let kept = |value: f64| if value.abs() < TINY { TINY } else { value };
    let mut c = 1.0;
    let mut d = 1.0 / kept(1.0 - (a + b) * x / (a + 1.0));
    let mut result = d;
    for m in 1..300 {
        let m = f64::from(m);
        let even = m * (b - m) * x / ((a + 2.0 * m - 1.0) * (a + 2.0 * m));
        let odd = -(a + m) * (a + b + m) * x / ((a + 2.0 * m) * (a + 2.0 * m + 1.0));
        for step in [even, odd] {
            d = 1.0 / kept(1.0 + step * d);
            c = kept(1.0 + step / c);
            result *= c * d;
        }
        if (c * d - 1.0).abs() < 1e-14 {
            break;
        }
    }
    result
}

/// Lanczos.
fn ln_gamma(x: f64) -> f64 {
    const COEFFICIENTS: [f64; 6] = [
        76.18009172947146,
        -86.50532032941677,
        24.01409824083091,
        -1.231739572450155,
        0.1208650973866179e-2,
        -0.5395239384953e-5,
    ];
    let base = x + 5.5;
    let mut sum = 1.000000000190015;
    for (number, coefficient) in (1..).zip(COEFFICIENTS) {
        sum += coefficient / (x + f64::from(number));
    }
    (x + 0.5) * base.ln() - base + (2.5066282746310005 * sum / x).ln()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_of_students_t_are_those_of_the_tables() {
        for (freedom, t) in [
            (1.0, 12.706),
            (2.0, 4.303),
            (5.0, 2.571),
            (10.0, 2.228),
            (30.0, 2.042),
            (1e6, 1.960),
        ] {
            let difference = Difference {
                standard_error: 1.0,
                freedom,
            };
            assert!(
                (difference.noise() - t).abs() < 2e-3,
                "{freedom}: {}",
                difference.noise()
            );
        }
        let one = Difference {
            standard_error: 1.0,
            freedom: 4.0,
        };
        assert!((one.probability(8.610) - 0.001).abs() < 1e-5);
    }

    #[test]
    fn groups_that_differ_by_chance_do_not_differ() {
        let group = |values: &[f64]| {
            let mut group = Group::default();
            values.iter().for_each(|&value| group.add(value));
            group
        };
        let (a, b) = (group(&[1.0, 1.2, 0.9, 1.1]), group(&[1.1, 1.0, 1.15, 0.95]));
        let same = Difference::between(&a, &b).unwrap();
        assert!(same.probability(b.mean() - a.mean()) > 0.5);
        let c = group(&[2.1, 2.0, 2.15, 1.95]);
        let other = Difference::between(&a, &c).unwrap();
        assert!(other.probability(c.mean() - a.mean()) < 0.001);
        assert!(Difference::between(&group(&[1.0]), &a).is_none());
    }

    #[test]
    fn of_a_hundred_tests_five_small_ones_are_chance() {
        let mut tests = vec![0.5; 95];
        tests.extend([0.01, 0.02, 0.03, 0.04, 0.045]);
        assert!(!significant(&tests).contains(&true));
        tests[0] = 1e-5;
        assert_eq!(
            significant(&tests).iter().filter(|holds| **holds).count(),
            1
        );
    }
}
