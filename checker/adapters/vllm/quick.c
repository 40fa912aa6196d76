/* The hooks that every scheduler step goes through, compiled: they do what the hooks in Python of hooks_*.py do.

A Hook stands in a class of vLLM in place of the method `original`. It looks at the ordinary case only; `plain`, the
hook in Python, does the rest. quick.py compiles this text, and says which attributes of vLLM's are read where. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <structmember.h>

typedef PyObject Object;
typedef Py_ssize_t Size;

#define NAMES(F) \
    F(_kvfence_stream) F(_kvfence_tables) F(_kvfence_tap) F(_kvfence_tape) F(_kvfence_tier) F(_load_event_to_reqs) \
    F(_reqs_to_store) F(_store_event_to_blocks) F(_store_event_to_reqs) F(appending) F(blocks) \
    F(cached_block_hash_to_block) F(completed_store_events) F(cpu_block_ids) F(cpu_block_pool) F(end) F(get_one_block) \
    F(finished_recving) F(kv_connector_worker_meta) F(kvfence_in_flight) F(load_event) F(num_computed_tokens) \
    F(num_free_blocks) F(num_scheduled_tokens) F(num_stored_blocks) F(num_tokens) F(queue) F(request) F(request_id) \
    F(scheduled_spec_decode_tokens) F(seen) F(store_event) F(stream) F(tables) F(tap) F(tape) F(trouble) F(turn) F(_block_hash)
#define DECLARE(name) static Object *s_##name;
NAMES(DECLARE)

static Object *get(Object *of, Object *name) { return PyObject_GetAttr(of, name); }

/* Notes. */

/* References in a row that the garbage collector does not count: notes wait for long enough to set it off otherwise,
and then it looks at all that vLLM has made of late. They are in no cycle that lasts: whoever tells them drops them. */
typedef enum { LIST, PAIRS, CALL } Kind; /* what it stands for: a list, a dictionary, or a function and its arguments */
typedef struct {
    PyObject_VAR_HEAD
    Kind kind;
    Object *parts[];
} Cells;
static PyTypeObject CellsType;
#define IS_CELLS(of) (Py_TYPE(of) == &CellsType)

static Cells *cells(Kind kind, Size count) {
    Cells *made = PyObject_NewVar(Cells, &CellsType, count);
    if (!made) return 0;
    made->kind = kind;
    memset(made->parts, 0, count * sizeof *made->parts);
    return made;
}

/* Some parts, borrowed; NULL if one is missing. The last is followed by `END`. */
#define END ((Object *)-1)
static Object *cells_of(Kind kind, ...) {
    va_list all;
    Size count = 0;
    va_start(all, kind);
    while (va_arg(all, Object *) != END) count++;
    va_end(all);
    Cells *made = cells(kind, count);
    va_start(all, kind);
    for (Size i = 0; made && i < count; i++) {
        Object *part = va_arg(all, Object *);
        if (!part) { Py_CLEAR(made); break; }
        made->parts[i] = Py_NewRef(part);
    }
    va_end(all);
    return (Object *)made;
}
#define NOTE(...) cells_of(CALL, __VA_ARGS__, END)
#define ROW(...) cells_of(LIST, __VA_ARGS__, END)

/* What a list or tuple has from `from` to before `to`. */
static Object *some_of(Object *listed, Size from, Size to) {
    Size count = PySequence_Fast_GET_SIZE(listed);
    if (to > count) to = count;
    if (from > to) from = to;
    Cells *made = cells(LIST, to - from);
    for (Size i = from; made && i < to; i++) made->parts[i - from] = Py_NewRef(PySequence_Fast_GET_ITEM(listed, i));
    return (Object *)made;
}

/* All that something iterable has. */
static Object *all_of(Object *things) {
    Object *listed = PySequence_Fast(things, "nothing to list"), *made = listed ? some_of(listed, 0, PY_SSIZE_T_MAX) : 0;
    Py_XDECREF(listed);
    return made;
}

/* A dictionary as it is now. */
static Object *pairs_of(Object *dictionary) {
    Cells *made = cells(PAIRS, 2 * PyDict_GET_SIZE(dictionary));
    Object *key, *value;
    Size place = 0;
    for (Size i = 0; made && PyDict_Next(dictionary, &place, &key, &value); i += 2)
        made->parts[i] = Py_NewRef(key), made->parts[i + 1] = Py_NewRef(value);
    return (Object *)made;
}

/* Lists and dictionaries in the place of cells. */
static Object *listed(Object *part) {
    if (!IS_CELLS(part)) return Py_NewRef(part);
    Cells *row = (Cells *)part;
    Size count = Py_SIZE(row);
    Object *made = row->kind == PAIRS ? PyDict_New() : row->kind == CALL ? PyTuple_New(count) : PyList_New(count);
    for (Size i = 0; made && i < count; i++) {
        Object *one = listed(row->parts[i]);
        if (!one) Py_CLEAR(made);
        else if (row->kind == LIST) PyList_SET_ITEM(made, i, one);
        else if (row->kind == CALL) PyTuple_SET_ITEM(made, i, one);
        else {
            int failed = PyDict_SetItem(made, one, row->parts[++i]);
            Py_DECREF(one);
            if (failed) Py_CLEAR(made);
        }
    }
    return made;
}

static Object *cells_plain(Object *self, Object *nothing) { return listed(self); }
static Object *cells_call(Object *self, Object *args, Object *named) {
    Object *all = listed(self), *done = 0;
    if (all && PyTuple_Check(all) && PyTuple_GET_SIZE(all))
        done = PyObject_Vectorcall(PyTuple_GET_ITEM(all, 0), &PyTuple_GET_ITEM(all, 1), PyTuple_GET_SIZE(all) - 1, 0);
    else if (all) PyErr_SetString(PyExc_TypeError, "only a note can be told");
    Py_XDECREF(all);
    return done;
}
static Size cells_length(Object *self) { return Py_SIZE(self); }
static Object *cells_item(Object *self, Size at) {
    if (at >= 0 && at < Py_SIZE(self)) return Py_NewRef(((Cells *)self)->parts[at]);
    PyErr_SetString(PyExc_IndexError, "there are not so many parts");
    return NULL;
}
static void cells_dealloc(Object *self) {
    for (Size i = 0; i < Py_SIZE(self); i++) Py_XDECREF(((Cells *)self)->parts[i]);
    PyObject_Free(self);
}
static PyMethodDef cells_methods[] = {{"plain", cells_plain, METH_NOARGS, 0}, {0}};
static PySequenceMethods cells_sequence = {.sq_length = cells_length, .sq_item = cells_item};
static PyTypeObject CellsType = {
    PyVarObject_HEAD_INIT(0, 0).tp_name = "kvfence.Cells",
    .tp_basicsize = sizeof(Cells),
    .tp_itemsize = sizeof(Object *),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_dealloc = cells_dealloc,
    .tp_call = cells_call,
    .tp_methods = cells_methods,
    .tp_as_sequence = &cells_sequence,
};

