/* What the printed machine is compiled with: one state a thread, one warp at a time.
 *
 * Without CUDA the same text compiles as C++, with warps of one thread: that is how it is tested without a GPU.
 * There `THREADS_OF_HOST` calls of a kernel run side by side, told apart by `Params.worker`. */

typedef unsigned long long u64;
typedef long long i64;
typedef unsigned int u32;
typedef unsigned char u8;

#if defined(__CUDACC__) || defined(__CUDACC_RTC__)
#define FUNCTION static __device__
#define CONSTANT static __constant__ const
#define NOINLINE __noinline__
#define WARP 32
#define EVERYONE 0xffffffffu
#define KERNEL(name) extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) name(const __grid_constant__ Params p)
#define LANE (threadIdx.x & 31)
#define WARP_OF_BLOCK (threadIdx.x >> 5)
#define FIRST_THREAD ((u64)blockIdx.x * blockDim.x + threadIdx.x)
#define ALL_THREADS ((u64)gridDim.x * blockDim.x)
#define SHARED extern __shared__ __align__(16) u64 shared_words[];

FUNCTION inline u32 vote(bool m) { return __ballot_sync(EVERYONE, m); }
FUNCTION inline u32 before_me(u32 votes) { return __popc(votes & ((1u << LANE) - 1)); }
FUNCTION inline u32 count_bits(u32 votes) { return __popc(votes); }
FUNCTION inline u64 from_first(u64 x) { return __shfl_sync(EVERYONE, x, 0); }
FUNCTION inline void warp_fence() { __syncwarp(); }
FUNCTION inline void block_fence() { __syncthreads(); }
FUNCTION inline u64 swap_if(u64 *at, u64 was, u64 x) { return atomicCAS(at, was, x); }
FUNCTION inline u32 swap_if(u32 *at, u32 was, u32 x) { return atomicCAS(at, was, x); }
FUNCTION inline u64 add_to(u64 *at, u64 x) { return atomicAdd(at, x); }
FUNCTION inline u32 add_to(u32 *at, u32 x) { return atomicAdd(at, x); }
FUNCTION inline void lower_to(u64 *at, u64 x) { atomicMin(at, x); }
FUNCTION inline void fence() { __threadfence(); }
FUNCTION inline u64 fresh_look(const u64 *at) { return *(const volatile u64 *)at; }
FUNCTION inline void publish(u64 *at, u64 x) { *(volatile u64 *)at = x; }
FUNCTION inline u64 high_product(u64 a, u64 b) { return __umul64hi(a, b); }
/* A bucket at once: two loads of 16 bytes from one sector. */
FUNCTION inline void look4(const u64 *bucket, u64 *e) {
  const ulonglong2 a = ((const ulonglong2 *)bucket)[0], b = ((const ulonglong2 *)bucket)[1];
  e[0] = a.x, e[1] = a.y, e[2] = b.x, e[3] = b.y;
}
FUNCTION inline void look8(const u32 *bucket, u32 *e) {
  const uint4 a = ((const uint4 *)bucket)[0], b = ((const uint4 *)bucket)[1];
  e[0] = a.x, e[1] = a.y, e[2] = a.z, e[3] = a.w, e[4] = b.x, e[5] = b.y, e[6] = b.z, e[7] = b.w;
}
#else
#include <stdint.h>
#include <string.h>
#define FUNCTION static
#define CONSTANT static const
#define NOINLINE
#define WARP 1
#define KERNEL(name) extern "C" void name(const Params p)
#define LANE 0u
#define WARP_OF_BLOCK 0u
#define FIRST_THREAD p.worker
#define ALL_THREADS p.workers
#define SHARED static thread_local u64 shared_words[WARP_WORDS + INSTANCES];

