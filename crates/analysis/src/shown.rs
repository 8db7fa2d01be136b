//! The one way from a profile as it was recorded to the figures that are shown: every report, export and page goes it.

use thalweg_model::{Metric, Profile};

use crate::{Bounds, add_up_all, compensate, estimate, fill, folded_places, gather_folded, weigh};

/// A metric that the profile has in the place of time; or times, without what the probes cost unless `raw`.
pub fn as_shown(mut profile: Profile, by: Option<Metric>, raw: bool) -> Profile {
    let folded = folded_places(&profile);
    if let Some(metric) = by {
        profile = weigh(profile, metric);
    } else if !raw {
        compensate(&mut profile);
        estimate(&mut profile);
        if fill(&mut profile) {
            add_up_all(&mut profile);
        }
    }
    gather_folded(&mut profile, &folded);
    let bounds = Bounds::of(&profile).note(&profile);
    let is_new = |note: &String| !profile.notes.contains(note);
    if let Some(note) = bounds.filter(is_new) {
        profile.notes.push(note);
    }
    profile
}
