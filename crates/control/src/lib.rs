//! (to come)

pub mod filter;
