//! Targets that die after an attach: their data outlives them.
