//! `thalweg calibrate`: measures what the probes cost here, for all recordings that follow.

use std::io::Write;
use std::process::ExitCode;

use crate::calibration::Calibration;

/// Measure what the probes cost on this machine, so that reports can take it out of the figures
///
/// Takes about a second. The result is kept in the user's state directory and used as long as processor, kernel and thalweg are
/// the same.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Only show what is kept; status 1 if nothing is, or if it does not hold any more
    #[arg(long)]
    pub check: bool,
}

pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let mut out = std::io::stdout().lock();
    let (calibration, place) = if args.check {
        match Calibration::kept() {
            Some(kept) => (kept, None),
            None => {
                writeln!(out, "not calibrated: run 'thalweg calibrate'")?;
                return Ok(ExitCode::FAILURE);
            }
        }
    } else {
        let measured = Calibration::measure()?;
        let place = measured.keep()?;
        (measured, Some(place))
    };
    let Calibration {
        inner_ns,
        outer_ns,
        joint_ns,
        error,
        ..
    } = calibration;
    writeln!(
        out,
        "{}, Linux {}",
        calibration.processor, calibration.kernel
    )?;
    writeln!(
        out,
        "  a probed call costs {:.2} ns (within {:.0}%)",
        inner_ns + outer_ns,
        error * 100.0
    )?;
    writeln!(out, "  {inner_ns:.2} ns in the function that is called")?;
    writeln!(out, "  {outer_ns:.2} ns in its caller")?;
    writeln!(out, "  {joint_ns:.2} ns more where a function calls others")?;
    if let Some(place) = place {
        writeln!(out, "Kept in {}.", place.display())?;
    }
    Ok(ExitCode::SUCCESS)
}