/* A part of a note, borrowed; NULL if it has not so many. */
static Object *part_of(Object *told, Size at) {
    if (IS_CELLS(told)) return at < Py_SIZE(told) ? ((Cells *)told)->parts[at] : 0;
    return PyTuple_CheckExact(told) && at < PyTuple_GET_SIZE(told) ? PyTuple_GET_ITEM(told, at) : 0;
}

/* The part of a tape that hooks touch; tape.py has the rest. */
typedef struct {
    PyObject_HEAD
    Object *row;         /* a list: where notes go now */
    Size full, done, at; /* see tape.py */
    int lively;
    char storing, on, alone; /* alone: no older row waits to be told */
} Row;

static int row_traverse(Row *self, visitproc visit, void *arg) { Py_VISIT(self->row); return 0; }
static int row_clear(Row *self) { Py_CLEAR(self->row); return 0; }
static void row_dealloc(Row *self) {
    PyObject_GC_UnTrack(self);
    row_clear(self);
    Py_TYPE(self)->tp_free((Object *)self);
}
static PyMemberDef row_members[] = {
    {"row", T_OBJECT, offsetof(Row, row), 0, 0},       {"full", T_PYSSIZET, offsetof(Row, full), 0, 0},
    {"done", T_PYSSIZET, offsetof(Row, done), 0, 0},   {"at", T_PYSSIZET, offsetof(Row, at), 0, 0},
    {"lively", T_INT, offsetof(Row, lively), 0, 0},    {"storing", T_BOOL, offsetof(Row, storing), 0, 0},
    {"on", T_BOOL, offsetof(Row, on), 0, 0},           {"alone", T_BOOL, offsetof(Row, alone), 0, 0},
    {0},
};
static PyTypeObject RowType = {
    PyVarObject_HEAD_INIT(0, 0).tp_name = "kvfence.Row",
    .tp_basicsize = sizeof(Row),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
    .tp_traverse = (traverseproc)row_traverse,
    .tp_clear = (inquiry)row_clear,
    .tp_dealloc = (destructor)row_dealloc,
    .tp_members = row_members,
    .tp_new = PyType_GenericNew,
};

/* The tape as a row that takes notes; NULL if it is another kind, or stopped. */
static Row *row_of(Object *tape) {
    static PyTypeObject *known; /* the last type of tapes that was found to be a row */
    if (Py_TYPE(tape) != known) {
        if (!PyType_IsSubtype(Py_TYPE(tape), &RowType)) return 0;
        Py_XSETREF(known, (PyTypeObject *)Py_NewRef((Object *)Py_TYPE(tape)));
    }
    Row *row = (Row *)tape;
    return row->on && row->row && PyList_CheckExact(row->row) ? row : 0;
}

/* Appends a note; takes over the reference to it. */
static int note(Row *row, Object *told) {
    if (!told) return -1;
    int failed = PyList_Append(row->row, told);
    Py_DECREF(told);
    return failed;
}

/* Hands the exception under way to the tape. Not 0 if that raised one: then it has to be seen by vLLM. */
static int trouble(Object *tape) {
    Object *kind, *error, *trace;
    PyErr_Fetch(&kind, &error, &trace);
    PyErr_NormalizeException(&kind, &error, &trace);
    Object *done = PyObject_CallMethodObjArgs(tape, s_trouble, error ? error : Py_None, 0);
    Py_XDECREF(kind), Py_XDECREF(error), Py_XDECREF(trace), Py_XDECREF(done);
    return done ? 0 : -1;
}

#define MOST 3 /* arguments that a hook looks for by name */

typedef struct Hook Hook;
typedef Object *(*Call)(Hook *, Object *const *, size_t, Object *);
struct Hook {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    Call call;
    Object *original, *plain, *dict;
    Object *tell[3];                      /* functions: what a note begins with, or what is called when needed */
    Object *names[MOST], *defaults[MOST]; /* of arguments, in the order in which a hook asks for them */
    Size places[MOST];
};

#define REST Object *const *args, size_t nargsf, Object *kwnames
#define PASS args, nargsf, kwnames

static Object *original(Hook *hook, REST) { return PyObject_Vectorcall(hook->original, PASS); }
static Object *plain(Hook *hook, REST) { return PyObject_Vectorcall(hook->plain, PASS); }

/* An argument of the call, borrowed; NULL if it was not given and has no default. */
static Object *argument(Hook *hook, int which, REST) {
    if (hook->places[which] < PyVectorcall_NARGS(nargsf)) return args[hook->places[which]];
    Size named = kwnames ? PyTuple_GET_SIZE(kwnames) : 0, first = PyVectorcall_NARGS(nargsf);
    for (Size i = 0; i < named; i++) {
        Object *name = PyTuple_GET_ITEM(kwnames, i), *wanted = hook->names[which];
        /* Two interned strings are equal only if they are the same. */
        if (name == wanted || (!PyUnicode_CHECK_INTERNED(name) && !PyUnicode_Compare(name, wanted))) return args[first + i];
    }
    return hook->defaults[which];
}

/* Pools. */

enum { LIVELY = 3 }; /* tape.py says what for */

