/* Knows the structure by name only. */
#include <unistd.h>

struct thing;
struct thing *make(int weight);

__attribute__((noipa)) int use(struct thing *thing) { return thing != 0; }

int main(void)
{
    char byte;
    if (read(0, &byte, 1) < 0)
        return 2;
    return !use(make(7));
}
