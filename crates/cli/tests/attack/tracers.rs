//! Programs that trace their own children.