/* The hashes of blocks, or an empty tuple if none has one and `all` is not set. */
static Object *hashes_of(Object *blocks, int all) {
    Size count = Py_SIZE(blocks), none = 0;
    Cells *found = cells(LIST, count);
    for (Size i = 0; found && i < count; i++) {
        Object *hash = get(((Cells *)blocks)->parts[i], s__block_hash);
        if (!hash) { Py_CLEAR(found); break; }
        none += hash == Py_None;
        found->parts[i] = hash;
    }
    if (!found || all || none < count) return (Object *)found;
    Py_DECREF(found);
    return PyTuple_New(0);
}

static Object *free_of(Object *tap) {
    Object *queue = get(tap, s_queue), *free = queue ? get(queue, s_num_free_blocks) : 0;
    Py_XDECREF(queue);
    return free;
}

/* Notes (function, tap, blocks, free slots[, hashes]); takes over `blocks` and `hashes`, both may be NULL after an
error. */
static int pool_note(Row *row, Object *function, Object *tap, Object *blocks, Object *hashes, int has_hashes) {
    Object *free = blocks ? free_of(tap) : 0, *told = 0;
    if (free && has_hashes && hashes) told = NOTE(function, tap, blocks, free, hashes);
    else if (free && !has_hashes) told = NOTE(function, tap, blocks, free);
    Py_XDECREF(free), Py_XDECREF(blocks), Py_XDECREF(hashes);
    row->lively = LIVELY;
    return note(row, told);
}

/* What observes the pool, and where that notes. 0: nothing does; -1: the plain hook is needed; both set: 1. */
static int observed(Object *pool, Object **tap, Object **tape) {
    *tap = get(pool, s__kvfence_tap), *tape = 0;
    if (!*tap) { PyErr_Clear(); return -1; }
    if (*tap == Py_None) { Py_CLEAR(*tap); return 0; }
    *tape = get(*tap, s_tape);
    if (*tape && row_of(*tape)) return 1;
    PyErr_Clear();
    Py_CLEAR(*tap);
    Py_CLEAR(*tape);
    return -1;
}

static Object *get_new_blocks(Hook *hook, REST) {
    Object *tap, *tape;
    int seen = kwnames || PyVectorcall_NARGS(nargsf) != 2 ? -1 : observed(args[0], &tap, &tape);
    if (seen <= 0) return seen ? plain(hook, PASS) : original(hook, PASS);
    Row *row = (Row *)tape;
    Object *blocks = original(hook, PASS);
    if (blocks) {
        Object *copy = all_of(blocks), *hashes = copy ? hashes_of(copy, 0) : 0;
        if (pool_note(row, hook->tell[0], tap, copy, hashes, 1) && trouble(tape)) Py_CLEAR(blocks);
    } else if (PyErr_ExceptionMatches(PyExc_ValueError)) {
        Object *kind, *error, *trace;
        PyErr_Fetch(&kind, &error, &trace);
        Object *free = free_of(tap);
        if (note(row, free ? NOTE(hook->tell[1], tap, args[1], free) : 0) && trouble(tape)) PyErr_Clear();
        Py_XDECREF(free);
        PyErr_Restore(kind, error, trace);
    }
    Py_DECREF(tap), Py_DECREF(tape);
    return blocks;
}

static Object *touch(Hook *hook, REST) {
    Object *tap, *tape;
    int seen = kwnames || PyVectorcall_NARGS(nargsf) != 2 || !PyList_Check(args[1]) ? -1 : observed(args[0], &tap, &tape);
    if (seen <= 0) return seen ? plain(hook, PASS) : original(hook, PASS);
    Row *row = (Row *)tape;
    Object *copy = all_of(args[1]), *done = original(hook, PASS);
    if (done) {
        Object *hashes = !copy ? 0 : row->storing ? hashes_of(copy, 1) : Py_NewRef(Py_None);
        if (pool_note(row, hook->tell[0], tap, copy, hashes, 1) && trouble(tape)) Py_CLEAR(done);
    } else Py_XDECREF(copy);
    Py_DECREF(tap), Py_DECREF(tape);
    return done;
}

/* free_blocks(blocks, ...): the original gets a list in place of an iterator. */
static Object *free_blocks(Hook *hook, REST) {
    Object *tap, *tape, *passed[8];
    Size given = PyVectorcall_NARGS(nargsf), all = given + (kwnames ? PyTuple_GET_SIZE(kwnames) : 0);
    int seen = given < 2 || all > 8 ? -1 : observed(args[0], &tap, &tape);
    if (seen <= 0) return seen ? plain(hook, PASS) : original(hook, PASS);
    Object *blocks = PySequence_Fast(args[1], "blocks cannot be listed"), *done = 0;
    Object *copy = blocks ? some_of(blocks, 0, PY_SSIZE_T_MAX) : 0;
    if (copy) {
        for (Size i = 0; i < all; i++) passed[i] = i == 1 ? blocks : args[i];
        done = PyObject_Vectorcall(hook->original, passed, given, kwnames);
    }
    if (!done) Py_XDECREF(copy);
    else if (pool_note((Row *)tape, hook->tell[0], tap, copy, 0, 0) && trouble(tape)) Py_CLEAR(done);
    Py_XDECREF(blocks), Py_DECREF(tap), Py_DECREF(tape);
    return done;
}

/* cache_full_blocks: arguments 0 to 2 are the blocks, how many are cached, and how many are full. */
static Object *cache_full_blocks(Hook *hook, REST) {
    Object *tap, *tape, *blocks = argument(hook, 0, PASS);
    Object *cached = argument(hook, 1, PASS), *full = argument(hook, 2, PASS);
    if (!blocks || !PyList_Check(blocks) || !cached || !full || !PyLong_Check(cached) || !PyLong_Check(full))
        return plain(hook, PASS);
    Size from = PyLong_AsSsize_t(cached), to = PyLong_AsSsize_t(full);
    if ((from == -1 || to == -1) && PyErr_Occurred()) return NULL;
    int seen = from >= to ? 0 : observed(args[0], &tap, &tape);
    if (seen <= 0) return seen ? plain(hook, PASS) : original(hook, PASS);
    Row *row = (Row *)tape;
    Py_INCREF(blocks);
    Object *done = original(hook, PASS);
    if (done) {
        Object *some = some_of(blocks, from, to), *hashes = some ? hashes_of(some, 1) : 0;
        row->lively = LIVELY;
        if (note(row, hashes ? NOTE(hook->tell[0], tap, some, hashes) : 0) && trouble(tape)) Py_CLEAR(done);
        Py_XDECREF(some), Py_XDECREF(hashes);
    }
    Py_DECREF(blocks), Py_DECREF(tap), Py_DECREF(tape);
    return done;
}

