// Prints where each exception lands: the personality routine tells the unwinder through _Unwind_SetIP.
#include <cstdint>
#include <cstdio>
#include <dlfcn.h>
#include <link.h>
#include <stdexcept>
#include <string>
#include <unwind.h>
#include <vector>

extern "C" void _Unwind_SetIP(struct _Unwind_Context *context, _Unwind_Ptr ip)
{
    static auto real = (void (*)(struct _Unwind_Context *, _Unwind_Ptr))dlsym(RTLD_NEXT, "_Unwind_SetIP");
    Dl_info info;
    if (dladdr((void *)ip, &info))
        printf("%s %lx\n", info.dli_fname, (unsigned long)ip - (unsigned long)info.dli_fbase);
    real(context, ip);
}

struct Noisy {
    std::string text;
    explicit Noisy(std::string t) : text(std::move(t)) {}
    ~Noisy() { asm volatile(""); }
};

template <int N> __attribute__((noinline)) int deeper(int n)
{
    Noisy noisy("level " + std::to_string(N));
    try {
        std::vector<Noisy> many(3, noisy);
        if (n == N)
            throw std::runtime_error("at " + std::to_string(n));
        return deeper<N - 1>(n) + (int)many.size();
    } catch (const std::logic_error &) {
        return 0;
    }
}

template <> __attribute__((noinline)) int deeper<0>(int n)
{
    if (n == 0)
        throw std::logic_error("bottom");
    return std::stoi(n == -1 ? "x" : "1");
}

int main()
{
    int caught = 0;
    for (int n = -1; n < 8; n++) {
        try {
            caught += deeper<8>(n);
        } catch (const std::exception &error) {
            caught++;
        }
    }
    return caught == 0;
}
