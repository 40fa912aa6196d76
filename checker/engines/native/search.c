/* Breadth-first search over the machine printed above: every state once, exactly.
 *
 * The states seen lie in an open-addressed table, a state being WORDS words. The levels keep them a second
 * time, in blocks, which may be written to a file and dropped from memory. Threads take pieces of the present
 * level and fill blocks of the next one; nothing they report depends on the order in which they do. */

#define NONE UINT64_MAX
#define PIECE 256             /* states a thread takes at a time */
#define AHEAD 40              /* table entries fetched ahead */
#define OCCUPIED (1ull << 63) /* in the first word of an entry: it holds a state, */
#define READY (1ull << 62)    /* and all words of it are written */
#define KEY_FLAGS (WORDS == 1 ? OCCUPIED : OCCUPIED | READY)
#define HUGE_PAGE (1ull << 21)

enum { GO_ON = 0, TIME_IS_UP = 1, TABLE_IS_FULL = 2, BLOCKS_ARE_MANY = 4, NO_MEMORY = 8, NO_FILE = 16 };

typedef struct Block {
  u64 *data;  /* NULL while only the file has it */
  u64 count, room;
  i64 offset; /* in the file, -1 before it is written */
} Block;

typedef struct {
  Block **blocks;
  u64 count, room;
  u64 states; /* kept up to date at the end of each run */
} Level;

typedef struct Sight {
  u64 found; /* 1 when found */
  u64 depth; /* of the state */
  u64 instance;
  u64 words[WORDS];
} Sight;

struct Search {
  u64 *table, slots;
  int log2;
  Level *levels; /* the last one is being filled, the one before expanded */
  u64 depth;     /* number of levels, less one */
  u64 levels_room;
  u64 at_block, at_state, expanded; /* next state to expand, and how many of the level were taken */
  u64 states, full_at;              /* states seen; the number at which a run stops */
  u64 resident, resident_limit;     /* bytes of blocks in memory */
  int stop, error_number;
  int threads, active;
  int file;
  i64 file_end;
  u64 deadline;
  u64 taken[INSTANCES];
  Sight looked[PROPERTIES], failed[CHECKS], dead;
  u8 closed[PROPERTIES], failed_closed[CHECKS], dead_closed;
  u8 outside[CELLS];
  Worker *workers;
  u32 *numbers; /* by slot, when the states are numbered */
  pthread_mutex_t lock;
};

static u64 now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (u64)t.tv_sec * 1000000000u + (u64)t.tv_nsec;
}

static void ask_to_stop(Search *s, int why) { __atomic_fetch_or(&s->stop, why, __ATOMIC_RELAXED); }

/* ------------------------------------------------------------------ the table */

static inline u64 mix(u64 h) {
  h ^= h >> 32;
  h *= 0x9E3779B97F4A7C15ull;
  h ^= h >> 29;
  return h * 0xBF58476D1CE4E5B9ull;
}

static inline u64 hash_at(u64 *const *out, u64 j) {
  u64 h = mix(out[0][j]);
  for (int k = 1; k < WORDS; k++) h = mix(h ^ out[k][j]);
  return h;
}

static u64 hash_of(const u64 *words) {
  u64 h = mix(words[0]);
  for (int k = 1; k < WORDS; k++) h = mix(h ^ words[k]);
  return h;
}

static u64 *new_table(u64 slots) {
  u64 bytes = slots * WORDS * sizeof(u64);
  void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (p == MAP_FAILED) return NULL;
#ifdef MADV_HUGEPAGE
  if (bytes >= 2 * HUGE_PAGE) madvise(p, bytes, MADV_HUGEPAGE);
#endif
  return p;
}

static inline void pause_a_little(void) {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#endif
}

static inline int same_rest(const u64 *entry, const u64 *state) {
  for (int k = 1; k < WORDS; k++)
    if (entry[k] != state[k]) return 0;
  return 1;
}

/* Where an entry is looked for first. With eight lanes, entries that divide a cache line are compared a line at
 * a time; else one after another. In both cases the search ends at an empty entry, and the order of the places
 * is that of the hashes, which makes the table grow from front to back. */
#define BY_LINE (LANES == 8 && (WORDS == 1 || WORDS == 2 || WORDS == 4))
#define PER_LINE (8 / WORDS)