/* Calls whose end says on whose behalf they changed the pools. */

/* Ends what began at `mark`; takes over `told`. tell[0] begins the note of the beginning. */
static int end(Hook *hook, Row *row, Object *stream, Size mark, Object *told) {
    if (!told) return -1;
    if (row->alone && mark < row->at) { /* Somebody told some of it already: Tape.end knows what to do. */
        Object *where = PyLong_FromSsize_t(mark);
        Object *done = where ? PyObject_CallMethodObjArgs((Object *)row, s_end, where, told, 0) : 0;
        Py_XDECREF(where), Py_XDECREF(done), Py_DECREF(told);
        return done ? 0 : -1;
    }
    Object *begin = NOTE(hook->tell[0], stream);
    int failed = !begin || PyList_Insert(row->row, mark, begin);
    Py_XDECREF(begin);
    if (failed) { Py_DECREF(told); return -1; }
    return note(row, told);
}

/* Whether nothing but labels was noted since `mark`: these say nothing about who holds the blocks. */
static int labels_only(Row *row, Size mark, Object *labelled) {
    for (Size i = mark; i < PyList_GET_SIZE(row->row); i++) {
        if (part_of(PyList_GET_ITEM(row->row, i), 0) != labelled) return 0;
    }
    return 1;
}

/* The last blocks of each table of a request: as many as were given since `mark`, which are at the ends of its tables
if `ends` is set. */
static Object *tables(Object *reader, Object *id, Row *row, Size mark, int ends) {
    Size most = 0, group = 0;
    for (Size i = mark; i < PyList_GET_SIZE(row->row); i++) {
        Object *told = PyList_GET_ITEM(row->row, i), *blocks = part_of(told, 2);
        /* Labels are given to blocks that are in the table already: their notes have four parts. */
        if (!blocks || !part_of(told, 4)) continue;
        most += IS_CELLS(blocks) ? Py_SIZE(blocks) : PyList_CheckExact(blocks) ? PyList_GET_SIZE(blocks) : 0;
    }
    if (ends && !most) return PyTuple_New(0);
    Object *all = get(reader, s_tables);
    if (!all || !PyList_CheckExact(all)) { Py_XDECREF(all); return NULL; }
    Cells *found = cells(LIST, PyList_GET_SIZE(all));
    Size count = 0;
    for (; found && group < PyList_GET_SIZE(all); group++) {
        Object *tables = PyList_GET_ITEM(all, group), *table = 0;
        if (PyDict_Check(tables)) table = PyDict_GetItemWithError(tables, id);
        if (!table && (PyErr_Occurred() || !PyDict_Check(tables))) { Py_CLEAR(found); break; }
        if (!table || !PyList_Check(table)) continue;
        Size length = PyList_GET_SIZE(table), start = ends && length > most ? length - most : 0;
        Object *part = some_of(table, start, length), *of = PyLong_FromSsize_t(group), *from = PyLong_FromSsize_t(start);
        Object *one = ROW(of, from, part);
        Py_XDECREF(part), Py_XDECREF(of), Py_XDECREF(from);
        if (!one) { Py_CLEAR(found); break; }
        found->parts[count++] = one;
    }
    if (found) Py_SET_SIZE(found, count);
    Py_DECREF(all);
    return (Object *)found;
}

/* Notes what allocate_slots did for a request: see _allocated in hooks_scheduler.py. */
static int allocated(Hook *hook, Row *row, Object *manager, Object *request, Object *local, Object *external, Size mark,
                     int done) {
    Object *stream = get(manager, s__kvfence_stream), *reader = get(manager, s__kvfence_tables);
    Object *id = get(request, s_request_id), *computed = get(request, s_num_computed_tokens);
    Object *total = done ? get(request, s_num_tokens) : 0, *appending = reader ? get(reader, s_appending) : 0;
    Object *told = 0, *admission = 0, *found = 0;
    int failed = 0;
    if (stream && id && computed && appending && (total || !done)) {
        int running = PyObject_IsTrue(computed);
        if (running && done && labels_only(row, mark, hook->tell[2])) goto over;
        found = tables(reader, id, row, mark, running && appending == Py_True);
        if (done) {
            Object *here = PyNumber_Add(local, computed);
            admission = ROW(here, external, total);
            Py_XDECREF(here);
        } else admission = Py_NewRef(Py_None);
        if (found && admission) told = NOTE(hook->tell[1], stream, id, found, admission);
    }
    if (!told && !PyErr_Occurred()) PyErr_SetString(PyExc_TypeError, "tables of a kind that is not known");
    failed = stream ? end(hook, row, stream, mark, told) : -1;
    if (!stream) Py_XDECREF(told);
over:
    Py_XDECREF(stream), Py_XDECREF(reader), Py_XDECREF(id), Py_XDECREF(computed), Py_XDECREF(total);
    Py_XDECREF(appending), Py_XDECREF(found), Py_XDECREF(admission);
    return failed;
}

/* allocate_slots: arguments 0 to 2 are the request and its computed tokens, new ones and those from elsewhere. */
static Object *allocate_slots(Hook *hook, REST) {
    Object *tape = get(args[0], s__kvfence_tape);
    if (tape == Py_None) { Py_DECREF(tape); return original(hook, PASS); }
    Row *row = tape ? row_of(tape) : 0;
    if (!row) {
        PyErr_Clear();
        Py_XDECREF(tape);
        return plain(hook, PASS);
    }
    Size mark = PyList_GET_SIZE(row->row);
    Object *blocks = original(hook, PASS);
    if (row->on && (!blocks || PyList_GET_SIZE(row->row) != mark)) {
        Object *kind, *error, *trace;
        PyErr_Fetch(&kind, &error, &trace);
        Object *request = argument(hook, 0, PASS), *local = argument(hook, 1, PASS), *more = argument(hook, 2, PASS);
        int failed = !request || !local || !more;
        if (failed) PyErr_SetString(PyExc_TypeError, "allocate_slots was not told of what");
        else failed = allocated(hook, row, args[0], request, local, more, mark, blocks && blocks != Py_None);
        if (failed && trouble(tape)) Py_CLEAR(blocks);
        if (kind) PyErr_Restore(kind, error, trace);
    }
    Py_DECREF(tape);
    return blocks;
}

