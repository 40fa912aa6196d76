/* Looking at levels again: where states came from, and the graph of all steps. */

static int trace_on(Worker *t) {
  if (!t->from_state) t->from_state = malloc((t->room + LANES) * sizeof(u32));
  if (!t->from_instance) t->from_instance = malloc((t->room + LANES) * sizeof(u32));
  t->traced = t->from_state && t->from_instance;
  return t->traced ? 0 : -1;
}

static void match(Worker *t, const Block *b, u64 n_targets, const u64 *targets, Sight *came, const u8 *filter) {
  canonical_all(t);
  for (u64 j = 0; j < t->n; j++) {
    if (!filter[hash_at(t->out, j) >> 52]) continue;
    for (u64 i = 0; i < n_targets; i++) {
      int same = 1;
      for (int k = 0; k < WORDS; k++) same &= t->out[k][j] == targets[i * WORDS + (u64)k];
      if (same) keep_smallest(&came[i], b->data + t->from_state[j] * WORDS, t->from_instance[j], 0);
    }
  }
  t->n = 0;
}

/* For each target, the smallest state of the level (and then instance) that it is a successor of. 0, or -1
 * with error_number set. */
int predecessors(Search *s, u64 depth, u64 n_targets, const u64 *targets, Sight *came) {
  Worker *t = &s->workers[0];
  u8 filter[4096] = {0};
  u64 kept[INSTANCES];
  if (trace_on(t)) {
    s->error_number = ENOMEM;
    return -1;
  }
  memcpy(kept, t->taken, sizeof kept);
  for (u64 i = 0; i < n_targets; i++) filter[hash_of(targets + i * WORDS) >> 52] = 1;
  int failed = 0;
  for (u64 k = 0; k < s->levels[depth].count && !failed; k++) {
    Block *b = s->levels[depth].blocks[k];
    const int there = b->data != NULL;
    if ((failed = fetch_block(s, b))) break;
    for (u64 i = 0; i < b->count; i += LANES) {
      if (t->n + LANES * INSTANCES + LANES > t->room) match(t, b, n_targets, targets, came, filter);
      t->base = i;
      expand_lanes(t, b->data + i * WORDS, b->count - i < LANES ? b->count - i : LANES);
    }
    match(t, b, n_targets, targets, came, filter);
    if (!there) drop_data(s, b);
  }
  memcpy(t->taken, kept, sizeof kept);
  t->traced = 0;
  return failed;
}

/* Numbers the states in the order of the levels. 0, or -1 with error_number set. */
int number_states(Search *s) {
  free(s->numbers);
  s->numbers = malloc(s->slots * sizeof(u32));
  if (!s->numbers || s->states > UINT32_MAX) {
    s->error_number = ENOMEM;
    return -1;
  }
  u32 number = 0;
  for (u64 d = 0; d <= s->depth; d++)
    for (u64 k = 0; k < s->levels[d].count; k++) {
      Block *b = s->levels[d].blocks[k];
      if (fetch_block(s, b)) return -1;
      for (u64 i = 0; i < b->count; i++) s->numbers[slot_of(s, b->data + i * WORDS)] = number++;
    }
  return 0;
}

/* The states of a level, one after another. */
int copy_level(Search *s, u64 depth, u64 *out) {
  for (u64 k = 0; k < s->levels[depth].count; k++) {
    Block *b = s->levels[depth].blocks[k];
    if (fetch_block(s, b)) return -1;
    memcpy(out, b->data, b->count * WORDS * sizeof(u64));
    out += b->count * WORDS;
  }
  return 0;
}

/* The steps out of n states: numbers of the states they come from (counted from 0), instances, and numbers of
 * the states they lead to. How many, at most n * INSTANCES; -1 when there is no memory. */
i64 steps_of(Search *s, const u64 *states, u64 n, u32 *source, u32 *instance, u32 *target) {
  Worker *t = &s->workers[0];
  u64 kept[INSTANCES], count = 0;
  if (trace_on(t)) return -1;
  memcpy(kept, t->taken, sizeof kept);
  for (u64 i = 0; i < n; i += LANES) {
    t->base = i;
    expand_lanes(t, states + i * WORDS, n - i < LANES ? n - i : LANES);
    canonical_all(t);
    for (u64 j = 0; j < t->n; j++, count++) {
      u64 state[WORDS];
      for (int k = 0; k < WORDS; k++) state[k] = t->out[k][j];
      source[count] = t->from_state[j];
      instance[count] = t->from_instance[j];
      target[count] = s->numbers[slot_of(s, state)];
    }
    t->n = 0;
  }
  memcpy(t->taken, kept, sizeof kept);
  t->traced = 0;
  return (i64)count;
}
