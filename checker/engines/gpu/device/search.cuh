/* Expanding a level: a warp takes 32 states, computes their successors into its queue in shared memory, and
 * enters them from there, 32 at a time, so that no thread waits while others look a state up. */

#define MY_QUEUE (shared_words + WARP_OF_BLOCK * WARP_WORDS)
#define MY_FRESH (MY_QUEUE + WORDS * QUEUE)
#define MY_BOXED ((u32 *)(MY_FRESH + KEY_WORDS * 2 * WARP))

FUNCTION inline u64 owner_of(const Params *p, const u64 *key) {
  return high_product(mix(hash_key(key) + 0x632BE59BD9B4E019ull), p->ranks);
}

FUNCTION inline void flush_fresh(Worker *t, u32 n) {
  const Params *p = t->p;
  u64 base = 0;
  if (LANE == 0) base = add_to(p->counters + C_OUT, (u64)n);
  base = from_first(base);
  if (LANE < n)
    for (int k = 0; k < KEY_WORDS; k++) p->out[(base + LANE) * KEY_WORDS + k] = t->fresh[k * 2 * WARP + LANE];
  warp_fence();
  if (t->n_fresh > n) {
    if (LANE < t->n_fresh - n)
      for (int k = 0; k < KEY_WORDS; k++) t->fresh[k * 2 * WARP + LANE] = t->fresh[k * 2 * WARP + WARP + LANE];
    warp_fence();
  }
  t->n_fresh -= n;
}

/* Keeps the new states among those of a warp for the next level. */
FUNCTION inline void keep_fresh(Worker *t, bool is_new, const u64 *key) {
  const u32 votes = vote(is_new);
  if (!votes) return;
  if (is_new) {
    const u32 at = t->n_fresh + before_me(votes);
    for (int k = 0; k < KEY_WORDS; k++) t->fresh[k * 2 * WARP + at] = key[k];
  }
  t->n_fresh += count_bits(votes);
  warp_fence();
  if (t->n_fresh >= WARP) flush_fresh(t, WARP);
}

/* Whether a key was sent a moment ago; it counts as sent from now on. */
FUNCTION inline bool sent_lately(const Params *p, const u64 *key) {
#if KEY_WORDS == 1
  if (!p->sent) return false;
  u64 *at = p->sent + (mix(key[0]) >> (64 - SENT_LOG2));
  if (fresh_look(at) == key[0] + 1) return true;
  publish(at, key[0] + 1);
#endif
  return false;
}

/* Hands the n keys at the front of the queue to the ranks that own them. ``boxed`` says how many are whose: room for
 * all of them is asked for at once, as every warp of the device asks at the same few addresses. */
FUNCTION inline void send(Worker *t, u32 n) {
  const Params *p = t->p;
  warp_fence();
  for (u64 r = LANE; r < p->ranks; r += WARP)
    if (t->boxed[r]) t->boxed[r] = (u32)add_to(p->counters + C_BOXES + r, (u64)t->boxed[r]);
  warp_fence();
  for (u32 i = LANE; i < n; i += WARP) {
    u64 key[KEY_WORDS];
    for (int k = 0; k < KEY_WORDS; k++) key[k] = t->queue[k * QUEUE + i];
    const u64 r = owner_of(p, key), at = r * p->box_room + add_to(t->boxed + r, 1u);
    for (int k = 0; k < KEY_WORDS; k++) p->boxes[at * KEY_WORDS + k] = key[k];
  }
  warp_fence();
  for (u64 r = LANE; r < p->ranks; r += WARP) t->boxed[r] = 0;
  warp_fence();
}

/* Enters the successors that wait, as many as fill whole warps, or all; how many are left. */
FUNCTION NOINLINE u64 drain(Worker *t, u64 n, bool all) {
  const Params *p = t->p;
  warp_fence();
  const u64 end = all ? n : n / WARP * WARP;
  u32 foreign = 0; /* keys of other ranks, in the queue's places that were looked at */
  for (u64 i = 0; i < end; i += WARP) {
    bool valid = i + LANE < end;
    u64 key[KEY_WORDS];
    if (valid) {
      V w[WORDS];
      for (int k = 0; k < WORDS; k++) w[k] = (V)t->queue[k * QUEUE + i + LANE];
      CANONICAL(w);
      encode(w, key);
    }
    if (p->ranks > 1) {
      const u64 owner = valid ? owner_of(p, key) : p->rank;
      const bool sending = owner != p->rank && !sent_lately(p, key);
      const u32 votes = vote(sending);
      if (sending) {
        const u32 at = foreign + before_me(votes);
        for (int k = 0; k < KEY_WORDS; k++) t->queue[k * QUEUE + at] = key[k];
        add_to(t->boxed + owner, 1u);
      }
      foreign += count_bits(votes);
      valid = valid && owner == p->rank;
    }
    const bool is_new = valid && enter_key(p, key);
    keep_fresh(t, is_new, key);
  }
  if (foreign) send(t, foreign);
  if (end < n && end > 0) {
    if (LANE < n - end)
      for (int k = 0; k < WORDS; k++) t->queue[k * QUEUE + LANE] = t->queue[k * QUEUE + end + LANE];
  }
  warp_fence();
  return n - end;
}

