//! Profiles for other tools: one file per format.
//!
//! End of the way of the data: [`Profile`](thalweg_model::Profile) -> formats -> whatever reads them.
#![forbid(unsafe_code)]

pub mod json;
