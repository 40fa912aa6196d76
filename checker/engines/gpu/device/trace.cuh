/* Looking at a level again: the smallest state from which a check fails or nothing can be done, and, for each
 * target, the smallest state that it is a successor of. Components are settled one a round. */

FUNCTION inline void step_failed(Worker *t, u32 check, u32 instance, const V *w, M) {
  const Params *p = t->p;
  if (!p->target_count && !p->closed[1 + check]) offer(p, 1 + check, w, instance);
}
FUNCTION inline void step_outside(Worker *, u32) {}

FUNCTION NOINLINE void note(Worker *t, u32 instance, const V *w) {
  const Params *p = t->p;
  V next[WORDS];
  u64 key[KEY_WORDS];
  for (int k = 0; k < WORDS; k++) next[k] = t->next[k];
  CANONICAL(next);
  encode(next, key);
  if (!(p->target_filter >> (mix(key[0]) & 63) & 1)) return;
  for (u64 i = 0; i < p->target_count; i++) {
    bool same = true;
    for (int k = 0; k < KEY_WORDS; k++) same &= key[k] == p->targets[i * KEY_WORDS + k];
    if (same) offer(p, i, w, instance);
  }
}

#define TAKEN(t, i, m)
#define EMIT(t, i, m, n)
#define PUT(t, k, m, n, x) (t)->next[k] = (x)
#define NOTE(t, i, w, m, n) \
  if ((m) && (t)->p->target_count) note(t, i, w)
#define ROOM(t, n) (n) = 0

/*MACHINE*/

KERNEL(trace_level) {
  Worker worker, *t = &worker;
  t->p = &p;
  t->n = 0;
  for (u64 base = FIRST_THREAD - LANE; base < p.in_count; base += ALL_THREADS) {
    const M valid = base + LANE < p.in_count;
    V w[WORDS];
    decode(p.in + (base + (valid ? LANE : 0)) * KEY_WORDS, w);
    const M alive = expand(t, w, valid);
    if (valid && !alive && !p.target_count && !p.closed[0] && !terminal(w)) offer(&p, 0, w, 0);
  }
}