FUNCTION inline void step_failed(Worker *t, u32 check, u32, const V *, M) { t->p->counters[C_FAILED + check] = 1; }
FUNCTION inline void step_outside(Worker *t, u32 cell) { t->p->counters[C_OUTSIDE + cell] = 1; }

#define TAKEN(t, i, m) \
  { \
    const u32 c = COUNT(m); \
    if (LANE == 0) add_to((t)->taken + i, c); \
  }
#define EMIT(t, i, m, n) \
  const u32 votes = vote(m); \
  const u32 at = (u32)(n) + before_me(votes)
#define PUT(t, k, m, n, x) \
  if (m) (t)->queue[(k) * QUEUE + at] = (u64)(x)
#define NOTE(t, i, w, m, n)
#define ROOM(t, n) \
  if ((n) > QUEUE - WARP) (n) = drain(t, n, false)

/*MACHINE*/

FUNCTION bool room_left(const Params *p) {
  if (fresh_look(p->counters + C_OUT) + p->slack > p->out_limit) return false;
  if (fresh_look(p->counters + C_SPILL) > (2ull << p->table.spill_log2)) return false;
  if (p->ranks > 1)
    for (u64 r = 0; r < p->ranks; r++)
      if (fresh_look(p->counters + C_BOXES + r) + p->box_slack > p->box_room) return false;
  return true;
}

KERNEL(expand_level) {
  SHARED
  Worker worker, *t = &worker;
  t->p = &p;
  t->queue = MY_QUEUE;
  t->fresh = MY_FRESH;
  t->n_fresh = 0;
  t->boxed = MY_BOXED;
  for (u32 r = LANE; r < MOST_RANKS; r += WARP) t->boxed[r] = 0;
  t->taken = (u32 *)(shared_words + WARP_WORDS * WARPS);
  for (u32 i = WARP_OF_BLOCK * WARP + LANE; i < INSTANCES; i += WARP * WARPS) t->taken[i] = 0;
  block_fence();
  u64 n = 0;
  for (;;) {
    u64 base = ~0ull;
    if (LANE == 0 && room_left(&p)) base = add_to(p.counters + C_WORK, (u64)WARP);
    base = from_first(base);
    if (base >= p.in_count) break;
    const M valid = base + LANE < p.in_count;
    V w[WORDS];
    decode(p.in + (base + (valid ? LANE : 0)) * KEY_WORDS, w);
    t->n = n;
    const M alive = expand(t, w, valid);
    n = t->n;
    if (valid && !alive && !terminal(w)) p.counters[C_DEAD] = 1;
    n = drain(t, n, false);
  }
  drain(t, n, true);
  if (t->n_fresh) flush_fresh(t, t->n_fresh);
  block_fence();
  for (u32 i = WARP_OF_BLOCK * WARP + LANE; i < INSTANCES; i += WARP * WARPS)
    if (t->taken[i]) add_to(p.counters + C_TAKEN + i, (u64)t->taken[i]);
}

/* Enters keys: the first state of all, those of a checkpoint, and those that other ranks found. */
KERNEL(enter_keys) {
  SHARED
  Worker worker, *t = &worker;
  t->p = &p;
  t->fresh = MY_FRESH;
  t->n_fresh = 0;
  for (u64 base = FIRST_THREAD - LANE; base < p.in_count; base += ALL_THREADS) {
    u64 key[KEY_WORDS];
    const bool valid = base + LANE < p.in_count;
    if (valid)
      for (int k = 0; k < KEY_WORDS; k++) key[k] = p.in[(base + LANE) * KEY_WORDS + k];
    const bool is_new = valid && enter_key(&p, key);
    if (p.out)
      keep_fresh(t, is_new, key);
    else if (is_new)
      add_to(p.counters + C_OUT, 1ull);
  }
  if (t->n_fresh) flush_fresh(t, t->n_fresh);
}

/* Looks at every state of a level: invariants that fail, goals that hold. */
KERNEL(judge_level) {
  Worker worker, *t = &worker;
  t->p = &p;
  for (u64 i = FIRST_THREAD; i < p.in_count; i += ALL_THREADS) {
    V w[WORDS];
    decode(p.in + i * KEY_WORDS, w);
    look(t, w, 1);
  }
}

#define SUM_RUN 256 /* words that a thread adds up */

/* Sums of words that are about to leave the device, or have come back, block by block. */
KERNEL(sum_words) {
  const u64 runs = (p.in_count + SUM_RUN - 1) / SUM_RUN;
  for (u64 r = FIRST_THREAD; r < runs; r += ALL_THREADS) {
    const u64 from = r * SUM_RUN, to = from + SUM_RUN < p.in_count ? from + SUM_RUN : p.in_count;
    u64 sum = 0;
    for (u64 i = from; i < to; i++) sum += mix(p.in[i]);
    add_to(p.out + from / p.block, sum);
  }
}
