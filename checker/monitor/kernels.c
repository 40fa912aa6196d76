/* The ledger's short cuts for pools, over all slots of an event at once.

Each kernel looks whether the event is ordinary, and only then takes it over: it returns how many slots that
are, ODD after leaving everything as it was (the full rules judge then), ROOM if the key table must grow before, or
FEWER if a holder leaves only some of its slots. They are functions of Python, called with the address of a Pool and with the numbers of the event as
they are: a list, bytes of packed numbers, or an array.

A slot's word has the bits that pool_state.py names; kernels.py defines them here, ahead of this text. MARK is
set only within a kernel, on slots that were looked at: a slot named twice is seen by it. */

#include <stdint.h>
#include <stdlib.h>

/* What is used of Python's stable binary interface (PEP 384), so that no headers of Python are needed. */

typedef struct Object Object;
typedef intptr_t Size;
typedef struct {
    void *buf; Object *obj; Size len, itemsize; int readonly, ndim;
    char *format; Size *shape, *strides, *suboffsets; void *internal;
} View;
typedef struct { const char *name; void *function; int flags; const char *doc; } Method;

extern char PyList_Type, PyTuple_Type, PyBytes_Type;
extern Object *PyObject_Type(Object *), *PyObject_GetIter(Object *), *PyIter_Next(Object *);
extern Object *PyList_GetItem(Object *, Size), *PyTuple_GetItem(Object *, Size), *PyLong_FromLongLong(long long);
extern Object *PyObject_GetAttr(Object *, Object *), *PyCFunction_NewEx(Method *, Object *, Object *);
extern Object *PyTuple_New(Size);
extern Size PyList_Size(Object *), PyTuple_Size(Object *), PyBytes_Size(Object *);
extern char *PyBytes_AsString(Object *);
extern long long PyLong_AsLongLong(Object *);
extern unsigned long long PyLong_AsUnsignedLongLong(Object *);
extern Object *PyErr_Occurred(void);
extern int PyTuple_SetItem(Object *, Size, Object *), PyObject_GetBuffer(Object *, View *, int);
extern void PyErr_Clear(void), PyBuffer_Release(View *), Py_DecRef(Object *);

enum { ODD = -1, ROOM = -2, FEWER = -3, FASTCALL = 0x80, STRIDED_WITH_FORMAT = 0x1c };
#define MARK INT64_MIN

/* The layout of PoolState.native: eight bytes each. */
typedef struct { uint64_t tag; uint64_t count; } Entry; /* 0: never used; else USED + LABELLED and STORED times */
typedef struct {
    int64_t *words; uint64_t *tags; int64_t slots;
    Entry *table; int64_t bits, used; /* 2**bits entries; no table: its tags are not indexed */
} Pool;

/* Numbers of events. */

typedef struct { int64_t *at; Size n, room; } Numbers;
static _Thread_local Numbers A, B, C;

static int64_t *extend(Numbers *to, Size n) {
    if (to->n + n > to->room) {
        Size room = 2 * (to->n + n) + 256;
        int64_t *at = realloc(to->at, room * sizeof *at);
        if (!at) return 0;
        to->at = at, to->room = room;
    }
    to->n += n;
    return to->at + to->n - n;
}

static int64_t integer(Object *one, int wide) {
    return wide ? (int64_t)PyLong_AsUnsignedLongLong(one) : PyLong_AsLongLong(one);
}

static int of_buffer(Object *from, int wide, Numbers *to) {
    View view;
    if (PyObject_GetBuffer(from, &view, STRIDED_WITH_FORMAT)) { PyErr_Clear(); return 0; }
    const char *format = view.format ? view.format : "B";
    char kind = format[*format == '@' || *format == '<' || *format == '='];
    int is_signed = kind == 'i' || kind == 'l' || kind == 'q';
    int ok = view.ndim == 1 && (is_signed || kind == 'I' || kind == 'L' || kind == 'Q') && (view.itemsize & 12);
    int64_t *at = ok ? extend(to, view.shape[0]) : 0, all = 0;
    if (at) {
        char *p = view.buf;
        Size n = view.shape[0], step = view.strides[0];
        if (view.itemsize == 8) for (Size i = 0; i < n; i++, p += step) all |= at[i] = *(int64_t *)p;
        else if (is_signed) for (Size i = 0; i < n; i++, p += step) all |= at[i] = *(int32_t *)p;
        else for (Size i = 0; i < n; i++, p += step) at[i] = *(uint32_t *)p;
    }
    PyBuffer_Release(&view);
    /* A negative number is no key, and a great unsigned one no slot. */
    return at && !(all < 0 && wide == is_signed);
}

