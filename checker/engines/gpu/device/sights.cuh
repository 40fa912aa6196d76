/* Where things were seen. A sight has WORDS + 1 components, the words of a state and an instance, and becomes the
 * smallest of all offered: one component is settled a round, among the offers that agree on those before. */

#define SIGHT (WORDS + 1)

#if SYMMETRIC
FUNCTION void canonical(V *w);
#define CANONICAL(w) canonical(w)
#else
#define CANONICAL(w)
#endif

FUNCTION NOINLINE void offer(const Params *p, u64 number, const V *w, u32 instance) {
  u64 *sight = p->sights + number * SIGHT;
  u64 mine = instance;
  for (u64 k = 0; k < WORDS; k++) {
    if (k == p->round) {
      mine = (u64)w[k];
      break;
    }
    if (fresh_look(sight + k) != (u64)w[k]) return;
  }
  if (mine < fresh_look(sight + p->round)) lower_to(sight + p->round, mine);
}

/* A property that fails, or a goal that holds. */
FUNCTION inline bool is_open(const Worker *t, u32 property) { return !t->p->closed[property]; }
#ifndef WALKING
FUNCTION inline void look_hit(Worker *t, u32 property, const V *w, M) { offer(t->p, property, w, 0); }
#endif