static inline u64 place(const Search *s, u64 hash) {
  const u64 slot = hash >> (64 - s->log2);
  return BY_LINE ? slot & ~(u64)(PER_LINE - 1) : slot;
}

#if BY_LINE
/* The words of a state, again and again. */
static inline V repeated(const u64 *state) {
  const i64 key = (i64)(state[0] | KEY_FLAGS);
#if WORDS == 1
  return K(key);
#elif WORDS == 2
  return (V)_mm512_broadcast_i64x2(_mm_set_epi64x((i64)state[1], key));
#else
  return (V)_mm512_broadcast_i64x4(_mm256_set_epi64x((i64)state[3], (i64)state[2], (i64)state[1], key));
#endif
}

/* The lanes at which an entry begins that equals the state. */
static inline M equal_entries(V line, V state) {
  M equal = EQ(line, state);
  if (WORDS >= 2) equal &= equal >> 1;
  if (WORDS >= 4) equal &= equal >> 2;
  return WORDS == 1 ? equal : WORDS == 2 ? equal & 0x55 : equal & 0x11;
}

static inline M empty_entries(V line) {
  const M empty = EQ(line, K(0));
  return WORDS == 1 ? empty : WORDS == 2 ? empty & 0x55 : empty & 0x11;
}
#endif

/* Whether the state is new; enters it if so. ``first`` is its place. */
static inline int insert(Search *s, u64 first, const u64 *state, const int shared) {
  const u64 last = s->slots - 1, key = state[0] | KEY_FLAGS;
  const u64 claim = WORDS == 1 ? key : state[0] | OCCUPIED;
#if BY_LINE
  const V wanted = repeated(state);
  for (u64 at = first;;) {
    u64 *entries = s->table + at * WORDS;
    /* read once: an entry that fills up between two looks at the line would be missed by both */
    const V line = *(const volatile V *)entries;
    const M empty = empty_entries(line);
    if (!shared) {
      if (equal_entries(line, wanted)) return 0;
      if (empty) {
        u64 *entry = entries + __builtin_ctz(empty);
        entry[0] = key;
        for (int k = 1; k < WORDS; k++) entry[k] = state[k];
        return 1;
      }
    } else {
#if WORDS == 1
      if (equal_entries(line, wanted)) return 0;
#else
      /* the words of a line may have been read in any order, so an entry that looks right is read again */
      const M begins = WORDS == 2 ? 0x55 : 0x11;
      if (EQ(line, K((i64)claim)) & begins) { /* perhaps this state, being written by another thread */
        pause_a_little();
        __atomic_signal_fence(__ATOMIC_SEQ_CST);
        continue;
      }
      for (M m = EQ(line, K((i64)key)) & begins; m; m &= m - 1) {
        const u64 *entry = entries + __builtin_ctz(m);
        if (__atomic_load_n(entry, __ATOMIC_ACQUIRE) == key && same_rest(entry, state)) return 0;
      }
#endif
      if (empty) {
        u64 *entry = entries + __builtin_ctz(empty), found = 0;
        if (__atomic_compare_exchange_n(entry, &found, claim, 0, __ATOMIC_ACQUIRE, __ATOMIC_ACQUIRE)) {
          if (WORDS > 1) {
            for (int k = 1; k < WORDS; k++) __atomic_store_n(entry + k, state[k], __ATOMIC_RELAXED);
            __atomic_store_n(entry, key, __ATOMIC_RELEASE);
          }
          return 1;
        }
        continue; /* taken meanwhile: look at the line again */
      }
    }
    at = (at + PER_LINE) & last;
  }
#else
  for (u64 at = first;; at = (at + 1) & last) {
    u64 *entry = s->table + at * WORDS;
    if (!shared) {
      if (entry[0] == key && same_rest(entry, state)) return 0;
      if (entry[0] == 0) {
        entry[0] = key;
        for (int k = 1; k < WORDS; k++) entry[k] = state[k];
        return 1;
      }
      continue;
    }
    u64 found = __atomic_load_n(entry, __ATOMIC_ACQUIRE);
    if (found == 0) {
      if (__atomic_compare_exchange_n(entry, &found, claim, 0, __ATOMIC_ACQUIRE, __ATOMIC_ACQUIRE)) {
        if (WORDS > 1) {
          for (int k = 1; k < WORDS; k++) entry[k] = state[k];
          __atomic_store_n(entry, key, __ATOMIC_RELEASE);
        }
        return 1;
      }
    }
    if (WORDS > 1 && found == claim) /* another thread is writing what may be this state */
      while ((found = __atomic_load_n(entry, __ATOMIC_ACQUIRE)) != key) pause_a_little();
    if (found == key && same_rest(entry, state)) return 0;
  }
#endif
}

