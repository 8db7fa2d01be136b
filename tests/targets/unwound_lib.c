/* A library without handlers and clean-ups of its own: exceptions pass through it. Compiled with -fexceptions. */
#include "target.h"

FN int through_library(int depth, int (*callback)(int), int argument)
{
    int r = depth ? through_library(depth - 1, callback, argument) : callback(argument);
    KEEP;
    return r;
}