/* Appends the numbers of an object; 0 if they are not whole numbers that fit. */
static int append(Object *from, int wide, Numbers *to) {
    char *type = (char *)PyObject_Type(from);
    Py_DecRef((Object *)type);
    if (type == &PyBytes_Type) {
        Size n = PyBytes_Size(from) / (wide ? 8 : 4);
        char *p = PyBytes_AsString(from);
        int64_t *at = extend(to, n);
        if (!at || PyBytes_Size(from) % (wide ? 8 : 4)) return 0;
        for (Size i = 0; i < n; i++)
            at[i] = wide ? ((int64_t *)p)[i] : (int64_t)((uint32_t *)p)[i];
        return 1;
    }
    int list = type == &PyList_Type;
    if (!list && type != &PyTuple_Type) return of_buffer(from, wide, to);
    Size n = list ? PyList_Size(from) : PyTuple_Size(from);
    int64_t *at = extend(to, n);
    if (!at) return 0;
    for (Size i = 0; i < n; i++) {
        at[i] = integer(list ? PyList_GetItem(from, i) : PyTuple_GetItem(from, i), wide);
        if (at[i] == -1 && PyErr_Occurred()) { PyErr_Clear(); return 0; }
    }
    return 1;
}

static int numbers(Object *from, int wide, Numbers *to) {
    to->n = 0;
    return append(from, wide, to);
}

static Pool *pool_at(Object *address) { return (Pool *)(intptr_t)PyLong_AsLongLong(address); }
static Object *answer(int64_t n) { return PyLong_FromLongLong(n); }
static int in(const Pool *p, int64_t slot) { return (uint64_t)slot < (uint64_t)p->slots; }

static void each(const Pool *p, const int64_t *slots, Size n, int64_t keep, int64_t add) {
    for (Size i = 0; i < n; i++) p->words[slots[i]] = (p->words[slots[i]] & keep) + add;
}

/* The key table: tags with the number of labels and of open stores that carry them. An entry stays where it is
until the table is built anew, also with nothing left to count. */

static Entry *entry(const Pool *p, uint64_t tag) {
    uint64_t mask = ((uint64_t)1 << p->bits) - 1, i = tag * 0x9E3779B97F4A7C15u >> (64 - p->bits);
    while (p->table[i].count && p->table[i].tag != tag) i = (i + 1) & mask;
    return &p->table[i];
}

static Entry *entry_or_new(Pool *p, uint64_t tag) {
    Entry *e = entry(p, tag);
    if (!e->count) e->tag = tag, e->count = USED, p->used++;
    return e;
}

static int full(const Pool *p, Size n) { return p->table && (p->used + n) * 2 > (int64_t)1 << p->bits; }

/* tally(pool, tags, count): add to the count of each tag. */
static Object *tally(Object *self, Object *const *args) {
    Pool *p = pool_at(args[0]);
    if (!numbers(args[1], 1, &A)) return answer(ODD);
    if (full(p, A.n)) return answer(ROOM);
    uint64_t count = PyLong_AsLongLong(args[2]);
    for (Size i = 0; i < A.n; i++) entry_or_new(p, A.at[i])->count += count;
    return answer(A.n);
}

/* counted(pool, tag): the count of a tag, 0 for an unknown one. */
static Object *counted(Object *self, Object *const *args) {
    return answer(entry(pool_at(args[0]), PyLong_AsUnsignedLongLong(args[1]))->count);
}

/* change(pool, slots, was, becomes): all that is known about the slots changes: from nothing to one holder when they
are given away, from the label to nothing when they are evicted. */
static Object *change(Object *self, Object *const *args) {
    Pool *p = pool_at(args[0]);
    int64_t was = PyLong_AsLongLong(args[2]), becomes = PyLong_AsLongLong(args[3]);
    if (!numbers(args[1], 0, &A)) return answer(ODD);
    for (Size i = 0; i < A.n; i++) {
        if (!in(p, A.at[i]) || p->words[A.at[i]] != was) {
            each(p, A.at, i, 0, was);
            return answer(ODD);
        }
        p->words[A.at[i]] = becomes;
    }
    if (was & LABEL && p->table)
        for (Size i = 0; i < A.n; i++) entry(p, p->tags[A.at[i]])->count -= LABELLED;
    return answer(A.n);
}