/* Stores. */

/* A request as it is tracked for stores: (id, its cursors, its computed tokens). */
static Object *cursors(Object *id, Object *known, Object *now) {
    Object *copy = all_of(now), *request = get(known, s_request);
    Object *computed = request ? get(request, s_num_computed_tokens) : 0, *one = ROW(id, copy, computed);
    Py_XDECREF(copy), Py_XDECREF(request), Py_XDECREF(computed);
    return one;
}

/* See moved in transfers.py; with room for `more` at the end. */
static Cells *moved(Object *tracked, Object *tokens, Object *seen, Size more) {
    Cells *found = cells(LIST, PyDict_GET_SIZE(tokens) + more);
    Object *id, *ignored;
    Size place = 0, count = 0;
    while (found && PyDict_Next(tokens, &place, &id, &ignored)) {
        Object *known = PyDict_GetItemWithError(tracked, id);
        if (!known) continue;
        Object *now = get(known, s_num_stored_blocks), *before = PyDict_GetItemWithError(seen, id);
        int same = !now ? -1 : !before ? 0 : PyObject_RichCompareBool(now, before, Py_EQ);
        if (same == 0) {
            Object *one = cursors(id, known, now), *copy = one ? PySequence_List(now) : 0;
            same = !copy || PyDict_SetItem(seen, id, copy) ? -1 : 0;
            if (!same) found->parts[count++] = one;
            else Py_XDECREF(one);
            Py_XDECREF(copy);
        }
        Py_XDECREF(now);
        if (same < 0) Py_CLEAR(found);
    }
    if (PyErr_Occurred()) Py_CLEAR(found);
    if (found) Py_SET_SIZE(found, count);
    return found;
}
static Object *moved_listed(Object *module, Object *const *args, Size count) {
    if (count != 3 || !PyDict_Check(args[0]) || !PyDict_Check(args[1]) || !PyDict_Check(args[2])) {
        PyErr_SetString(PyExc_TypeError, "moved() takes three dictionaries");
        return NULL;
    }
    Object *found = (Object *)moved(args[0], args[1], args[2], 0), *all = found ? listed(found) : 0;
    Py_XDECREF(found);
    return all;
}
static PyMethodDef moved_method = {"moved", (PyCFunction)(void (*)(void))moved_listed, METH_FASTCALL, 0};

/* What a dictionary of the manager has under an event, () for no event or nothing. */
static Object *requests_of(Object *manager, Object *name, Object *event) {
    if (!PyLong_Check(event) || PyLong_AsLong(event) < 0) return PyErr_Occurred() ? NULL : PyTuple_New(0);
    Object *by_event = get(manager, name), *found = 0;
    if (by_event && PyDict_Check(by_event)) {
        Object *ids = PyDict_GetItemWithError(by_event, event);
        if (!PyErr_Occurred()) found = ids ? all_of(ids) : PyTuple_New(0);
    } else if (by_event) PyErr_SetString(PyExc_TypeError, "events are not in a dictionary");
    Py_XDECREF(by_event);
    return found;
}

/* Puts the cursors of owners that are not among `found`, which has room for them, in front of these. */
static int add_owners(Object *tracked, Object *owners, Cells *found) {
    Size more = 0;
    for (Size i = 0; IS_CELLS(owners) && i < Py_SIZE(owners); i++) {
        Object *id = ((Cells *)owners)->parts[i], *known = PyDict_GetItemWithError(tracked, id);
        if (!known && PyErr_Occurred()) return -1;
        int there = 0;
        for (Size at = more; known && !there && at < Py_SIZE(found); at++) {
            there = PyObject_RichCompareBool(part_of(found->parts[at], 0), id, Py_EQ);
            if (there < 0) return -1;
        }
        if (!known || there) continue;
        Object *now = get(known, s_num_stored_blocks), *one = now ? cursors(id, known, now) : 0;
        Py_XDECREF(now);
        if (!one) return -1;
        memmove(found->parts + more + 1, found->parts + more, (Py_SIZE(found) - more) * sizeof *found->parts);
        found->parts[more++] = one;
        Py_SET_SIZE(found, Py_SIZE(found) + 1);
    }
    return 0;
}

/* Notes what the metadata of a step was made from: see _step in hooks_simple.py. 1: the tier is full, which is left to
Python. */
static int step_decided(Hook *hook, Row *row, Object *tier, Object *manager, Object *meta, Object *output, Size mark) {
    Object *tap = get(tier, s_tap), *free = tap ? free_of(tap) : 0, *tracked = get(manager, s__reqs_to_store);
    Object *stream = get(tier, s_stream), *store = get(meta, s_store_event), *load = get(meta, s_load_event);
    Object *tokens = get(output, s_num_scheduled_tokens), *seen = get(tier, s_seen), *count = 0, *told = 0;
    Object *owners = 0, *loads = 0;
    Cells *found = 0;
    int failed = -1;
    if (!free || !tracked || !stream || !store || !load || !tokens || !seen) goto over;
    if (!PyDict_Check(tracked) || !PyDict_Check(tokens) || !PyDict_Check(seen) || !PyLong_Check(free) || PyLong_AsLong(free) <= 0) { failed = 1; goto over; }
    owners = requests_of(manager, s__store_event_to_reqs, store), loads = requests_of(manager, s__load_event_to_reqs, load);
    if (!owners || !loads) goto over;
    Size more = IS_CELLS(owners) ? Py_SIZE(owners) : 0;
    if (row->lively && PyDict_GET_SIZE(tracked)) {
        row->lively--;
        found = moved(tracked, tokens, seen, more);
    } else if ((found = cells(LIST, more))) Py_SET_SIZE(found, 0);
    count = found ? PyLong_FromSsize_t(Py_SIZE(found)) : 0;
    if (!count || add_owners(tracked, owners, found)) goto over;
    told = NOTE(hook->tell[1], tier, store, owners, loads, (Object *)found, count, free);
    failed = end(hook, row, stream, mark, told);
over:
    Py_XDECREF(tap), Py_XDECREF(free), Py_XDECREF(tracked), Py_XDECREF(stream), Py_XDECREF(store), Py_XDECREF(load);
    Py_XDECREF(tokens), Py_XDECREF(seen), Py_XDECREF(count), Py_XDECREF(owners), Py_XDECREF(loads), Py_XDECREF(found);
    return failed;
}

