/* The states seen, exactly. Entries are never removed, and a bucket fills from its first entry on: a key is
 * missing when the first bucket with an empty entry on its way does not hold it.
 *
 * One-word keys are kept whole (plus 1), four to a sector, or narrow, eight to a sector: a key is mixed by a
 * bijection, its upper bits choose the home bucket, and the entry holds the lower bits and how many strides the
 * bucket lies from home, which together give the key back. Longer keys are claimed by their first word, written, and released. */

#define OCCUPIED (1ull << 63) /* in the first word of a long entry: it holds a key, */
#define READY (1ull << 62)    /* and all of it is written */
#define STRIDE (KEY_WORDS <= 2 ? KEY_WORDS : (KEY_WORDS + 3) / 4 * 4)
#define PER_BUCKET (KEY_WORDS == 1 ? 4 : KEY_WORDS == 2 ? 2 : 1)

FUNCTION inline u64 mix(u64 h) {
  h ^= h >> 32;
  h *= 0x9E3779B97F4A7C15ull;
  h ^= h >> 29;
  h *= 0xBF58476D1CE4E5B9ull;
  return h ^ (h >> 32);
}

FUNCTION inline u64 hash_key(const u64 *key) {
  u64 h = mix(key[0]);
  for (int k = 1; k < KEY_WORDS; k++) h = mix(h ^ key[k]);
  return h;
}

/* A bijection of the numbers of KEY_BITS bits, and its inverse. */
FUNCTION inline u64 scramble(u64 x) {
  x ^= x >> KEY_SHIFT;
  x = (x * KEY_FACTOR_1) & KEY_MASK;
  x ^= x >> KEY_SHIFT;
  x = (x * KEY_FACTOR_2) & KEY_MASK;
  return x ^ (x >> KEY_SHIFT);
}

FUNCTION inline u64 unscramble(u64 x) {
  x ^= x >> KEY_SHIFT;
  x = (x * KEY_INVERSE_2) & KEY_MASK;
  x ^= x >> KEY_SHIFT;
  x = (x * KEY_INVERSE_1) & KEY_MASK;
  return x ^ (x >> KEY_SHIFT);
}

/* From one bucket to the next one of a key: different keys take different ways, so full buckets do not gather. All
 * of them are near, in the same page of memory. */
FUNCTION inline u64 stride_of(u64 rest) { return (rest & 1023) * 2 + 1; }

enum { KNOWN, NEW, LOST };

FUNCTION inline int insert_whole(u64 *entries, u64 log2, u64 key) {
  const u64 last = (1ull << log2) - 1, entry = key + 1;
  u64 b = mix(key) >> (64 - log2);
  for (u64 tried = 0; tried <= last; tried++, b = (b + 1) & last) {
    u64 *bucket = entries + 4 * b, e[4];
    look4(bucket, e);
    if (e[0] == entry || e[1] == entry || e[2] == entry || e[3] == entry) return KNOWN;
#pragma unroll
    for (int k = 0; k < 4; k++)
      if (e[k] == 0) {
        const u64 was = swap_if(bucket + k, (u64)0, entry);
        if (was == 0) return NEW;
        if (was == entry) return KNOWN;
      }
  }
  return LOST;
}

FUNCTION inline int insert_narrow(const Table *t, u64 key, u64 *spilled) {
  const u64 x = scramble(key), low = KEY_BITS - t->log2, last = (1ull << t->log2) - 1;
  const u64 rest = x & ((1ull << low) - 1), stride = stride_of(rest);
  u64 b = x >> low;
  u32 entry = (u32)(rest * t->reach) + 1;
  for (u64 d = 0; d < t->reach; d++, b = (b + stride) & last, entry++) {
    u32 *bucket = (u32 *)t->entries + 8 * b, e[8];
    look8(bucket, e);
    bool known = false;
#pragma unroll
    for (int k = 0; k < 8; k++) known |= e[k] == entry;
    if (known) return KNOWN;
#pragma unroll
    for (int k = 0; k < 8; k++)
      if (e[k] == 0) {
        const u32 was = swap_if(bucket + k, 0u, entry);
        if (was == 0) return NEW;
        if (was == entry) return KNOWN;
      }
  }
  const int answer = insert_whole(t->spill, t->spill_log2, key);
  if (answer == NEW) add_to(spilled, 1ull);
  return answer;
}

#if KEY_WORDS > 1
FUNCTION inline int insert_long(const Table *t, const u64 *key) {
  const u64 last = PER_BUCKET * (1ull << t->log2) - 1, claim = key[0] | OCCUPIED, ready = claim | READY;
  u64 at = (hash_key(key) >> (64 - t->log2)) * PER_BUCKET;
  for (u64 tried = 0; tried <= last;) {
    u64 *entry = t->entries + at * STRIDE;
    u64 first = fresh_look(entry);
    if (first == 0) {
      first = swap_if(entry, (u64)0, claim);
      if (first == 0) {
        for (int k = 1; k < KEY_WORDS; k++) publish(entry + k, key[k]);
        fence();
        publish(entry, ready);
        return NEW;
      }
    }
    if (first == claim) continue; /* perhaps this key, being written: look again */
    if (first == ready) {
      fence();
      bool same = true;
      for (int k = 1; k < KEY_WORDS; k++) same &= fresh_look(entry + k) == key[k];
      if (same) return KNOWN;
    }
    at = (at + 1) & last;
    tried++;
  }
  return LOST;
}
#endif

/* Whether the key is new; it is known afterwards. */
FUNCTION inline bool enter_key(const Params *p, const u64 *key) {
#if KEY_WORDS > 1
  const int answer = insert_long(&p->table, key);
#else
  const int answer = p->table.reach ? insert_narrow(&p->table, key[0], p->counters + C_SPILL)
                                    : insert_whole(p->table.entries, p->table.log2, key[0]);
#endif
  if (answer == LOST) add_to(p->counters + C_LOST, 1ull);
  return answer == NEW;
}

FUNCTION inline void move_whole(const Params &p, const u64 *entries, u64 entry_count) {
  for (u64 i = FIRST_THREAD; i < entry_count; i += ALL_THREADS)
    if (entries[i]) {
      const u64 key = entries[i] - 1;
      enter_key(&p, &key);
    }
}

/* Enters what the old table holds into the new one. */
KERNEL(move_table) {
#if KEY_WORDS > 1
  for (u64 i = FIRST_THREAD; i < PER_BUCKET * (1ull << p.old.log2); i += ALL_THREADS) {
    const u64 *entry = p.old.entries + i * STRIDE;
    if (!entry[0]) continue;
    u64 key[KEY_WORDS];
    for (int k = 0; k < KEY_WORDS; k++) key[k] = entry[k];
    key[0] &= ~(OCCUPIED | READY);
    enter_key(&p, key);
  }
#else
  if (!p.old.reach) {
    move_whole(p, p.old.entries, 4ull << p.old.log2);
    return;
  }
  const u64 low = KEY_BITS - p.old.log2, last = (1ull << p.old.log2) - 1;
  for (u64 i = FIRST_THREAD; i < 8ull << p.old.log2; i += ALL_THREADS) {
    const u32 entry = ((const u32 *)p.old.entries)[i];
    if (!entry) continue;
    const u64 rest = (entry - 1) / p.old.reach, d = (entry - 1) % p.old.reach;
    const u64 key = unscramble(((((i >> 3) - d * stride_of(rest)) & last) << low) | rest);
    enter_key(&p, &key);
  }
  move_whole(p, p.old.spill, 4ull << p.old.spill_log2);
#endif
}
