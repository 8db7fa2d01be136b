//! Descriptors and mappings of a target that are swapped while we use them.