/* touch(pool, slots): held or labelled slots with content get a holder. Above the low 32 bits: how many had none. */
static Object *touch(Object *self, Object *const *args) {
    Pool *p = pool_at(args[0]);
    if (!numbers(args[1], 0, &A)) return answer(ODD);
    int64_t alone = 0;
    for (Size i = 0; i < A.n; i++) {
        int64_t word = in(p, A.at[i]) ? p->words[A.at[i]] : MARK;
        if (word & (MARK | FILLING | BAD | NULL_BLOCK) || !(word & (REFS | LABEL))) {
            each(p, A.at, i, ~MARK, 0);
            return answer(ODD);
        }
        alone += !(word & REFS);
        p->words[A.at[i]] |= MARK;
    }
    each(p, A.at, A.n, ~MARK, REF);
    return answer(alone << 32 | A.n);
}

/* leave(pool, slots, held, parts, own): a holder leaves all of its slots, `held` of them: those of the lists of numbers
`parts` and of the set `own`. Nothing may use or expect one that nobody holds then; above the low 32 bits: how many
these are. */
static Object *leave(Object *self, Object *const *args) {
    Pool *p = pool_at(args[0]);
    if (!numbers(args[1], 0, &A)) return answer(ODD);
    if (A.n != PyLong_AsLongLong(args[2])) return answer(FEWER);
    B.n = 0;
    for (Size i = 0, n = PyList_Size(args[3]); i < n; i++)
        if (!append(PyList_GetItem(args[3], i), 0, &B)) return answer(ODD);
    Object *rest = PyObject_GetIter(args[4]), *one;
    while ((one = PyIter_Next(rest))) {
        int64_t *at = extend(&B, 1);
        if (at) *at = PyLong_AsLongLong(one);
        Py_DecRef(one);
    }
    Py_DecRef(rest);
    for (Size i = 0; i < B.n; i++) if (!in(p, B.at[i])) return answer(ODD);
    int64_t gone = 0;
    Size i = 0;
    each(p, B.at, B.n, ~MARK, MARK);
    for (; A.n == B.n && i < A.n; i++) {
        int64_t word = in(p, A.at[i]) ? p->words[A.at[i]] : 0;
        if (!(word & MARK)) break;
        word = (word & ~MARK) - REF;
        if (!(word & REFS) && word & ~(int64_t)(LABEL | BAD)) break;
        gone += !(word & REFS);
        p->words[A.at[i]] &= ~MARK;
    }
    int plain = A.n == B.n && i == A.n;
    each(p, B.at, B.n, ~MARK, plain ? -REF : 0);
    return answer(plain ? gone << 32 | A.n : ODD);
}

/* label(pool, slots, keys, mix): held slots with content and without a label get one. */
static Object *label(Object *self, Object *const *args) {
    Pool *p = pool_at(args[0]);
    uint64_t mix = PyLong_AsUnsignedLongLong(args[3]);
    if (!numbers(args[1], 0, &A) || !numbers(args[2], 1, &B) || A.n != B.n) return answer(ODD);
    if (full(p, A.n)) return answer(ROOM);
    for (Size i = 0; i < A.n; i++) {
        int64_t word = in(p, A.at[i]) ? p->words[A.at[i]] : 0;
        if (!(word & REFS) || word & (LABEL | FILLING | BAD | NULL_BLOCK)) {
            each(p, A.at, i, ~(int64_t)LABEL, 0);
            return answer(ODD);
        }
        p->words[A.at[i]] |= LABEL;
    }
    for (Size i = 0; i < A.n; i++) {
        uint64_t tag = p->tags[A.at[i]] = B.at[i] ^ mix;
        if (p->table) entry_or_new(p, tag)->count += LABELLED;
    }
    return answer(A.n);
}

