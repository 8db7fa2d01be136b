//! Stops of programs with hundreds of threads.
