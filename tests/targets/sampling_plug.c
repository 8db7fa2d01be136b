/* What `sampling loads` loads. */
#include "target.h"

/* Long beside what it takes to read a clock after each call, in which no sample has it on its stack. */
FN void plug_deeper(volatile unsigned long *sink)
{
    for (int i = 0; i < 200000; i++)
        *sink += i;
}

FN void sampling_plug(volatile unsigned long *sink)
{
    plug_deeper(sink);
    KEEP;
}
