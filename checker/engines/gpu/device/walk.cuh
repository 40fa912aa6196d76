/* Random walks from the initial state. At each step every enabled instance draws a number, and the smallest one is
 * taken: the same walk comes out wherever and in whatever order it is computed, so its number is enough to repeat
 * it. A sight is the depth and the number of the walk that saw something soonest. */

#define STEP_FACTOR 0x9E3779B97F4A7C15ull
#define INSTANCE_FACTOR 0xD6E8FEB86659FD93ull
#define S_FAILED PROPERTIES
#define S_DEAD (PROPERTIES + CHECKS)

FUNCTION NOINLINE void saw(const Worker *t, u32 number) {
  const u64 mine = t->depth << 40 | t->walk;
  u64 *sight = t->p->sights + number;
  if (mine < fresh_look(sight)) lower_to(sight, mine);
}

FUNCTION inline void look_hit(Worker *t, u32 property, const V *, M) { saw(t, property); }
FUNCTION inline void step_failed(Worker *t, u32 check, u32, const V *, M) { saw(t, S_FAILED + check); }
FUNCTION inline void step_outside(Worker *t, u32 cell) { t->p->counters[C_OUTSIDE + cell] = 1; }

#define TAKEN(t, i, m)
#define EMIT(t, i, m, n) \
  const u64 drawn = (mix((t)->random ^ (i) * INSTANCE_FACTOR) & ~0xFFFFull) | (i); \
  const bool picked = (m) && drawn < (t)->least; \
  if (picked) (t)->least = drawn
#define PUT(t, k, m, n, x) \
  if (picked) (t)->next[k] = (x)
#define NOTE(t, i, w, m, n)
#define ROOM(t, n) (n) = 0

/*MACHINE*/

KERNEL(walk) {
  SHARED
  Worker worker, *t = &worker;
  t->p = &p;
  t->n = 0;
  t->taken = (u32 *)shared_words;
  for (u32 i = WARP_OF_BLOCK * WARP + LANE; i < INSTANCES; i += WARP * WARPS) t->taken[i] = 0;
  block_fence();
  u64 steps = 0;
  for (u64 base = FIRST_THREAD - LANE; base < p.walks; base += ALL_THREADS) {
    M going = base + LANE < p.walks;
    V w[WORDS];
    decode(p.in, w);
    t->walk = p.in_count + base + LANE;
    t->depth = 0;
    const u64 stream = mix(p.seed + t->walk * STEP_FACTOR);
    for (; ANY(going); t->depth++) {
      if (going) look(t, w, 1);
      t->random = mix(stream + t->depth * STEP_FACTOR);
      t->least = ~0ull;
      const M alive = expand(t, w, going);
      if (going && !alive && !terminal(w)) saw(t, S_DEAD);
      going = going && t->least != ~0ull && t->depth < p.steps;
      if (!going) continue;
      add_to(t->taken + (u32)(t->least & 0xFFFF), 1u);
      steps++;
      for (int k = 0; k < WORDS; k++) w[k] = t->next[k];
    }
  }
  block_fence();
  for (u32 i = WARP_OF_BLOCK * WARP + LANE; i < INSTANCES; i += WARP * WARPS)
    if (t->taken[i]) add_to(p.counters + C_TAKEN + i, (u64)t->taken[i]);
  add_to(p.counters + C_STEPS, steps);
}
