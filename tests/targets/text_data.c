// Calls the functions of text_data.S again and again, and checks the data that stand among them. What was read is printed.
#include <setjmp.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

const char *shout(void);
const uint64_t *zero_table(void);
const uint64_t *hidden_zeroes(void);
const unsigned char *code_like(void);
const unsigned char *pointed(void);
uint64_t literal(void);
int switched(long which);
const char *inline_string(void);
const char *inline_typed(void);
void leaves(long unused, void (*to)(const char *words));

static jmp_buf back;
static const char *said;

static void leave(const char *words) {
  said = words;
  longjmp(back, 1);
}

static int wrong;

static void check(int right, const char *what) {
  if (right) return;
  printf("%s is not what it was\n", what);
  wrong = 1;
}

__attribute__((noinline)) static void round_of_all(void) {
  static const unsigned char like[] = {0x55, 0x48, 0x89, 0xe5, 0x5d, 0xc3};
  static const unsigned char point[] = {0x48, 0x83, 0xec, 0x08, 0x48, 0x83, 0xc4, 0x08, 0xc3};
  check(strcmp(shout(), "EXIT-SUCCESS") == 0, "shout");
  const uint64_t *zeroes = zero_table();
  check((zeroes[0] | zeroes[1] | zeroes[2] | zeroes[3]) == 0, "zero_table");
  zeroes = hidden_zeroes();
  check((zeroes[0] | zeroes[1] | zeroes[2]) == 0 && zeroes[-1] == 0x1122334455667788, "hidden_zeroes");
  check(memcmp(code_like(), like, sizeof like) == 0, "code_like");
  check(memcmp(pointed(), point, sizeof point) == 0, "pointed");
  check(literal() == 0x00c3585848905053, "literal");
  for (long i = 0; i < 3; i++) check(switched(i) == 10 + i, "switched");
  check(strcmp(inline_string(), "PUSH IT") == 0, "inline_string");
  check(strcmp(inline_typed(), "PQWV") == 0, "inline_typed");
  if (!setjmp(back)) leaves(0, leave);
  check(strcmp(said, "PQRST") == 0, "leaves");
}

int main(void) {
  for (int i = 0; i < 1000 && !wrong; i++) round_of_all();
  printf("%s %s %s\n", shout(), inline_string(), said);
  return wrong;
}
