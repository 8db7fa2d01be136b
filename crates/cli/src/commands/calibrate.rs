//! `thalweg calibrate`: measures what the probes cost here, for all recordings that follow.

use std::io::Write;
use std::process::ExitCode;

use crate::calibration::Calibration;

/// Measure what the probes cost on this machine, so that reports can take it out of the figures
///
/// Takes a second or two. The first recording that finds nothing does the same by itself. The result is kept in the user's state directory and used as long as processor, kernel and thalweg are
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
    let lines = describe(&calibration);
    lines.iter().try_for_each(|line| writeln!(out, "{line}"))?;
    if let Some(place) = place {
        writeln!(out, "Kept in {}.", place.display())?;
    }
    Ok(ExitCode::SUCCESS)
}

/// By kind of work.
fn unseen(hidden: &[(f64, f64)]) -> String {
    let each = hidden
        .iter()
        .map(|(seen, more)| format!("{more:.2} of {:.1}", seen + more));
    format!("{} ns", each.collect::<Vec<_>>().join(", "))
}

fn describe(calibration: &Calibration) -> Vec<String> {
    let Calibration {
        inner_ns,
        outer_ns,
        joint_ns,
        kinds_ns,
        error,
        spread,
        first_ns,
        far,
        sample_ns,
        counted_ns,
        leaf_ns,
        counted_error,
        hidden,
        ..
    } = calibration;
    let kinds: Vec<String> = kinds_ns.iter().map(|ns| format!("{ns:.1}")).collect();
    let mut lines = vec![
        format!("{}, Linux {}", calibration.processor, calibration.kernel),
        format!(
            "  a probed call costs {:.2} ns (within {:.0}%, of a single function within {:.0}%)",
            calibration.per_call(),
            error * 100.0,
            (error + spread) * 100.0
        ),
        format!(
            "  a counted one {counted_ns:.2} ns (within {:.0}%), one of a leaf {leaf_ns:.2} ns",
            counted_error * 100.0
        ),
        format!(
            "  beside a timed call {} of the program are not seen",
            unseen(&hidden[0])
        ),
        format!("  beside a counted one {}", unseen(&hidden[1])),
        format!("  {inner_ns:.2} ns in the function that is called"),
        format!("  {outer_ns:.2} ns in its caller"),
        format!("  {joint_ns:.2} ns more where a function calls others"),
        format!(
            "  {} ns beside no work, little, some, plenty, and a chain of it",
            kinds.join(", ")
        ),
        format!("  {first_ns:.0} ns more for the first call in a context"),
    ];
    for (others, ns) in far {
        lines.push(format!(
            "  {ns:.1} ns more for a call after {others:.0} others"
        ));
    }
    for cost in &calibration.system_calls {
        let each = match cost.each_ns > 0.0 {
            true => format!(", {:.1} ns more for 1,000 bytes", cost.each_ns * 1e3),
            false => String::new(),
        };
        lines.push(format!(
            "  {:.0} ns the system call {}{each}",
            cost.base_ns, cost.name
        ));
    }
    if *sample_ns > 0.0 {
        lines.push(format!(
            "  {:.1} us a sample of a thread's stack",
            sample_ns / 1e3
        ));
    }
    lines
}
