/* The ledger's fast paths for pools, over all slots of an event at once.

Each kernel looks whether the event is ordinary, and only then takes it over: it returns how many slots that are, ODD
after leaving everything as it was (the full rules judge then), ROOM if the key table must grow before, or FEWER if a
holder leaves only some of its slots. They are functions of Python, called with the address of a Pool and with the
numbers of the event as they are.

words.py names the bits of a slot's word; kernels.py defines them here, and numbers.h, ahead of this text. MARK is set
only within a kernel, on slots that were looked at: a slot named twice is seen by it. */

enum { ODD = -1, ROOM = -2, FEWER = -3 };
#define MARK INT64_MIN

/* The layout of PoolState.native: eight bytes each. */
typedef struct { uint64_t tag; uint64_t count; } Entry; /* LABELLED and STORED, times how many */
typedef struct {
    int64_t *words; uint64_t *tags; int64_t slots;
    Entry *table; int64_t bits, used; /* 2**bits entries; no table: its tags are not indexed */
} Pool;

static Pool *pool_at(Object *address) { return (Pool *)(intptr_t)PyLong_AsLongLong(address); }
static Object *answer(int64_t n) { return PyLong_FromLongLong(n); }
static int in(const Pool *p, int64_t slot) { return (uint64_t)slot < (uint64_t)p->slots; }

static int all_in(const Pool *p, const int64_t *at, Size n) {
    int ok = 1;
    for (Size i = 0; i < n; i++) ok &= in(p, at[i]);
    return ok;
}

static void each(const Pool *p, const int64_t *at, Size n, int64_t keep, int64_t add) {
    for (int64_t *words = p->words; n > 0; n--, at++) words[*at] = (words[*at] & keep) + add;
}

/* The key table: tags with the number of labels and of open stores that carry them, none without any. A tag is in the
first free entry from its home on. */

static uint64_t home(const Pool *p, uint64_t tag) { return tag * 0x9E3779B97F4A7C15u >> (64 - p->bits); }

static Entry *entry(const Pool *p, uint64_t tag) {
    uint64_t mask = ((uint64_t)1 << p->bits) - 1, i = home(p, tag);
    while (p->table[i].count && p->table[i].tag != tag) i = (i + 1) & mask;
    return p->table + i;
}

/* Frees the entry `gap`: a later one that can be found only by passing it moves there. */
static void drop(Pool *p, uint64_t gap) {
    uint64_t mask = ((uint64_t)1 << p->bits) - 1, i = gap;
    while (p->table[i = (i + 1) & mask].count)
        if (((i - home(p, p->table[i].tag)) & mask) >= ((i - gap) & mask)) {
            p->table[gap] = p->table[i];
            gap = i;
        }
    p->table[gap].count = 0;
    p->used--;
}

static int full(const Pool *p, Size n) { return p->table && (p->used + n) * 4 > (int64_t)3 << p->bits; }

/* Adds to the count of each tag, or only as long as they are nowhere so far; returns how many that are. */
static Size count(Pool *p, const int64_t *tags, Size n, int64_t mix, int64_t amount, int only_new) {
    for (Size i = 0; i < n; i++) {
        if (i + 16 < n) __builtin_prefetch(p->table + home(p, tags[i + 16] ^ mix), 1);
        Entry *e = entry(p, tags[i] ^ mix);
        if (!e->count) e->tag = tags[i] ^ mix, p->used++;
        else if (only_new) return i;
        e->count += amount;
        if (!e->count) drop(p, e - p->table);
    }
    return n;
}

/* tally(pool, tags, amount): add to the count of each tag. */
static Object *tally(Object *self, Object *const *args) {
    Pool *p = pool_at(args[0]);
    Numbers *a = scratch;
    if (!numbers(args[1], 1, a)) return answer(ODD);
    if (full(p, a->n)) return answer(ROOM);
    return answer(count(p, a->at, a->n, 0, PyLong_AsLongLong(args[2]), 0));
}

/* counted(pool, tag): the count of a tag, 0 for one that is nowhere. */
static Object *counted(Object *self, Object *const *args) {
    return answer(entry(pool_at(args[0]), PyLong_AsUnsignedLongLong(args[1]))->count);
}

/* rebuild(pool, entries, n): the `n` old entries move to the pool's new, empty table. */
static Object *rebuild(Object *self, Object *const *args) {
    Pool *p = pool_at(args[0]);
    Entry *old = (Entry *)(intptr_t)PyLong_AsLongLong(args[1]);
    for (int64_t i = 0, n = PyLong_AsLongLong(args[2]); i < n; i++)
        if (old[i].count) count(p, (int64_t *)&old[i].tag, 1, 0, old[i].count, 0);
    return answer(p->used);
}