static u64 slot_of(const Search *s, const u64 *state) {
  const u64 last = s->slots - 1, key = state[0] | KEY_FLAGS;
  for (u64 at = place(s, hash_of(state));; at = (at + 1) & last) {
    const u64 *entry = s->table + at * WORDS;
    if (entry[0] == key && same_rest(entry, state)) return at;
    if (entry[0] == 0) return NONE;
  }
}

typedef struct {
  Search *search;
  u64 *old, first, end;
} Move;

/* Moves the entries of a range of the old table. Slots of choice keep their order when a table doubles, so
 * both tables are walked from front to back, and what was moved is given back. */
static void *move_range(void *argument) {
  Move *m = argument;
  Search *s = m->search;
  const u64 page = HUGE_PAGE / (WORDS * sizeof(u64));
  u64 given_back = (m->first + page - 1) / page * page;
  for (u64 at = m->first; at < m->end; at++) {
    const u64 *entry = m->old + at * WORDS;
    if (entry[0] != 0) {
      u64 state[WORDS];
      memcpy(state, entry, sizeof state);
      state[0] &= ~(u64)KEY_FLAGS;
      const u64 first = place(s, hash_of(state));
      if (s->active > 1)
        insert(s, first, state, 1);
      else
        insert(s, first, state, 0);
    }
    if (at + 1 == given_back + page) {
      madvise(m->old + given_back * WORDS, HUGE_PAGE, MADV_DONTNEED);
      given_back += page;
    }
  }
  return NULL;
}

/* Doubles the table ``times`` times. 0, or -1 when there is no memory. */
int grow(Search *s, int times) {
  u64 *old = s->table, old_slots = s->slots;
  u64 *fresh = new_table(old_slots << times);
  if (!fresh) return -1;
  s->table = fresh;
  s->log2 += times;
  s->slots = old_slots << times;
  const int threads = old_slots >= 1 << 18 ? s->threads : 1;
  Move moves[threads];
  pthread_t ids[threads];
  s->active = threads;
  for (int i = 0; i < threads; i++) {
    moves[i] = (Move){s, old, old_slots * (u64)i / (u64)threads, old_slots * (u64)(i + 1) / (u64)threads};
    if (i + 1 == threads || pthread_create(&ids[i], NULL, move_range, &moves[i]) != 0) {
      ids[i] = pthread_self();
      move_range(&moves[i]);
    }
  }
  for (int i = 0; i < threads; i++)
    if (!pthread_equal(ids[i], pthread_self())) pthread_join(ids[i], NULL);
  munmap(old, old_slots * WORDS * sizeof(u64));
  return 0;
}

/* ------------------------------------------------------------------ levels and blocks */

static int add_block(Level *level, Block *block) {
  if (level->count == level->room) {
    u64 room = level->room ? 2 * level->room : 4;
    Block **blocks = realloc(level->blocks, room * sizeof *blocks);
    if (!blocks) return -1;
    level->blocks = blocks;
    level->room = room;
  }
  level->blocks[level->count++] = block;
  return 0;
}

static int add_level(Search *s) {
  if (s->depth + 1 >= s->levels_room) {
    u64 room = 2 * s->levels_room + 8;
    Level *levels = realloc(s->levels, room * sizeof *levels);
    if (!levels) return -1;
    s->levels = levels;
    s->levels_room = room;
  }
  memset(&s->levels[++s->depth], 0, sizeof(Level));
  return 0;
}

