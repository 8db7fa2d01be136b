// A program that changes its own text before it begins: the resolver of `chosen` runs while the
// loader relocates, so that `victim` is not what the file says when the first constructor could run.
//
// Prints what `victim` gives (1 in the file, 2 in memory), and how many bytes of the text of the
// program and of its libraries are not what their files say: one.
#define _GNU_SOURCE
#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define FUNCTION(n) \
    __attribute__((noinline, used)) unsigned f##n(unsigned x) { return x * (n + 3u) ^ (x >> (n % 7 + 1)); }
#define TEN(n) \
    FUNCTION(n##0) FUNCTION(n##1) FUNCTION(n##2) FUNCTION(n##3) FUNCTION(n##4) \
    FUNCTION(n##5) FUNCTION(n##6) FUNCTION(n##7) FUNCTION(n##8) FUNCTION(n##9)
#define HUNDRED(n) \
    TEN(n##0) TEN(n##1) TEN(n##2) TEN(n##3) TEN(n##4) TEN(n##5) TEN(n##6) TEN(n##7) TEN(n##8) TEN(n##9)
// Some pages of functions that are patched before it.
HUNDRED(1) HUNDRED(2) HUNDRED(3) HUNDRED(4)

int victim(void);
__asm__(".text\n"
        ".p2align 4\n"
        ".globl victim\n"
        ".type victim, @function\n"
        "victim:\n"
        "    movl $1, %eax\n"
        "    addl $0, %eax\n"
        "    ret\n"
        ".size victim, .-victim\n");

__attribute__((noinline)) static int three(void) { return 3; }

static inline __attribute__((always_inline)) void protect(uintptr_t page, long how) {
    long result;
    __asm__ volatile("syscall" : "=a"(result) : "a"(10L), "D"(page), "S"(8192L), "d"(how) : "rcx", "r11", "memory");
}

static int (*resolve(void))(void) {
    volatile unsigned char *at = (volatile unsigned char *)victim;
    protect((uintptr_t)at & -4096ul, 7);
    at[1] = 2;
    protect((uintptr_t)at & -4096ul, 5);
    return three;
}

int chosen(void) __attribute__((ifunc("resolve")));

static int compare(struct dl_phdr_info *info, size_t size, void *sum) {
    (void)size;
    const char *path = info->dlpi_name[0] == 0 ? "/proc/self/exe" : info->dlpi_name;
    int file = open(path, O_RDONLY);
    for (int i = 0; file >= 0 && i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *part = &info->dlpi_phdr[i];
        if (part->p_type != PT_LOAD || (part->p_flags & PF_X) == 0)
            continue;
        const unsigned char *memory = (const unsigned char *)info->dlpi_addr + part->p_vaddr;
        unsigned char page[4096];
        for (size_t at = 0; at < part->p_filesz; at += sizeof page) {
            ssize_t some = pread(file, page, sizeof page, part->p_offset + at);
            for (ssize_t k = 0; k < some && at + k < part->p_filesz; k++)
                *(long *)sum += memory[at + k] != page[k];
        }
    }
    close(file);
    return 0;
}

int main(void) {
    long differ = 0;
    dl_iterate_phdr(compare, &differ);
    printf("victim %d, chosen %d, %ld bytes differ\n", victim(), chosen(), differ);
    return 0;
}
