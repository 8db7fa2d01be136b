// The same for C++: every form of new and delete, containers, and an allocation that throws.
// Prints for each function: name, blocks allocated, their bytes, blocks freed, their bytes, bytes left, blocks left.
#include <cstdio>
#include <new>
#include <stdexcept>

static volatile long none;
struct alignas(64) Wide {
    char bytes[192];
};
struct Thrower {
    char bytes[72];
    Thrower() { throw std::runtime_error("no"); }
};
#define APART __attribute__((noinline))

APART void single(int n) {
    for (int i = 0; i < n; i++) {
        long *p = new long(i);
        none += *p;
        delete p;
    }
}
APART void arrays(int n) {
    for (int i = 1; i <= n; i++) {
        char *p = new char[i];
        none += p[0];
        delete[] p;
    }
}
APART void wide(int n) {
    for (int i = 0; i < n; i++) {
        Wide *p = new Wide;
        Wide *q = new Wide[2];
        none += p->bytes[1] + q->bytes[1];
        delete p;
        delete[] q;
    }
}
APART void unthrowing(int n) {
    for (int i = 0; i < n; i++) {
        int *p = new (std::nothrow) int(3);
        none += *p;
        ::operator delete(p, std::nothrow);
    }
}
// The forms that the compiler seldom chooses by itself.
APART void forms(int n) {
    using std::align_val_t;
    using std::nothrow;
    for (int i = 0; i < n; i++) {
        ::operator delete(::operator new(10), 10);
        ::operator delete[](::operator new[](20), 20);
        ::operator delete[](::operator new[](30, nothrow), nothrow);
        ::operator delete(::operator new(40, align_val_t(64)), align_val_t(64));
        ::operator delete[](::operator new[](50, align_val_t(64)), 50, align_val_t(64));
        ::operator delete(::operator new(60, align_val_t(128), nothrow), align_val_t(128), nothrow);
        ::operator delete[](::operator new[](70, align_val_t(128), nothrow), align_val_t(128), nothrow);
        ::operator delete(::operator new(80, align_val_t(32)), 80, align_val_t(32));
        ::operator delete(nullptr);
        ::operator delete[](nullptr, align_val_t(64));
        none += ::operator new(((size_t)1 << 61) + none % 2, nothrow) != nullptr;
        none += ::operator new[](((size_t)1 << 61) + none % 2, align_val_t(64), nothrow) != nullptr;
    }
}
APART void too_much(int n) {
    for (int i = 0; i < n; i++) {
        try {
            none += *new char[((size_t)1 << 61) - 64 + none % 2];
        } catch (std::bad_alloc &) {
            none++;
        }
    }
}
// The block is freed by the compiler's clean-up, which belongs to this function.
APART void thrown(int n) {
    for (int i = 0; i < n; i++) {
        try {
            none += new Thrower != nullptr;
        } catch (std::runtime_error &) {
            none++;
        }
    }
}
APART void kept(int n) {
    for (int i = 0; i < n; i++) none += *new int(i);
}

int main() {
    single(100);
    arrays(100);
    wide(100);
    unthrowing(100);
    forms(100);
    too_much(10);
    thrown(10);
    kept(100);
    single(50);
    std::printf("single 150 1200 150 1200 0 0\n");
    std::printf("arrays 100 5050 100 5050 0 0\n");
    std::printf("wide 200 57600 200 57600 0 0\n");
    std::printf("unthrowing 100 400 100 400 0 0\n");
    std::printf("forms 800 36000 800 36000 0 0\n");
    std::printf("too_much 0 0 0 0 0 0\n");
    std::printf("thrown 10 720 10 720 0 0\n");
    std::printf("kept 100 400 0 0 400 100\n");
}