/* A block for new states, at the end of the last level. Larger levels get larger blocks. */
static Block *new_block(Search *s) {
  Block *b = malloc(sizeof *b);
  u64 room = s->depth ? s->levels[s->depth - 1].states / (4 * (u64)s->threads) : 0;
  room = room < 512 ? 512 : room > 65536 / WORDS ? 65536 / WORDS : room;
  u64 *data = b ? malloc(room * WORDS * sizeof(u64)) : NULL;
  if (!data) {
    free(b);
    return NULL;
  }
  *b = (Block){data, 0, room, -1};
  pthread_mutex_lock(&s->lock);
  int failed = add_block(&s->levels[s->depth], b);
  s->resident += room * WORDS * sizeof(u64);
  const int many = s->resident > s->resident_limit;
  pthread_mutex_unlock(&s->lock);
  if (failed) {
    free(data);
    free(b);
    return NULL;
  }
  if (many) ask_to_stop(s, BLOCKS_ARE_MANY);
  return b;
}

static void drop_data(Search *s, Block *b) {
  if (b->data) s->resident -= b->room * WORDS * sizeof(u64);
  free(b->data);
  b->data = NULL;
}

/* Reads a block back from the file. 0, or -1 with error_number set. */
static int fetch_block(Search *s, Block *b) {
  if (b->data) return 0;
  u64 bytes = b->count * WORDS * sizeof(u64);
  char *data = malloc(bytes);
  if (!data) {
    s->error_number = ENOMEM;
    return -1;
  }
  for (u64 done = 0; done < bytes;) {
    ssize_t n = pread(s->file, data + done, bytes - done, b->offset + (i64)done);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) {
      s->error_number = n ? errno : EIO;
      free(data);
      return -1;
    }
    done += (u64)n;
  }
  b->data = (u64 *)data;
  b->room = b->count;
  s->resident += bytes;
  return 0;
}

static int write_block(Search *s, Block *b) {
  if (b->offset >= 0 || b->count == 0) return 0;
  u64 bytes = b->count * WORDS * sizeof(u64);
  for (u64 done = 0; done < bytes;) {
    ssize_t n = pwrite(s->file, (char *)b->data + done, bytes - done, s->file_end + (i64)done);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) {
      s->error_number = n ? errno : EIO;
      return -1;
    }
    done += (u64)n;
  }
  b->offset = s->file_end;
  s->file_end += (i64)bytes;
  return 0;
}

/* Ends the blocks that threads were filling; what they do not need is given back. */
static void close_blocks(Search *s) {
  for (int i = 0; i < s->threads; i++) {
    Block *b = s->workers[i].block;
    s->workers[i].block = NULL;
    if (!b || b->count == b->room || !b->data) continue;
    u64 *data = realloc(b->data, (b->count ? b->count : 1) * WORDS * sizeof(u64));
    if (!data) continue;
    s->resident -= (b->room - b->count) * WORDS * sizeof(u64);
    b->data = data;
    b->room = b->count;
  }
}

/* Writes every block that is not in the file yet, level by level. 0, or -1 with error_number set. */
int save(Search *s) {
  close_blocks(s);
  for (u64 d = 0; d <= s->depth; d++)
    for (u64 i = 0; i < s->levels[d].count; i++)
      if (write_block(s, s->levels[d].blocks[i])) return -1;
  return 0;
}

/* Saves, then drops blocks until ``keep`` bytes are left: first those that are needed last. */
int spill(Search *s, u64 keep) {
  if (save(s)) return -1;
  const u64 present = s->depth ? s->depth - 1 : 0;
  for (u64 d = 0; d < present && s->resident > keep; d++)
    for (u64 i = 0; i < s->levels[d].count && s->resident > keep; i++) drop_data(s, s->levels[d].blocks[i]);
  Level *l = &s->levels[present];
  for (u64 i = 0; i < s->at_block && i < l->count && s->resident > keep; i++) drop_data(s, l->blocks[i]);
  l = &s->levels[s->depth];
  for (u64 i = l->count; i > 0 && s->resident > keep; i--) drop_data(s, l->blocks[i - 1]);
  l = &s->levels[present];
  for (u64 i = l->count; i > 0 && s->resident > keep; i--) drop_data(s, l->blocks[i - 1]);
  return 0;
}

/* ------------------------------------------------------------------ what the machine's code calls */

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

/* ------------------------------------------------------------------ expanding and entering */

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

/* ------------------------------------------------------------------ beginning and end */

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

/* ------------------------------------------------------------------ looking back */

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

/* ------------------------------------------------------------------ the explored graph */

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
