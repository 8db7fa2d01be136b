//! Threads that set their GS base after an attach.
