//! Targets in PID namespaces of their own.