/* change(pool, slots, was, becomes): all that is known about the slots changes: from nothing to one holder when they
are given away, from the label to nothing when they are evicted. */
static Object *change(Object *self, Object *const *args) {
    Pool *p = pool_at(args[0]);
    Numbers *a = scratch, *b = a + 1;
    int64_t was = PyLong_AsLongLong(args[2]), becomes = PyLong_AsLongLong(args[3]);
    if (!numbers(args[1], 0, a)) return answer(ODD);
    int64_t *at = a->at, *words = p->words;
    Size n = a->n, i = 0;
    for (; i < n && in(p, at[i]) && words[at[i]] == was; i++) words[at[i]] = becomes;
    if (i < n) {
        each(p, at, i, 0, was);
        return answer(ODD);
    }
    b->n = 0;
    if (was & LABEL && p->table && extend(b, n)) {
        for (i = 0; i < n; i++) b->at[i] = p->tags[at[i]];
        count(p, b->at, n, 0, -LABELLED, 0);
    }
    return answer(n);
}

/* touch(pool, slots): held or labelled slots with content get a holder. Above the low 32 bits: how many had none. */
static Object *touch(Object *self, Object *const *args) {
    Pool *p = pool_at(args[0]);
    Numbers *a = scratch;
    if (!numbers(args[1], 0, a)) return answer(ODD);
    int64_t *at = a->at, *words = p->words, alone = 0;
    Size n = a->n, i = 0;
    for (; i < n && in(p, at[i]); i++) {
        int64_t word = words[at[i]];
        if (word & (MARK | FILLING | BAD | NULL_BLOCK) || !(word & (REFS | LABEL))) break;
        alone += !(word & REFS);
        words[at[i]] |= MARK;
    }
    each(p, at, i, ~MARK, i == n ? REF : 0);
    return answer(i == n ? alone << 32 | n : ODD);
}

/* leave(pool, slots, held, parts, own): a holder leaves all of its slots, `held` of them: those of the lists of numbers
`parts` and of the set `own`. Nothing may use or expect one that nobody holds then; above the low 32 bits: how many
these are. */
static Object *leave(Object *self, Object *const *args) {
    Pool *p = pool_at(args[0]);
    Numbers *a = scratch, *b = a + 1;
    if (!numbers(args[1], 0, a)) return answer(ODD);
    if (a->n != PyLong_AsLongLong(args[2])) return answer(FEWER);
    b->n = 0;
    for (Size i = 0, n = PyList_Size(args[3]); i < n; i++)
        if (!append(PyList_GetItem(args[3], i), 0, b)) return answer(ODD);
    Object *rest = PyObject_GetIter(args[4]), *one;
    while ((one = PyIter_Next(rest))) {
        int64_t *at = extend(b, 1);
        if (at) *at = PyLong_AsLongLong(one);
        Py_DecRef(one);
    }
    Py_DecRef(rest);
    int64_t *at = a->at, *words = p->words, gone = 0;
    Size n = a->n, i = 0;
    if (n != b->n || !all_in(p, b->at, n)) return answer(ODD);
    each(p, b->at, n, ~MARK, MARK);
    for (; i < n && in(p, at[i]) && words[at[i]] & MARK; i++) {
        int64_t word = (words[at[i]] & ~MARK) - REF;
        if (!(word & REFS) && word & ~(int64_t)(LABEL | BAD)) break;
        gone += !(word & REFS);
        words[at[i]] &= ~MARK;
    }
    each(p, b->at, n, ~MARK, i == n ? -REF : 0);
    return answer(i == n ? gone << 32 | n : ODD);
}

/* label(pool, slots, keys, mix): held slots with content and without a label get one. */
static Object *label(Object *self, Object *const *args) {
    Pool *p = pool_at(args[0]);
    Numbers *a = scratch, *b = a + 1;
    uint64_t mix = PyLong_AsUnsignedLongLong(args[3]);
    if (!numbers(args[1], 0, a) || !numbers(args[2], 1, b) || a->n != b->n) return answer(ODD);
    if (full(p, a->n)) return answer(ROOM);
    int64_t *at = a->at, *words = p->words;
    Size n = a->n, i = 0;
    for (; i < n && in(p, at[i]); i++) {
        int64_t word = words[at[i]];
        if (!(word & REFS) || word & (LABEL | FILLING | BAD | NULL_BLOCK)) break;
        words[at[i]] |= LABEL;
    }
    if (i < n) {
        each(p, at, i, ~(int64_t)LABEL, 0);
        return answer(ODD);
    }
    for (i = 0; i < n; i++) p->tags[at[i]] = b->at[i] ^ mix;
    if (p->table) count(p, b->at, n, mix, LABELLED, 0);
    return answer(n);
}

