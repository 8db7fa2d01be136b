//! How wide an arc is drawn for its share of the time.
//!
//! ```text
//! none      w = 1
//! linear    w = 10 t
//! log       w = min(9, max(1, log2(1000 t + 0.0001)))
//! adaptive  w = 1 + 9 ln(t / least) / ln(1 / least)      least: the smallest share on the picture
//! table     w of the first row whose bound t does not exceed
//! ```
//!
//! t is the time of the callee and all below it in calls over the arc, as a share of the whole or
//! of the virtual root. Widths are in units; the picture gives the unit its size.

use std::str::FromStr;

#[derive(Clone, Debug, Default, PartialEq)]
pub enum Width {
    None,
    #[default]
    Linear,
    Logarithmic,
    Adaptive,
    Table(Vec<(f64, f64)>),
}

/// The width of the widest arc in units, of all rules but tables.
const MAX_UNITS: f64 = 10.0;

impl Width {
    /// Prepared for a picture whose smallest share is `least`.
    pub fn units(&self, share: f64, least: f64) -> f64 {
        let share = share.clamp(0.0, 1.0);
        match self {
            Width::None => 1.0,
            Width::Linear => MAX_UNITS * share,
            Width::Logarithmic => (1000.0 * share + 0.0001).log2().clamp(1.0, 9.0),
            Width::Adaptive => {
                let least = least.clamp(1e-9, 0.999);
                let scale = (MAX_UNITS - 1.0) / -least.ln();
                1.0 + scale * (share.max(least) / least).ln()
            }
            Width::Table(rows) => {
                let row = rows.iter().find(|(bound, _)| share <= *bound);
                row.or(rows.last()).map_or(1.0, |(_, width)| *width)
            }
        }
    }
}

impl FromStr for Width {
    type Err = String;

    /// `none`, `linear`, `log`, `adaptive`, or a table: `1%:1,10%:3,100%:8`.
    fn from_str(text: &str) -> Result<Width, String> {
        match text {
            "none" => Ok(Width::None),
            "linear" => Ok(Width::Linear),
            "log" => Ok(Width::Logarithmic),
            "adaptive" => Ok(Width::Adaptive),
            table if table.contains(':') => {
                let mut rows = table
                    .split(',')
                    .map(|row| {
                        parse_row(row)
                            .ok_or_else(|| format!("'{row}' is no row of a table: write 10%:3"))
                    })
                    .collect::<Result<Vec<_>, _>>()?;
                rows.sort_by(|a, b| a.0.total_cmp(&b.0));
                Ok(Width::Table(rows))
            }
            _ => Err("write none, linear, log, adaptive, or a table as 1%:1,10%:3,100%:8".into()),
        }
    }
}

fn parse_row(row: &str) -> Option<(f64, f64)> {
    let (bound, width) = row.split_once(':')?;
    let percent: f64 = bound.trim().trim_end_matches('%').parse().ok()?;
    let width: f64 = width.trim().parse().ok()?;
    let valid = (0.0..=100.0).contains(&percent) && (0.0..=100.0).contains(&width);
    valid.then_some((percent / 100.0, width))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn widths_follow_their_formulas() {
        let near = |a: f64, b: f64| (a - b).abs() < 1e-9;
        assert!(near(Width::None.units(0.7, 0.01), 1.0));
        assert!(near(Width::Linear.units(0.7, 0.01), 7.0));
        assert!(near(Width::Logarithmic.units(0.0, 0.01), 1.0));
        assert!(near(Width::Logarithmic.units(1.0, 0.01), 9.0));
        assert!(near(
            Width::Logarithmic.units(0.064, 0.01),
            (64.0001f64).log2()
        ));
        assert!(near(Width::Adaptive.units(0.01, 0.01), 1.0));
        assert!(near(Width::Adaptive.units(1.0, 0.01), 10.0));
        let table: Width = "10%:3, 1%:1,100%:8".parse().unwrap();
        assert_eq!(
            [0.005, 0.05, 0.5].map(|share| table.units(share, 0.0)),
            [1.0, 3.0, 8.0]
        );
    }

    #[test]
    fn a_table_that_is_none_is_refused() {
        for bad in ["", "thick", "10%", "a:b", "10%:-1", "200%:1", "1:nan"] {
            assert!(bad.parse::<Width>().is_err(), "{bad:?} was taken");
        }
    }
}
