//! Programs that run other programs' code themselves: valgrind, qemu-user, rr.