/* queue(src_pool, src, dst_pool, dst, keys, mix, store): a transfer between held slots with content begins. A store
brings tags that its destination neither has nor is being brought; a load, those that its sources are labelled with. */
static Object *queue(Object *self, Object *const *args) {
    Pool *p = pool_at(args[0]), *q = pool_at(args[2]);
    Numbers *a = scratch, *b = a + 1, *c = a + 2;
    uint64_t mix = PyLong_AsUnsignedLongLong(args[5]);
    int store = PyLong_AsLongLong(args[6]) != 0;
    if (!numbers(args[1], 0, a) || !numbers(args[3], 0, b) || !numbers(args[4], 1, c)) return answer(ODD);
    Size n = a->n, i = 0, j = 0, k = 0;
    if (n != b->n || n != c->n) return answer(ODD);
    if (store && full(q, n)) return answer(ROOM);
    int64_t *from = a->at, *to = b->at;
    for (; i < n && in(p, from[i]); i++) {
        int64_t word = p->words[from[i]];
        if (!(word & REFS) || word & (MARK | FILLING | BAD)) break;
        if (!store && word & LABEL && p->tags[from[i]] != ((uint64_t)c->at[i] ^ mix)) break;
        p->words[from[i]] |= MARK;
    }
    for (; i == n && j < n && in(q, to[j]); j++) {
        int64_t word = q->words[to[j]];
        if (!(word & REFS) || word & (FILLING | BAD)) break;
        q->words[to[j]] |= FILLING;
    }
    if (j == n && i == n) k = store ? count(q, c->at, n, mix, STORED, 1) : n;
    int plain = i == n && j == n && k == n;
    each(p, from, i, ~MARK, plain ? BUSY : 0);
    each(q, to, j, plain ? -1 : ~(int64_t)FILLING, plain ? BUSY : 0);
    if (!plain) count(q, c->at, k, mix, -STORED, 0);
    return answer(plain ? n : ODD);
}

/* release(src_pool, src, dst_pool, dst, keys, mix, store): a transfer that `queue` took over is at its end. */
static Object *release(Object *self, Object *const *args) {
    Pool *p = pool_at(args[0]), *q = pool_at(args[2]);
    Numbers *a = scratch, *b = a + 1, *c = a + 2;
    uint64_t mix = PyLong_AsUnsignedLongLong(args[5]);
    if (!numbers(args[1], 0, a) || !numbers(args[3], 0, b) || !numbers(args[4], 1, c)) return answer(ODD);
    if (!all_in(p, a->at, a->n) || !all_in(q, b->at, b->n)) return answer(ODD);
    each(p, a->at, a->n, -1, -BUSY);
    each(q, b->at, b->n, -1, -(BUSY | FILLING));
    if (PyLong_AsLongLong(args[6])) count(q, c->at, c->n, mix, -STORED, 0);
    return answer(a->n);
}

/* run(addresses, requests, tokens, step): each request is ready, and computes so many tokens more in this step. The
dictionary has the address of the Progress of each that is known. */
typedef struct { int64_t ready, computed, last_step; } Progress;

static Object *run(Object *self, Object *const *args) {
    Numbers *a = scratch, *b = a + 1;
    if (!numbers(args[2], 0, b) || b->n != PyList_Size(args[1])) return answer(ODD);
    a->n = 0;
    Progress **runs = (Progress **)extend(a, b->n);
    if (!runs) return answer(ODD);
    for (Size i = 0; i < b->n; i++) {
        Object *address = PyDict_GetItem(args[0], PyList_GetItem(args[1], i));
        runs[i] = address ? (Progress *)(intptr_t)PyLong_AsLongLong(address) : 0;
        if (!runs[i] || !runs[i]->ready) return answer(ODD);
    }
    int64_t step = PyLong_AsLongLong(args[3]);
    for (Size i = 0; i < b->n; i++) runs[i]->computed += b->at[i], runs[i]->last_step = step;
    return answer(b->n);
}

/* consecutive(numbers): how many there are if each is one more than the one before; above the low 32 bits: the
first. */
static Object *consecutive(Object *self, Object *const *args) {
    Numbers *a = scratch;
    if (!numbers(args[0], 0, a)) return answer(ODD);
    for (Size i = 0; i < a->n; i++)
        if (a->at[i] != a->at[0] + i || a->at[i] >> 31) return answer(ODD);
    return answer(a->n ? a->at[0] << 32 | a->n : 0);
}

#define KERNEL(name) {#name, name, FASTCALL, 0}
static Method methods[] = {
    KERNEL(change), KERNEL(touch), KERNEL(leave), KERNEL(label), KERNEL(queue), KERNEL(release),
    KERNEL(tally), KERNEL(counted), KERNEL(rebuild), KERNEL(run), KERNEL(consecutive),
};

/* All kernels, as a tuple of functions of Python; see __name__ of each. */
Object *kernels(void) {
    Size n = sizeof methods / sizeof *methods;
    Object *all = PyTuple_New(n);
    for (Size i = 0; i < n; i++) PyTuple_SetItem(all, i, PyCFunction_NewEx(&methods[i], 0, 0));
    return all;
}
