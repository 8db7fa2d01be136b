struct thing { int weight; const char *label; };

struct thing *make(int weight)
{
    static struct thing thing = { 0, "seven" };
    thing.weight = weight;
    return &thing;
}
