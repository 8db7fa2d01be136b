//! How busy the host is: its load, and how long tasks wait for what they need.

use std::fmt;
use std::str::FromStr;

use anyhow::Context;

/// Beyond these nothing is recorded.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Runnable tasks, for each processor.
    pub load: Limit,
    /// Percent of the last ten seconds.
    pub pressure: Limit,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limit(Option<f64>);

impl FromStr for Limit {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<Limit> {
        if text == "off" {
            return Ok(Limit(None));
        }
        let number: f64 = text
            .strip_suffix('%')
            .unwrap_or(text)
            .parse()
            .ok()
            .filter(|number: &f64| number.is_finite() && *number >= 0.0)
            .with_context(|| format!("'{text}' is no limit: a number, or 'off'"))?;
        Ok(Limit(Some(number)))
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self.0 {
            Some(limit) => write!(f, "{limit}"),
            None => f.write_str("off"),
        }
    }
}

impl Limits {
    /// Why nothing is to be recorded now.
    pub fn exceeded(&self) -> Option<String> {
        if let (Some(limit), Some(load)) = (self.load.0, load())
            && load >= limit
        {
            return Some(format!("load {load:.2} for each processor, limit {limit}"));
        }
        for what in ["cpu", "memory"] {
            if let (Some(limit), Some(pressure)) = (self.pressure.0, pressure(what))
                && pressure >= limit
            {
                return Some(format!("{what} pressure {pressure} %, limit {limit} %"));
            }
        }
        None
    }
}

/// Of the last minute.
fn load() -> Option<f64> {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let text = std::fs::read_to_string("/proc/loadavg").ok()?;
    let load: f64 = text.split_whitespace().next()?.parse().ok()?;
    Some(load / processors as f64)
}

/// Kernels without pressure figures have none.
fn pressure(what: &str) -> Option<f64> {
    avg10(&std::fs::read_to_string(format!("/proc/pressure/{what}")).ok()?)
}

fn avg10(text: &str) -> Option<f64> {
    let some = text.lines().find(|line| line.starts_with("some "))?;
    some.split_whitespace()
        .find_map(|field| field.strip_prefix("avg10="))?
        .parse()
        .ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pressure_is_that_of_some_tasks_in_ten_seconds() {
        let text = "some avg10=12.50 avg60=3.00 avg300=1.00 total=1\nfull avg10=1.00 avg60=0 avg300=0 total=0\n";
        assert_eq!(avg10(text), Some(12.5));
        assert_eq!(avg10("nonsense"), None);
    }

    #[test]
    fn a_limit_is_a_number_or_off() {
        assert_eq!("40%".parse::<Limit>().unwrap(), Limit(Some(40.0)));
        assert_eq!("off".parse::<Limit>().unwrap(), Limit(None));
        for bad in ["", "-1", "NaN", "inf", "much"] {
            assert!(bad.parse::<Limit>().is_err(), "{bad}");
        }
    }
}