/* queue(src_pool, src, dst_pool, dst, keys, mix, store): a transfer between held slots with content begins. A store
brings tags that its destination neither has nor is being brought. */
static Object *queue(Object *self, Object *const *args) {
    Pool *p = pool_at(args[0]), *q = pool_at(args[2]);
    uint64_t mix = PyLong_AsUnsignedLongLong(args[5]);
    int store = PyLong_AsLongLong(args[6]) != 0;
    if (!numbers(args[1], 0, &A) || !numbers(args[3], 0, &B) || !numbers(args[4], 1, &C)) return answer(ODD);
    if (A.n != B.n || A.n != C.n) return answer(ODD);
    if (store && full(q, C.n)) return answer(ROOM);
    Size i, j = 0, k = 0;
    for (i = 0; i < A.n; i++) {
        int64_t word = in(p, A.at[i]) ? p->words[A.at[i]] : 0;
        if (!(word & REFS) || word & (MARK | FILLING | BAD)) break;
        p->words[A.at[i]] |= MARK;
    }
    for (; i == A.n && j < B.n; j++) {
        int64_t word = in(q, B.at[j]) ? q->words[B.at[j]] : 0;
        if (!(word & REFS) || word & (FILLING | BAD)) break;
        q->words[B.at[j]] |= FILLING;
    }
    for (; store && i == A.n && j == B.n && k < C.n; k++) {
        Entry *e = entry_or_new(q, C.at[k] ^ mix);
        if (e->count != USED) break;
        e->count += STORED;
    }
    int plain = i == A.n && j == B.n && (!store || k == C.n);
    each(p, A.at, i, ~MARK, plain ? BUSY : 0);
    each(q, B.at, j, plain ? -1 : ~(int64_t)FILLING, plain ? BUSY : 0);
    while (!plain && k > 0) entry(q, C.at[--k] ^ mix)->count -= STORED;
    return answer(plain ? A.n : ODD);
}

/* release(src_pool, src, dst_pool, dst, keys, mix, store): a transfer that `queue` took over is at its end. */
static Object *release(Object *self, Object *const *args) {
    Pool *p = pool_at(args[0]), *q = pool_at(args[2]);
    uint64_t mix = PyLong_AsUnsignedLongLong(args[5]);
    if (!numbers(args[1], 0, &A) || !numbers(args[3], 0, &B) || !numbers(args[4], 1, &C)) return answer(ODD);
    for (Size i = 0; i < A.n; i++) if (!in(p, A.at[i])) return answer(ODD);
    for (Size i = 0; i < B.n; i++) if (!in(q, B.at[i])) return answer(ODD);
    each(p, A.at, A.n, -1, -BUSY);
    each(q, B.at, B.n, -1, -(BUSY | FILLING));
    if (PyLong_AsLongLong(args[6])) for (Size i = 0; i < C.n; i++) entry(q, C.at[i] ^ mix)->count -= STORED;
    return answer(A.n);
}

/* rebuild(pool, entries, n): the counts of `n` old entries move to the pool's new, empty table. */
static Object *rebuild(Object *self, Object *const *args) {
    Pool *p = pool_at(args[0]);
    Entry *old = (Entry *)(intptr_t)PyLong_AsLongLong(args[1]);
    for (int64_t i = 0, n = PyLong_AsLongLong(args[2]); i < n; i++)
        if (old[i].count > USED) entry_or_new(p, old[i].tag)->count = old[i].count;
    return answer(p->used);
}

/* run(requests, tokens, step, name): each request is ready, and computes so many tokens more in this step. A
request's attribute `name` is the address of its Progress. */
typedef struct { int64_t ready, computed, last_step; } Progress;

static Object *run(Object *self, Object *const *args) {
    if (!numbers(args[1], 0, &B) || B.n != PyList_Size(args[0])) return answer(ODD);
    A.n = 0;
    if (!extend(&A, B.n)) return answer(ODD);
    for (Size i = 0; i < B.n; i++) {
        Object *address = PyObject_GetAttr(PyList_GetItem(args[0], i), args[3]);
        A.at[i] = PyLong_AsLongLong(address);
        Py_DecRef(address);
        if (!((Progress *)(intptr_t)A.at[i])->ready) return answer(ODD);
    }
    int64_t step = PyLong_AsLongLong(args[2]);
    for (Size i = 0; i < B.n; i++) {
        Progress *r = (Progress *)(intptr_t)A.at[i];
        r->computed += B.at[i], r->last_step = step;
    }
    return answer(B.n);
}

/* consecutive(numbers): how many there are if each is one more than the one before; above the low 32 bits: the
first. */
static Object *consecutive(Object *self, Object *const *args) {
    if (!numbers(args[0], 0, &A)) return answer(ODD);
    for (Size i = 0; i < A.n; i++)
        if (A.at[i] != A.at[0] + i || A.at[i] >> 31) return answer(ODD);
    return answer(A.n ? A.at[0] << 32 | A.n : 0);
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
