/* Beginning, going on from a checkpoint, and ending: what is called from outside. */

void close_search(Search *s) {
  if (!s) return;
  for (u64 d = 0; s->levels && d <= s->depth; d++) {
    for (u64 i = 0; i < s->levels[d].count; i++) {
      free(s->levels[d].blocks[i]->data);
      free(s->levels[d].blocks[i]);
    }
    free(s->levels[d].blocks);
  }
  for (int i = 0; s->workers && i < s->threads; i++) {
    Worker *t = &s->workers[i];
    for (int k = 0; k < WORDS; k++) free(t->out[k]);
    free(t->hashes);
    free(t->looked);
    free(t->failed);
    free(t->dead);
    free(t->from_state);
    free(t->from_instance);
  }
  free(s->levels);
  free(s->workers);
  free(s->numbers);
  if (s->table) munmap(s->table, s->slots * WORDS * sizeof(u64));
  pthread_mutex_destroy(&s->lock);
  free(s);
}

/* A search without a state; NULL when there is no memory. ``file`` takes blocks when asked to. */
Search *open_search(int threads, int log2, int file) {
  Search *s = calloc(1, sizeof *s);
  if (!s) return NULL;
  pthread_mutex_init(&s->lock, NULL);
  s->threads = threads;
  s->file = file;
  s->log2 = log2;
  s->slots = 1ull << log2;
  s->table = new_table(s->slots);
  s->workers = calloc((size_t)threads, sizeof(Worker));
  s->levels = calloc(8, sizeof(Level));
  s->levels_room = 8;
  int good = s->table && s->workers && s->levels;
  for (int i = 0; good && i < threads; i++) {
    Worker *t = &s->workers[i];
    t->search = s;
    t->index = i;
    t->room = 2 * (LANES * INSTANCES + LANES);
    if (t->room < BATCH) t->room = BATCH;
    for (int k = 0; k < WORDS; k++) good &= (t->out[k] = calloc(t->room + LANES, sizeof(u64))) != NULL;
    good &= (t->hashes = malloc((t->room + AHEAD) * sizeof(u64))) != NULL;
    good &= (t->looked = calloc(PROPERTIES, sizeof(Sight))) != NULL;
    good &= (t->failed = calloc(CHECKS, sizeof(Sight))) != NULL;
    good &= (t->dead = calloc(1, sizeof(Sight))) != NULL;
  }
  if (!good) {
    close_search(s);
    return NULL;
  }
  return s;
}

/* Enters the initial state as level 0 and goes on to it. 0, or -1 when there is no memory. */
int begin(Search *s, const u64 *state) {
  Worker *t = &s->workers[0];
  insert(s, place(s, hash_of(state)), state, 0);
  s->states = 1;
  if (append(t, state)) return -1;
  judge(t);
  gather(s);
  return next_level(s) == 1 ? 0 : -1;
}

/* What a search has found so far, for the caller to read. */
void status(const Search *s, u64 *out) {
  out[0] = s->states;
  out[1] = s->slots;
  out[2] = s->slots * WORDS * sizeof(u64);
  out[3] = s->resident;
  out[4] = s->depth;
  out[5] = s->levels[s->depth - 1].states;
  out[6] = s->expanded;
  out[7] = s->levels[s->depth].states;
  out[8] = (u64)s->file_end;
  out[9] = (u64)s->error_number;
}

u64 level_states(const Search *s, u64 depth) { return s->levels[depth].states; }
void set_file(Search *s, int file) { s->file = file; }
u64 *taken_of(Search *s) { return s->taken; }
Sight *looked_of(Search *s) { return s->looked; }
Sight *failed_of(Search *s) { return s->failed; }
Sight *dead_of(Search *s) { return &s->dead; }
u8 *outside_of(Search *s) { return s->outside; }
u64 buffers(void) {
  u64 room = 2 * (LANES * INSTANCES + LANES);
  return (room < BATCH ? BATCH : room) * (WORDS + 1) * sizeof(u64);
}

/* The representative of a state under the symmetry searched with. */
void representative(u64 *state) {
#if SYMMETRIC
  V w[WORDS];
  load(w, state, 1);
  canonical(w);
  lane_words(w, 0, state);
#else
  (void)state;
#endif
}

/* Goes on where a checkpoint was written: ``counts`` states in each level, one after another in the file, and
 * ``expanded`` of the level before the last. 0, or -1 with error_number set, or the first state that is there
 * twice, plus 1. */
i64 restore(Search *s, u64 levels, const u64 *counts, u64 expanded) {
  i64 number = 0;
  for (u64 d = 0; d < levels; d++) {
    if (d > 0 && add_level(s)) goto no_memory;
    s->levels[d].states = counts[d];
    for (u64 done = 0; done < counts[d];) {
      Block *b = malloc(sizeof *b);
      if (!b) goto no_memory;
      const u64 n = counts[d] - done < 65536 / WORDS ? counts[d] - done : 65536 / WORDS;
      *b = (Block){NULL, n, n, s->file_end};
      if (add_block(&s->levels[d], b)) {
        free(b);
        goto no_memory;
      }
      if (fetch_block(s, b)) return -1;
      for (u64 i = 0; i < n; i++, number++) {
        const u64 *state = b->data + i * WORDS;
        if (i + AHEAD < n) __builtin_prefetch(s->table + place(s, hash_of(state + AHEAD * WORDS)) * WORDS, 1);
        if (!insert(s, place(s, hash_of(state)), state, 0)) return number + 1;
      }
      drop_data(s, b);
      s->states += n;
      s->file_end += (i64)(n * WORDS * sizeof(u64));
      done += n;
    }
  }
  for (int k = 0; k < PROPERTIES; k++) s->closed[k] = (u8)(s->looked[k].found && s->looked[k].depth < s->depth);
  for (int k = 0; k < CHECKS; k++)
    s->failed_closed[k] = (u8)(s->failed[k].found && s->failed[k].depth + 1 < s->depth);
  s->dead_closed = (u8)(s->dead.found && s->dead.depth + 1 < s->depth);
  const Level *present = &s->levels[s->depth - 1];
  s->expanded = expanded;
  for (s->at_state = expanded; s->at_block < present->count; s->at_block++) {
    const u64 n = present->blocks[s->at_block]->count;
    if (s->at_state < n) break;
    s->at_state -= n;
  }
  return 0;
no_memory:
  s->error_number = ENOMEM;
  return -1;
}

