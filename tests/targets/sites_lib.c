/* The library of sites.c. */
long plug(long x) { __asm__ volatile(""); return x + 5; }
long plug_far(long x) { __asm__ volatile(""); return x + 6; }
