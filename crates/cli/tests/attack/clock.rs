//! Threads that may not read the time-stamp counter.