FUNCTION inline u32 vote(bool m) { return m; }
FUNCTION inline u32 before_me(u32) { return 0; }
FUNCTION inline u32 count_bits(u32 votes) { return votes; }
FUNCTION inline u64 from_first(u64 x) { return x; }
FUNCTION inline void warp_fence() {}
FUNCTION inline void block_fence() {}
template <class T> FUNCTION inline T swap_if(T *at, T was, T x) {
  __atomic_compare_exchange_n(at, &was, x, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
  return was;
}
template <class T> FUNCTION inline T add_to(T *at, T x) { return __atomic_fetch_add(at, x, __ATOMIC_SEQ_CST); }
FUNCTION inline void lower_to(u64 *at, u64 x) {
  u64 now = __atomic_load_n(at, __ATOMIC_SEQ_CST);
  while (x < now && !__atomic_compare_exchange_n(at, &now, x, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) {
  }
}
FUNCTION inline void fence() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
FUNCTION inline u64 fresh_look(const u64 *at) { return __atomic_load_n(at, __ATOMIC_ACQUIRE); }
FUNCTION inline void publish(u64 *at, u64 x) { __atomic_store_n(at, x, __ATOMIC_RELEASE); }
FUNCTION inline u64 high_product(u64 a, u64 b) { return (u64)(((unsigned __int128)a * b) >> 64); }
FUNCTION inline void look4(const u64 *bucket, u64 *e) {
  for (int k = 0; k < 4; k++) e[k] = __atomic_load_n(bucket + k, __ATOMIC_RELAXED);
}
FUNCTION inline void look8(const u32 *bucket, u32 *e) {
  for (int k = 0; k < 8; k++) e[k] = __atomic_load_n(bucket + k, __ATOMIC_RELAXED);
}
#endif

/* The words the printed machine is written in: V is a number, M a truth value, of this thread's state. */
typedef i64 V;
typedef u32 M;
#define ALL 1u

FUNCTION inline V K(i64 x) { return x; }
FUNCTION inline M EQ(V a, V b) { return a == b; }
FUNCTION inline M LT(V a, V b) { return a < b; }
FUNCTION inline M LE(V a, V b) { return a <= b; }
FUNCTION inline M BELOW(V a, V b) { return (u64)a < (u64)b; }
FUNCTION inline M MATCH(V w, u64 mask, u64 value) { return ((u64)w & mask) == value; }
FUNCTION inline M TEST(V w, u64 mask) { return ((u64)w & mask) != 0; }
FUNCTION inline V SELECT(M c, V a, V b) { return c ? a : b; }
FUNCTION inline V NUMBER(M c) { return (V)c; }
FUNCTION inline M NOT(M a) { return a ^ 1u; }
FUNCTION inline M CHOOSE(M c, M a, M b) { return c ? a : b; }
FUNCTION inline V CELL(V w, int shift, u64 mask) { return (V)(((u64)w >> shift) & mask); }

#define ANY(m) (vote(m) != 0)
#define COUNT(m) count_bits(vote(m))

/* A table of states: buckets of one sector of memory. ``log2`` is about the number of buckets. */
typedef struct {
  u64 *entries;
  u64 log2;
  u64 reach;  /* 0: whole keys; else narrow entries, which lie less than so many strides from home */
  u64 *spill; /* keys that found no room within reach: whole ones */
  u64 spill_log2;
} Table;

typedef struct {
  Table table, old;
  const u64 *in;/* keys of states, one after another */
  u64 in_count;
  u64 *out; /* new states go here */
  u64 out_limit; /* no state is taken up unless so many new ones fit in with ``slack`` to spare */
  u64 slack;
  u64 *counters;
  u64 *sights;     /* by number: words of the smallest state, then the instance */
  const u8 *closed; /* by number: nothing more is wanted */
  u64 round;       /* which component of the sights is being settled */
  const u64 *targets; /* keys whose predecessors are wanted */
  u64 target_count;
  u64 target_filter; /* one bit for each target, by its hash */
  u64 rank, ranks; /* states belong to ranks by their hash */
  u64 *boxes;      /* keys of states of other ranks: box_room for each */
  u64 box_room, box_slack;
  u64 *sent; /* keys sent lately; 2^SENT_LOG2 of them, or NULL */
  u64 seed, steps, walks; /* random walks: how many, and how long each */
  u64 block; /* sums: how many words share one, a multiple of SUM_RUN */
  u64 worker, workers; /* without CUDA: which of how many calls this is */
} Params;

/* Numbers in ``counters``. */
enum { C_WORK, C_OUT, C_SPILL, C_LOST, C_DEAD, C_STEPS, C_BOXES = 8 };
#define C_TAKEN (C_BOXES + MOST_RANKS)
#define C_FAILED (C_TAKEN + INSTANCES)
#define C_OUTSIDE (C_FAILED + CHECKS)
#define C_ALL (C_OUTSIDE + CELLS)

/* What one warp works with. */
typedef struct {
  const Params *p;
  u64 *queue;  /* successors that wait to be entered, by word */
  u64 *fresh;  /* keys of new states that wait to be written */
  u32 n_fresh;
  u64 n;       /* successors that wait */
  u32 *taken;
  u32 *boxed; /* for each rank: keys that wait to be sent to it, then where they go */
  V next[WORDS];
  u64 walk, depth, random, least; /* of a walk (or state): its number, its length, and what is drawn in this step */
} Worker;
