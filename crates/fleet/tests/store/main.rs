//! Stores through the real program, with profiles of real programs.

mod agent;
mod consumers_agree;
mod crashes;
mod questions;
mod refusals;
mod s3;
mod support;
mod upkeep;
