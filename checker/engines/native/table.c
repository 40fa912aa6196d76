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

