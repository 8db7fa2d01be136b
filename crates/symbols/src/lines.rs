//! Source lines of functions that appear in a profile.
pub struct Lines;