/* build_connector_meta: argument 0 is the scheduler's output. tell[1] begins its note. */
static Object *build_connector_meta(Hook *hook, REST) {
    Object *tier = get(args[0], s__kvfence_tier), *output = argument(hook, 0, PASS);
    Object *tape = tier && tier != Py_None ? get(tier, s_tape) : 0;
    Row *row = tape ? row_of(tape) : 0;
    if (!row || !output) {
        PyErr_Clear();
        Py_XDECREF(tier), Py_XDECREF(tape);
        return plain(hook, PASS);
    }
    Size mark = PyList_GET_SIZE(row->row);
    row->storing = 1;
    Object *meta = original(hook, PASS);
    row->storing = 0;
    int needed = !meta || row->lively || PyList_GET_SIZE(row->row) != mark;
    if (!needed) {
        Object *store = get(meta, s_store_event), *load = get(meta, s_load_event);
        needed = !store || !load || PyLong_AsLong(store) >= 0 || PyLong_AsLong(load) >= 0;
        Py_XDECREF(store), Py_XDECREF(load);
        PyErr_Clear();
    }
    if (needed) {
        Object *kind, *error, *trace;
        PyErr_Fetch(&kind, &error, &trace);
        int left = meta ? step_decided(hook, row, tier, args[0], meta, output, mark) : 1;
        if (left > 0) { /* tell[2](tier, manager, meta or None, output, mark) */
            Object *where = PyLong_FromSsize_t(mark), *more = meta ? meta : Py_None, *done = 0;
            if (where) done = PyObject_CallFunctionObjArgs(hook->tell[2], tier, args[0], more, output, where, 0);
            Py_XDECREF(where), Py_XDECREF(done);
            left = done ? 0 : -1;
        }
        if (left && trouble(tape)) Py_CLEAR(meta);
        if (kind) PyErr_Restore(kind, error, trace);
    }
    Py_DECREF(tier), Py_DECREF(tape);
    return meta;
}

/* The hashes in a list, with None for those of blocks that are not in the index: looks at both ends, and leaves the rest
to tell[2](index, hashes). Takes over the reference to `hashes`. */
static Object *only_found(Hook *hook, Object *pool, Object *hashes) {
    Size count = Py_SIZE(hashes), good = 0;
    Object *index = get(pool, s_cached_block_hash_to_block);
    for (int last = 0; index && count && last < 2; last++) {
        Object *hash = part_of(hashes, last ? count - 1 : 0);
        Object *found = hash == Py_None ? Py_NewRef(hash) : PyObject_CallMethodObjArgs(index, s_get_one_block, hash, 0);
        good += found && found != Py_None;
        if (!found) Py_CLEAR(index);
        Py_XDECREF(found);
    }
    if (index && count && good < 2) {
        Object *all = listed(hashes), *done = all ? PyObject_CallFunctionObjArgs(hook->tell[2], index, all, 0) : 0;
        Py_SETREF(hashes, done ? all : (Py_XDECREF(all), (Object *)0));
        Py_XDECREF(done);
    } else if (!index) Py_CLEAR(hashes);
    Py_XDECREF(index);
    return hashes;
}

/* The slots of a completed store, and their hashes in the tier now. */
static int stored(Hook *hook, Object *manager, Object *transfer, Object **slots, Object **hashes) {
    Object *ids = get(transfer, s_cpu_block_ids), *pool = get(manager, s_cpu_block_pool);
    Object *blocks = pool ? get(pool, s_blocks) : 0, *at = ids ? all_of(ids) : 0;
    Cells *found = at ? cells(LIST, Py_SIZE(at)) : 0;
    int failed = !blocks || !found || !PyList_Check(blocks);
    for (Size i = 0; !failed && i < Py_SIZE(at); i++) {
        Size slot = PyLong_AsSsize_t(part_of(at, i));
        Object *block = slot >= 0 && slot < PyList_GET_SIZE(blocks) ? PyList_GET_ITEM(blocks, slot) : 0;
        found->parts[i] = block ? get(block, s__block_hash) : 0;
        failed = !found->parts[i];
    }
    if (failed && !PyErr_Occurred()) PyErr_SetString(PyExc_TypeError, "a store to blocks that are not known");
    if (failed) Py_CLEAR(found);
    *hashes = found ? only_found(hook, pool, (Object *)found) : 0;
    *slots = *hashes ? Py_NewRef(at) : 0;
    Py_XDECREF(ids), Py_XDECREF(pool), Py_XDECREF(blocks), Py_XDECREF(at);
    return *hashes ? 0 : -1;
}

