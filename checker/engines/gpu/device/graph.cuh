/* Listing the steps out of states: for each the number of its state in the input, the instance, and the key of the
 * state that it leads to, in any order. */

FUNCTION NOINLINE void list(Worker *t, u32 instance) {
  const Params *p = t->p;
  V next[WORDS];
  u64 key[KEY_WORDS];
  for (int k = 0; k < WORDS; k++) next[k] = t->next[k];
  encode(next, key);
  u64 *at = p->out + add_to(p->counters + C_OUT, 1ull) * (1 + KEY_WORDS);
  at[0] = t->walk << 32 | instance;
  for (int k = 0; k < KEY_WORDS; k++) at[1 + k] = key[k];
}

FUNCTION inline void step_failed(Worker *, u32, u32, const V *, M) {}
FUNCTION inline void step_outside(Worker *, u32) {}

#define TAKEN(t, i, m)
#define EMIT(t, i, m, n)
#define PUT(t, k, m, n, x) (t)->next[k] = (x)
#define NOTE(t, i, w, m, n) \
  if (m) list(t, i)
#define ROOM(t, n) (n) = 0

/*MACHINE*/

KERNEL(list_steps) {
  Worker worker, *t = &worker;
  t->p = &p;
  t->n = 0;
  for (u64 base = FIRST_THREAD - LANE; base < p.in_count; base += ALL_THREADS) {
    const M valid = base + LANE < p.in_count;
    V w[WORDS];
    t->walk = base + LANE;
    decode(p.in + (base + (valid ? LANE : 0)) * KEY_WORDS, w);
    expand(t, w, valid);
  }
}
