/* Expanding levels by threads, and what the machine's code reports on the way. */

static inline void lane_words(const V *w, int lane, u64 *words) {
  for (int k = 0; k < WORDS; k++) words[k] = ((const u64 *)&w[k])[lane];
}

/* Keeps the smallest state (and then instance), so that the order of the search does not matter. */
static void keep_smallest(Sight *sight, const u64 *words, u64 instance, u64 depth) {
  if (sight->found) {
    int order = 0;
    for (int k = 0; k < WORDS && !order; k++)
      order = words[k] < sight->words[k] ? -1 : words[k] > sight->words[k];
    if (order > 0 || (order == 0 && instance >= sight->instance)) return;
  }
  sight->found = 1;
  sight->instance = instance;
  sight->depth = depth;
  memcpy(sight->words, words, sizeof sight->words);
}

static COLD void keep_lanes(Sight *sight, const V *w, M m, u64 instance, u64 depth) {
  for (; m; m &= m - 1) {
    u64 words[WORDS];
    lane_words(w, __builtin_ctz(m), words);
    keep_smallest(sight, words, instance, depth);
  }
}

static void look_hit(Worker *t, unsigned property, const V *w, M m) {
  keep_lanes(&t->looked[property], w, m, 0, t->search->depth);
}

static void step_failed(Worker *t, unsigned check, unsigned instance, const V *w, M m) {
  if (!t->traced && !t->search->failed_closed[check])
    keep_lanes(&t->failed[check], w, m, instance, t->search->depth - 1);
}

static COLD void step_outside(Worker *t, unsigned cell) {
  __atomic_store_n(&t->search->outside[cell], 1, __ATOMIC_RELAXED);
}

static COLD void note(Worker *t, unsigned instance, M m, u64 n) {
  for (; m; m &= m - 1, n++) {
    t->from_state[n] = (u32)(t->base + (u64)__builtin_ctz(m));
    t->from_instance[n] = instance;
  }
}

static inline int is_open(const Worker *t, unsigned property) { return !t->search->closed[property]; }

/* The states from ``from`` on, n of them, by lane; lanes past n repeat the first. */
static inline void load(V *w, const u64 *from, u64 n) {
  if (WORDS == 1 && n == LANES) {
    memcpy(w, from, sizeof(V));
    return;
  }
  u64 words[WORDS][LANES];
  for (u64 l = 0; l < LANES; l++)
    for (int k = 0; k < WORDS; k++) words[k][l] = from[(l < n ? l : 0) * WORDS + k];
  memcpy(w, words, sizeof words);
}

static void judge(Worker *t) {
  Block *b = t->block;
  if (!b) return;
  for (u64 i = t->judged; i < b->count; i += LANES) {
    const u64 n = b->count - i < LANES ? b->count - i : LANES;
    V w[WORDS];
    load(w, b->data + i * WORDS, n);
    look(t, w, (1u << n) - 1);
  }
  t->judged = b->count;
}

static inline int append(Worker *t, const u64 *state) {
  Block *b = t->block;
  if (!b || b->count == b->room) {
    judge(t);
    b = t->block = new_block(t->search);
    t->judged = 0;
    if (!b) return -1;
  }
  memcpy(b->data + b->count++ * WORDS, state, WORDS * sizeof(u64));
  return 0;
}

static inline u64 enter_all(Worker *t, u64 n, const int shared) {
  Search *s = t->search;
  u64 fresh = 0;
  for (u64 j = 0; j < n && j < AHEAD; j++) __builtin_prefetch(s->table + t->hashes[j] * WORDS, 1);
  for (u64 j = 0; j < n; j++) {
    const u64 *next = s->table + t->hashes[j + AHEAD] * WORDS; /* past n the hashes are 0 */
    __builtin_prefetch(next, 1);
    if (!BY_LINE && WORDS > 1 && ((uintptr_t)next & 63) + WORDS * 8 > 64) __builtin_prefetch(next + WORDS - 1, 1);
    u64 state[WORDS];
    for (int k = 0; k < WORDS; k++) state[k] = t->out[k][j];
    if (insert(s, t->hashes[j], state, shared)) {
      fresh++;
      if (append(t, state)) {
        ask_to_stop(s, NO_MEMORY);
        break;
      }
    }
  }
  return fresh;
}

static void canonical_all(Worker *t) {
#if SYMMETRIC
  for (u64 j = 0; j < t->n; j += LANES) {
    V w[WORDS];
    for (int k = 0; k < WORDS; k++) memcpy(&w[k], t->out[k] + j, sizeof(V));
    canonical(w);
    for (int k = 0; k < WORDS; k++) memcpy(t->out[k] + j, &w[k], sizeof(V));
  }
#else
  (void)t;
#endif
}

/* Enters the successors that wait; the new ones become part of the next level. */
static void enter(Worker *t) {
  Search *s = t->search;
  canonical_all(t);
  const u64 n = t->n;
  for (u64 j = 0; j < n; j++) t->hashes[j] = place(s, hash_at(t->out, j));
  memset(t->hashes + n, 0, AHEAD * sizeof(u64));
  t->n = 0;
  const u64 fresh = s->active > 1 ? enter_all(t, n, 1) : enter_all(t, n, 0);
  judge(t);
  if (__atomic_add_fetch(&s->states, fresh, __ATOMIC_RELAXED) >= s->full_at) ask_to_stop(s, TABLE_IS_FULL);
}

