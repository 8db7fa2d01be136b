//! Seccomp filters and syscall user dispatch that come by a bare system call.
