//! A thread that does not stop: state D on a frozen file system.
