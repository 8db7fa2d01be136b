//! Bombs: small files that would take all memory or all time.