/* All successors of n states. There is room for them. */
static inline void expand_lanes(Worker *t, const u64 *from, u64 n) {
  V w[WORDS];
  load(w, from, n);
  const M valid = (1u << n) - 1, stuck = valid & NOT(expand(t, w, valid));
  if (stuck && !t->traced && !t->search->dead_closed) {
    const M dead = stuck & NOT(terminal(w));
    if (dead) keep_lanes(t->dead, w, dead, 0, t->search->depth - 1);
  }
}

/* The next piece of the present level; its length, 0 at the end. */
static u64 take(Search *s, const u64 **from) {
  Level *level = &s->levels[s->depth - 1];
  u64 n = 0;
  pthread_mutex_lock(&s->lock);
  for (; s->at_block < level->count; s->at_block++, s->at_state = 0) {
    Block *b = level->blocks[s->at_block];
    if (s->at_state >= b->count) continue;
    if (fetch_block(s, b)) {
      ask_to_stop(s, s->error_number == ENOMEM ? NO_MEMORY : NO_FILE);
      break;
    }
    if (s->resident > s->resident_limit) ask_to_stop(s, BLOCKS_ARE_MANY);
    n = b->count - s->at_state < PIECE ? b->count - s->at_state : PIECE;
    *from = b->data + s->at_state * WORDS;
    s->at_state += n;
    s->expanded += n;
    break;
  }
  pthread_mutex_unlock(&s->lock);
  return n;
}

static void *work(void *argument) {
  Worker *t = argument;
  Search *s = t->search;
  while (!__atomic_load_n(&s->stop, __ATOMIC_RELAXED)) {
    const u64 *from;
    const u64 n = take(s, &from);
    if (!n) break;
    for (u64 i = 0; i < n; i += LANES) {
      if (t->n + LANES * INSTANCES + LANES > t->room) enter(t);
      expand_lanes(t, from + i * WORDS, n - i < LANES ? n - i : LANES);
    }
    if (now() > s->deadline) ask_to_stop(s, TIME_IS_UP);
  }
  enter(t);
  return NULL;
}

static void gather(Search *s) {
  for (int i = 0; i < s->threads; i++) {
    Worker *t = &s->workers[i];
    for (int k = 0; k < INSTANCES; k++) s->taken[k] += t->taken[k];
    memset(t->taken, 0, sizeof t->taken);
    for (int k = 0; k < PROPERTIES; k++)
      if (t->looked[k].found) keep_smallest(&s->looked[k], t->looked[k].words, 0, t->looked[k].depth);
    for (int k = 0; k < CHECKS; k++)
      if (t->failed[k].found)
        keep_smallest(&s->failed[k], t->failed[k].words, t->failed[k].instance, t->failed[k].depth);
    if (t->dead->found) keep_smallest(&s->dead, t->dead->words, 0, t->dead->depth);
    memset(t->looked, 0, PROPERTIES * sizeof(Sight));
    memset(t->failed, 0, CHECKS * sizeof(Sight));
    memset(t->dead, 0, sizeof(Sight));
  }
  Level *l = &s->levels[s->depth];
  l->states = 0;
  for (u64 i = 0; i < l->count; i++) l->states += l->blocks[i]->count;
}

/* Expands the present level for so long, or until something is needed; why it stopped. GO_ON: the level is
 * at its end. */
int run(Search *s, u64 nanoseconds, u64 full_at, u64 resident_limit) {
  s->stop = s->error_number = 0;
  s->deadline = now() + nanoseconds;
  s->full_at = full_at;
  s->resident_limit = resident_limit;
  const u64 left = s->levels[s->depth - 1].states - s->expanded;
  const u64 useful = left / (2 * PIECE) + 1;
  const int threads = useful < (u64)s->threads ? (int)useful : s->threads;
  pthread_t ids[threads];
  s->active = threads;
  int started = 0;
  while (started + 1 < threads && pthread_create(&ids[started], NULL, work, &s->workers[started + 1]) == 0)
    started++;
  work(&s->workers[0]);
  for (int i = 0; i < started; i++) pthread_join(ids[i], NULL);
  gather(s);
  return s->stop;
}

/* Goes on to the next level. 1, or 0 when it is empty, or -1 when there is no memory. */
int next_level(Search *s) {
  close_blocks(s);
  for (int k = 0; k < PROPERTIES; k++) s->closed[k] |= (u8)s->looked[k].found;
  for (int k = 0; k < CHECKS; k++) s->failed_closed[k] |= (u8)s->failed[k].found;
  s->dead_closed |= (u8)s->dead.found;
  if (s->levels[s->depth].states == 0) return 0;
  if (add_level(s)) return -1;
  s->at_block = s->at_state = s->expanded = 0;
  return 1;
}