/* _process_store_event: argument 0 is the number of the event. tell[1] begins its note, tell[2]: see only_found. */
static Object *process_store_event(Hook *hook, REST) {
    Object *tier = get(args[0], s__kvfence_tier), *event = argument(hook, 0, PASS);
    Object *tape = tier && tier != Py_None ? get(tier, s_tape) : 0, *stream = tape ? get(tier, s_stream) : 0;
    Object *waiting = stream ? get(args[0], s__store_event_to_blocks) : 0;
    Row *row = tape ? row_of(tape) : 0;
    if (!row || !event || !waiting || !PyDict_Check(waiting)) {
        PyErr_Clear();
        Py_XDECREF(tier), Py_XDECREF(tape), Py_XDECREF(stream), Py_XDECREF(waiting);
        return plain(hook, PASS);
    }
    Object *transfer = Py_XNewRef(PyDict_GetItemWithError(waiting, event));
    PyErr_Clear();
    Size mark = PyList_GET_SIZE(row->row);
    Object *done = original(hook, PASS), *kind, *error, *trace;
    PyErr_Fetch(&kind, &error, &trace);
    Object *slots = 0, *hashes = 0, *nothing = PyTuple_New(0), *told;
    if (done && transfer && stored(hook, args[0], transfer, &slots, &hashes) && trouble(tape)) Py_CLEAR(done);
    told = row->on ? NOTE(hook->tell[1], tier, event, slots ? slots : nothing, hashes ? hashes : nothing) : 0;
    if (row->on && (!told || end(hook, row, stream, mark, told)) && trouble(tape)) Py_CLEAR(done);
    Py_XDECREF(nothing);
    Py_XDECREF(slots), Py_XDECREF(hashes), Py_XDECREF(transfer), Py_DECREF(waiting);
    Py_DECREF(tier), Py_DECREF(tape), Py_DECREF(stream);
    if (kind) PyErr_Restore(kind, error, trace);
    return done;
}

/* update_connector_output: argument 0 says what the workers finished. tell[0] begins the note of loads, tell[1] that of
stores. */
static Object *update_connector_output(Hook *hook, REST) {
    Object *output = argument(hook, 0, PASS), *tier = get(args[0], s__kvfence_tier);
    Object *tape = tier && tier != Py_None ? get(tier, s_tape) : 0;
    Row *row = tape && output ? row_of(tape) : 0;
    Object *received = row ? get(output, s_finished_recving) : 0;
    Object *meta = received ? get(output, s_kv_connector_worker_meta) : 0;
    Object *completed = meta && meta != Py_None ? get(meta, s_completed_store_events) : 0;
    int known = meta && !PyErr_Occurred() && (!completed || PyDict_Check(completed)), failed = 0;
    PyErr_Clear();
    if (known && PyObject_IsTrue(received) > 0) {
        Object *ids = all_of(received);
        failed = note(row, ids ? NOTE(hook->tell[0], tier, ids) : 0) && trouble(tape);
        Py_XDECREF(ids);
    }
    if (known && !failed && completed && PyDict_GET_SIZE(completed)) {
        Object *counts = pairs_of(completed);
        failed = note(row, counts ? NOTE(hook->tell[1], tier, counts) : 0) && trouble(tape);
        Py_XDECREF(counts);
    }
    Py_XDECREF(received), Py_XDECREF(meta), Py_XDECREF(completed), Py_XDECREF(tier), Py_XDECREF(tape);
    return failed ? NULL : known ? original(hook, PASS) : plain(hook, PASS);
}

/* Steps. */

/* The scheduler's stream, and its tape if that takes notes: 0 if nothing observes it, -1: the plain hook is needed. */
static int streamed(Object *scheduler, Object **stream, Object **tape) {
    *stream = get(scheduler, s__kvfence_stream), *tape = 0;
    if (!*stream) { PyErr_Clear(); return -1; }
    if (*stream == Py_None) { Py_CLEAR(*stream); return 0; }
    if (*stream != Py_False) *tape = get(*stream, s_tape);
    if (*tape && row_of(*tape)) return 1;
    PyErr_Clear();
    Py_CLEAR(*stream);
    Py_CLEAR(*tape);
    return -1;
}

static int add_to(Object *scheduler, Object *running, long more) {
    Object *one = PyLong_FromLong(more), *sum = one ? PyNumber_Add(running, one) : 0;
    int failed = sum ? PyObject_SetAttr(scheduler, s_kvfence_in_flight, sum) : -1;
    Py_XDECREF(one), Py_XDECREF(sum);
    return failed;
}

/* Counts the step and notes it: see _SCHEDULE in hooks_scheduler.py. */
static int dispatched(Hook *hook, Row *row, Object *stream, Object *scheduler, Object *output) {
    Object *tokens = get(output, s_num_scheduled_tokens), *running = get(scheduler, s_kvfence_in_flight);
    int failed = !tokens || !running || PyObject_SetAttr(output, s_kvfence_in_flight, running);
    if (!failed && !PyDict_Check(tokens)) {
        PyErr_SetString(PyExc_TypeError, "num_scheduled_tokens is not a dictionary");
        failed = 1;
    }
    if (!failed && PyDict_GET_SIZE(tokens)) {
        Object *uneven = get(output, s_scheduled_spec_decode_tokens), *id = 0, *copy = 0, *told = 0;
        failed = !uneven || add_to(scheduler, running, 1);
        if (!failed) {
            id = PyLong_FromVoidPtr(output), copy = pairs_of(tokens);
            Object *ids = PyObject_IsTrue(uneven) ? all_of(uneven) : PyTuple_New(0);
            told = NOTE(hook->tell[0], stream, id, copy, ids);
            Py_XDECREF(id), Py_XDECREF(copy), Py_XDECREF(ids);
            failed = note(row, told);
        }
        Py_XDECREF(uneven);
    }
    Py_XDECREF(tokens), Py_XDECREF(running);
    return failed;
}

static Object *schedule(Hook *hook, REST) {
    Object *stream, *tape;
    int seen = streamed(args[0], &stream, &tape);
    if (seen <= 0) return plain(hook, PASS); /* Steps in flight are counted where nothing else is observed, too. */
    Object *output = original(hook, PASS);
    if (output && dispatched(hook, (Row *)tape, stream, args[0], output) && trouble(tape)) Py_CLEAR(output);
    Py_DECREF(stream), Py_DECREF(tape);
    return output;
}

