//! What thalweg did to the program, which is in no figure of the program's: stops, waits at gates.

use thalweg_model::Held;

use super::text::{counted, time_inline};

/// How long it kept the program from running, if it did.
pub fn stopped(held: &Held) -> Option<String> {
    let mut parts = Vec::new();
    if held.stops > 0 {
        parts.push(format!(
            "{} in {}, longest {}",
            time_inline(held.stopped_ns),
            counted(held.stops, "stop", "stops"),
            time_inline(held.longest_stop_ns),
        ));
    }
    if held.gates > 0 {
        parts.push(format!(
            "threads waited {} for it in {}, longest {}",
            time_inline(held.gated_ns),
            counted(held.gates, "place", "places"),
            time_inline(held.longest_gate_ns),
        ));
    }
    if held.waited_for_ns > 0 {
        parts.push(format!(
            "those who waited for what stood {}",
            time_inline(held.waited_for_ns)
        ));
    }
    match parts.is_empty() {
        true => None,
        false => Some(format!(
            "by thalweg: {}; in no function's time",
            parts.join("; ")
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_said_of_what_did_not_happen() {
        assert_eq!(stopped(&Held::default()), None);
        let stops = Held {
            stops: 12,
            stopped_ns: 5_400_000_000,
            longest_stop_ns: 3_100_000_000,
            ..Held::default()
        };
        assert_eq!(
            stopped(&stops).as_deref(),
            Some("by thalweg: 5.400 s in 12 stops, longest 3.100 s; in no function's time")
        );
    }
}
