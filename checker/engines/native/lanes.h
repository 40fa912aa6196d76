/* Arithmetic on several states at once. V holds one integer for each lane, a mask one bit for each lane.
 * Eight lanes where the processor has AVX-512, one otherwise; the generated code is the same. */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

typedef uint64_t u64;
typedef int64_t i64;
typedef uint32_t u32;
typedef uint8_t u8;
typedef unsigned M; /* a mask: bit l is about lane l */

#define COLD __attribute__((noinline, cold))

#if defined(__AVX512F__) && defined(__AVX512DQ__) && !defined(ONE_LANE)
#include <immintrin.h>
#define LANES 8
#define ALL 0xFFu
typedef i64 V __attribute__((vector_size(64), may_alias));

static inline V K(i64 x) { return (V)_mm512_set1_epi64(x); }
static inline M EQ(V a, V b) { return _mm512_cmpeq_epi64_mask((__m512i)a, (__m512i)b); }
static inline M LT(V a, V b) { return _mm512_cmplt_epi64_mask((__m512i)a, (__m512i)b); }
static inline M LE(V a, V b) { return _mm512_cmple_epi64_mask((__m512i)a, (__m512i)b); }
static inline M BELOW(V a, V b) { return _mm512_cmplt_epu64_mask((__m512i)a, (__m512i)b); }
static inline M MATCH(V w, u64 mask, u64 value) {
  return _mm512_cmpeq_epi64_mask(_mm512_and_si512((__m512i)w, _mm512_set1_epi64((i64)mask)),
                                 _mm512_set1_epi64((i64)value));
}
static inline M TEST(V w, u64 mask) { return _mm512_test_epi64_mask((__m512i)w, _mm512_set1_epi64((i64)mask)); }
static inline V SELECT(M c, V a, V b) {
  return (V)_mm512_mask_blend_epi64((__mmask8)c, (__m512i)b, (__m512i)a);
}
static inline V NUMBER(M c) { return (V)_mm512_maskz_set1_epi64((__mmask8)c, 1); }
/* The lanes of m, one after another; writes LANES words whatever m is. */
static inline void put(u64 *to, M m, V x) {
  _mm512_storeu_si512(to, _mm512_maskz_compress_epi64((__mmask8)m, (__m512i)x));
}
static inline unsigned COUNT(M m) { return (unsigned)__builtin_popcount(m); }
#else
#define LANES 1
#define ALL 1u
typedef i64 V;

static inline V K(i64 x) { return x; }
static inline M EQ(V a, V b) { return a == b; }
static inline M LT(V a, V b) { return a < b; }
static inline M LE(V a, V b) { return a <= b; }
static inline M BELOW(V a, V b) { return (u64)a < (u64)b; }
static inline M MATCH(V w, u64 mask, u64 value) { return ((u64)w & mask) == value; }
static inline M TEST(V w, u64 mask) { return ((u64)w & mask) != 0; }
static inline V SELECT(M c, V a, V b) { return c ? a : b; }
static inline V NUMBER(M c) { return (V)c; }
static inline void put(u64 *to, M m, V x) {
  (void)m;
  *to = (u64)x;
}
static inline unsigned COUNT(M m) { return m; }
#endif

static inline M NOT(M a) { return a ^ ALL; }
static inline M CHOOSE(M c, M a, M b) { return (c & a) | (NOT(c) & b); }

/* The bits of a cell as a number, its lowest value not yet added. */
static inline V CELL(V w, int shift, u64 mask) { return (V)((w >> shift) & K((i64)mask)); }

/* What the generated code says of the lanes of m, in which an instance is taken: the same text is compiled for
 * other processors, where these mean something else. EMIT precedes the words of the successors, NOTE follows
 * them; at ROOM successors may be entered. */
#define FUNCTION static
#define CONSTANT static const
#define ANY(m) (m)
#define TAKEN(t, instance, m) ((t)->taken[instance] += COUNT(m))
#define EMIT(t, instance, m, n)
#define PUT(t, k, m, n, x) put((t)->out[k] + (n), m, x)
#define NOTE(t, instance, w, m, n) \
  if ((t)->traced) note(t, instance, m, n)
#define ROOM(t, n)

typedef struct Search Search;

/* What one thread works with. Successors wait in ``out``, by word, until they are entered. */
typedef struct {
  Search *search;
  u64 *out[WORDS];
  u64 *hashes;
  u64 n, room;            /* successors waiting, and for how many there is room */
  u64 taken[INSTANCES];
  struct Block *block;    /* new states go here */
  u64 judged;             /* states of the block whose properties were looked at */
  struct Sight *looked, *failed, *dead;
  int traced;             /* whether to note where successors come from: */
  u32 *from_state, *from_instance;
  u64 base;               /* number, in its block, of the state in lane 0 */
  int index;
} Worker;

/* A property that fails (or a goal that holds) in the lanes of m. */
static void look_hit(Worker *t, unsigned property, const V *w, M m);
/* A check of a step that fails in the lanes of m. */
static void step_failed(Worker *t, unsigned check, unsigned instance, const V *w, M m);
/* A step out of the bounds given for a cell. */
static void step_outside(Worker *t, unsigned cell);
/* Notes where the successors at n come from. */
static void note(Worker *t, unsigned instance, M m, u64 n);
/* Whether a property is still of interest. */
static int is_open(const Worker *t, unsigned property);