/* update_from_output: argument 0 is the scheduler's output of the step. */
static Object *update_from_output(Hook *hook, REST) {
    Object *stream, *tape, *output = argument(hook, 0, PASS);
    int seen = output ? streamed(args[0], &stream, &tape) : -1;
    if (seen <= 0) return plain(hook, PASS);
    Row *row = (Row *)tape;
    Object *tokens = get(output, s_num_scheduled_tokens), *uneven = get(output, s_scheduled_spec_decode_tokens);
    Object *running = get(args[0], s_kvfence_in_flight), *id = PyLong_FromVoidPtr(output), *done = 0;
    int failed = !tokens || !uneven || !running || !id, some = failed ? 0 : PyObject_IsTrue(tokens);
    if (some > 0 && PyObject_IsTrue(running)) failed |= add_to(args[0], running, -1);
    if (some > 0 && !failed) failed |= note(row, NOTE(hook->tell[0], stream, id));
    if (!failed || !trouble(tape)) done = original(hook, PASS);
    if (done) {
        /* tell[1](scheduler, output): after a step with speculative tokens */
        if (uneven && PyObject_IsTrue(uneven)) {
            Object *settled = PyObject_CallFunctionObjArgs(hook->tell[1], args[0], output, 0);
            if (!settled && trouble(tape)) Py_CLEAR(done);
            Py_XDECREF(settled);
        }
        if (row->on && PyList_CheckExact(row->row)) {
            row->done = PyList_GET_SIZE(row->row);
            if (row->done > row->full) {
                Object *turned = PyObject_CallMethodObjArgs(tape, s_turn, 0);
                if (!turned && trouble(tape)) Py_CLEAR(done);
                Py_XDECREF(turned);
            }
        }
    }
    Py_XDECREF(tokens), Py_XDECREF(uneven), Py_XDECREF(running), Py_XDECREF(id);
    Py_DECREF(stream), Py_DECREF(tape);
    return done;
}

/* The type of hooks. */

#define KIND(name) {#name, name}
static const struct { const char *name; Call call; } kinds[] = {
    KIND(get_new_blocks), KIND(touch), KIND(free_blocks), KIND(cache_full_blocks), KIND(allocate_slots),
    KIND(build_connector_meta), KIND(process_store_event), KIND(update_connector_output), KIND(schedule), KIND(update_from_output),
};

static Object *hook_vectorcall(Object *self, REST) {
    Hook *hook = (Hook *)self;
    if (PyVectorcall_NARGS(nargsf) < 1) return original(hook, PASS);
    return hook->call(hook, PASS);
}

/* Hook(kind, original, plain, tell, arguments): `tell` are functions; `arguments` are (name, place, default) each, or
(name, place) without a default. */
static Object *hook_new(PyTypeObject *type, Object *args, Object *named) {
    const char *kind;
    Object *original, *plain, *tell, *arguments;
    if (!PyArg_ParseTuple(args, "sOOO!O!", &kind, &original, &plain, &PyTuple_Type, &tell, &PyTuple_Type, &arguments))
        return NULL;
    Call call = 0;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (!strcmp(kinds[i].name, kind)) call = kinds[i].call;
    if (!call || PyTuple_GET_SIZE(tell) > 3 || PyTuple_GET_SIZE(arguments) > MOST) {
        PyErr_Format(PyExc_ValueError, "no compiled hook %s", kind);
        return NULL;
    }
    Hook *hook = (Hook *)type->tp_alloc(type, 0);
    if (!hook) return NULL;
    hook->vectorcall = hook_vectorcall, hook->call = call;
    hook->original = Py_NewRef(original), hook->plain = Py_NewRef(plain);
    for (Size i = 0; i < PyTuple_GET_SIZE(tell); i++) hook->tell[i] = Py_NewRef(PyTuple_GET_ITEM(tell, i));
    for (Size i = 0; i < PyTuple_GET_SIZE(arguments); i++) {
        Object *name, *otherwise = 0;
        if (!PyArg_ParseTuple(PyTuple_GET_ITEM(arguments, i), "Un|O", &name, &hook->places[i], &otherwise)) {
            Py_DECREF(hook);
            return NULL;
        }
        hook->names[i] = Py_NewRef(name), hook->defaults[i] = Py_XNewRef(otherwise);
        PyUnicode_InternInPlace(&hook->names[i]);
    }
    return (Object *)hook;
}

static int hook_traverse(Hook *self, visitproc visit, void *arg) {
    Py_VISIT(self->original);
    Py_VISIT(self->plain);
    Py_VISIT(self->dict);
    for (int i = 0; i < 3; i++) Py_VISIT(self->tell[i]);
    for (int i = 0; i < MOST; i++) Py_VISIT(self->defaults[i]);
    return 0;
}
static int hook_clear(Hook *self) {
    Py_CLEAR(self->original);
    Py_CLEAR(self->plain);
    Py_CLEAR(self->dict);
    for (int i = 0; i < 3; i++) Py_CLEAR(self->tell[i]);
    for (int i = 0; i < MOST; i++) {
        Py_CLEAR(self->names[i]);
        Py_CLEAR(self->defaults[i]);
    }
    return 0;
}
static void hook_dealloc(Hook *self) {
    PyObject_GC_UnTrack(self);
    hook_clear(self);
    Py_TYPE(self)->tp_free((Object *)self);
}
static Object *hook_bound(Object *self, Object *of, Object *type) {
    return of && of != Py_None ? PyMethod_New(self, of) : Py_NewRef(self);
}
static PyGetSetDef hook_attributes[] = {{"__dict__", PyObject_GenericGetDict, PyObject_GenericSetDict, 0, 0}, {0}};
static PyTypeObject HookType = {
    PyVarObject_HEAD_INIT(0, 0).tp_name = "kvfence.Hook",
    .tp_basicsize = sizeof(Hook),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_METHOD_DESCRIPTOR,
    .tp_new = hook_new,
    .tp_traverse = (traverseproc)hook_traverse,
    .tp_clear = (inquiry)hook_clear,
    .tp_dealloc = (destructor)hook_dealloc,
    .tp_call = PyVectorcall_Call,
    .tp_vectorcall_offset = offsetof(Hook, vectorcall),
    .tp_dictoffset = offsetof(Hook, dict),
    .tp_getset = hook_attributes,
    .tp_descr_get = hook_bound,
};

/* (Row, Hook, moved) */
Object *quick(void) {
#define INTERN(name) \
    if (!(s_##name = PyUnicode_InternFromString(#name))) return NULL;
    NAMES(INTERN)
    if (PyType_Ready(&CellsType) || PyType_Ready(&RowType) || PyType_Ready(&HookType)) return NULL;
    return Py_BuildValue("(OON)", (Object *)&RowType, (Object *)&HookType, PyCFunction_NewEx(&moved_method, 0, 0));
}
