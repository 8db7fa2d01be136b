//! Output files: planted symbolic links, full disks, killed writers.
