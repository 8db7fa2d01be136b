/* What `sampling loads` loads. */
#include "target.h"

FN void plug_deeper(volatile unsigned long *sink)
{
    for (int i = 0; i < 20000; i++)
        *sink += i;
}

FN void sampling_plug(volatile unsigned long *sink)
{
    plug_deeper(sink);
    KEEP;
}
