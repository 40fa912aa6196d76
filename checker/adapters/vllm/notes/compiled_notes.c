/* Notes of compiled hooks: a row of words to which the engine's thread appends, and from which another one takes.

The words of a note lie side by side, in memory that is used again and again: the engine's thread writes forward and
reads nothing, while objects of Python's would be made in places that the other thread has just freed. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <structmember.h>

typedef PyObject Object;
typedef Py_ssize_t Size;

#define NAMES(F) \
    F(_kvfence_stream) F(_kvfence_tables) F(_kvfence_tap) F(_kvfence_note_queue) F(_kvfence_tier) F(_load_event_to_reqs) \
    F(_reqs_to_store) F(_store_event_to_blocks) F(_store_event_to_reqs) F(appending) F(blocks) \
    F(cached_block_hash_to_block) F(completed_store_events) F(cpu_block_ids) F(cpu_block_pool) F(end) F(get_one_block) \
    F(finished_recving) F(kv_connector_worker_meta) F(kvfence_in_flight) F(load_event) F(num_computed_tokens) \
    F(num_free_blocks) F(num_scheduled_tokens) F(num_stored_blocks) F(num_tokens) F(queue) F(request) F(request_id) \
    F(scheduled_spec_decode_tokens) F(seen) F(store_event) F(stream) F(tables) F(tap) F(note_queue) F(trouble) F(turn) F(_block_hash)
#define DECLARE(name) static Object *s_##name;
NAMES(DECLARE)

static Object *get(Object *of, Object *name) { return PyObject_GetAttr(of, name); }

/* A word is an object, to which it owns a reference; or, as its last bits say, a number, or what the words after it
are: so many parts of a list, so many keys and values of a dictionary, the parts of a note and its length in words.
0 is what was taken. A note that Python made is one word: a tuple. */
typedef intptr_t Word;
enum { OBJECT, NUMBER, LIST, PAIRS, CALL, KINDS = 8 };
#define KIND_OF(word) ((word) & (KINDS - 1))
#define VALUE_OF(word) ((word) >> 3)
#define WORD(kind, value) (((Word)(value) << 3) | (kind))
#define PARTS 16 /* a note's header: how many parts, and above these bits how many words, itself among them */

typedef struct {
    PyObject_HEAD
    Word *words;
    Size used, room, at; /* at: up to there all is taken */
    int writing;
    Object *later; /* a list of notes that Python made while another one was under way, or NULL */
} NoteRow;
static PyTypeObject NoteRowType;
enum { FULL = 4096 }; /* words after which a new row is begun */

static int grow(NoteRow *row, Size wanted) {
    Size room = row->room ? row->room : FULL + 512;
    while (room < wanted) room *= 2;
    Word *words = PyMem_Realloc(row->words, room * sizeof *words);
    if (!words) { PyErr_NoMemory(); return -1; }
    row->words = words, row->room = room;
    return 0;
}

/* A note under way: no one reads it before it is done. */
typedef struct {
    NoteRow *row;
    Size at;
    enum { WELL, LOST, WITHIN } failed; /* LOST: a part could not be had; WITHIN: another note was under way */
} Note;

static void put_word(Note *note, Word word) {
    NoteRow *row = note->row;
    if (note->failed) return;
    if (note->at >= row->room && grow(row, note->at + 1)) note->failed = LOST;
    else row->words[note->at++] = word;
}

static void put_number(Note *note, Size value) { put_word(note, WORD(NUMBER, value)); }

/* An object, borrowed; NULL after an error. Small numbers become words. */
static void put(Note *note, Object *of) {
    if (note->failed) return;
    if (!of) { note->failed = LOST; return; }
    if (PyLong_CheckExact(of)) {
        int over;
        long long value = PyLong_AsLongLongAndOverflow(of, &over);
        if (!over && value < 1LL << 59 && value > -(1LL << 59)) { put_number(note, value); return; }
    }
    put_word(note, (Word)of);
    if (!note->failed) Py_INCREF(of);
}

/* The same of an object that is owned. */
static void put_owned(Note *note, Object *of) {
    put(note, of);
    Py_XDECREF(of);
}

static void put_list(Note *note, Size count) { put_word(note, WORD(LIST, count)); }

/* What a list or tuple has from `from` to before `to`. */
static void put_some(Note *note, Object *listed, Size from, Size to) {
    Size count = PySequence_Fast_GET_SIZE(listed);
    if (to > count) to = count;
    if (from > to) from = to;
    put_list(note, to - from);
    for (Size i = from; i < to; i++) put(note, PySequence_Fast_GET_ITEM(listed, i));
}

/* All that something iterable has. */
static void put_all(Note *note, Object *things) {
    Object *listed = things ? PySequence_Fast(things, "nothing to list") : 0;
    if (listed) put_some(note, listed, 0, PY_SSIZE_T_MAX);
    else put(note, 0);
    Py_XDECREF(listed);
}

/* A dictionary as it is now. */
static void put_pairs(Note *note, Object *dictionary) {
    Object *key, *value;
    Size place = 0;
    put_word(note, WORD(PAIRS, PyDict_GET_SIZE(dictionary)));
    while (PyDict_Next(dictionary, &place, &key, &value)) put(note, key), put(note, value);
}

static void let_go(NoteRow *row, Size from, Size to) {
    for (Size i = from; i < to; i++) {
        Word word = row->words[i];
        row->words[i] = 0;
        if (word && KIND_OF(word) == OBJECT) Py_DECREF((Object *)word);
    }
}

/* Begins a note of a function and so many parts more; `end_note` says how it went. */
static Note begin_note(NoteRow *row, Object *function, int parts) {
    Note note = {row, row->used, WELL};
    if (row->writing) {
        PyErr_SetString(PyExc_RuntimeError, "a note within a note");
        note.failed = WITHIN;
        return note;
    }
    row->writing = 1;
    put_word(&note, WORD(CALL, parts + 1));
    put(&note, function);
    return note;
}

static int add_tuple(NoteRow *row, Object *note) {
    if (row->used >= row->room && grow(row, row->used + 1)) return -1;
    row->words[row->used++] = (Word)Py_NewRef(note);
    return 0;
}

static int end_note(Note *note) {
    NoteRow *row = note->row;
    Size start = row->used;
    if (note->failed == WITHIN) return -1;
    if (note->failed) let_go(row, start, note->at);
    else {
        row->words[start] += WORD(0, (note->at - start) << PARTS);
        row->used = note->at;
    }
    row->writing = 0;
    if (row->later) {
        Object *later = row->later;
        row->later = 0;
        for (Size i = 0; i < PyList_GET_SIZE(later); i++)
            if (add_tuple(row, PyList_GET_ITEM(later, i))) note->failed = LOST;
        Py_DECREF(later);
    }
    if (note->failed && !PyErr_Occurred()) PyErr_SetString(PyExc_TypeError, "a note without some of its parts");
    return note->failed ? -1 : 0;
}

/* The number of words of the note at `at`. */
static Size length_at(NoteRow *row, Size at) {
    Word word = row->words[at];
    return KIND_OF(word) == CALL ? VALUE_OF(word) >> PARTS : 1;
}

/* The object, list or number at `*at`, which is moved behind it. `take`: the words are empty after that. */
static Object *decoded(NoteRow *row, Size *at, int take) {
    Word word = row->words[*at];
    Size count = VALUE_OF(word);
    if (take) row->words[*at] = 0;
    ++*at;
    switch (word ? KIND_OF(word) : KINDS) {
    case OBJECT: return take ? (Object *)word : Py_NewRef((Object *)word);
    case NUMBER: return PyLong_FromSsize_t(count);
    case PAIRS: {
        Object *made = PyDict_New();
        while (made && count--) {
            Object *key = decoded(row, at, take), *value = key ? decoded(row, at, take) : 0;
            if (!value || PyDict_SetItem(made, key, value)) Py_CLEAR(made);
            Py_XDECREF(key), Py_XDECREF(value);
        }
        return made;
    }
    case LIST: case CALL: {
        int call = KIND_OF(word) == CALL;
        if (call) count &= (1 << PARTS) - 1;
        Object *made = call ? PyTuple_New(count) : PyList_New(count);
        for (Size i = 0; made && i < count; i++) {
            Object *one = decoded(row, at, take);
            if (!one) Py_CLEAR(made);
            else if (call) PyTuple_SET_ITEM(made, i, one);
            else PyList_SET_ITEM(made, i, one);
        }
        return made;
    }
    default: return Py_NewRef(Py_None);
    }
}

/* take(): the next note, which is not kept; None in the place of one that is gone. */
static Object *row_take(Object *self, Object *nothing) {
    NoteRow *row = (NoteRow *)self;
    if (row->at >= row->used) Py_RETURN_NONE;
    Size at = row->at, from = at, end = at + length_at(row, at);
    row->at = end;
    Object *note = decoded(row, &at, 1);
    if (!note) let_go(row, from, end);
    return note;
}

/* since(mark): a list of the notes from there on, which are kept. */
static Object *row_since(Object *self, Object *mark) {
    NoteRow *row = (NoteRow *)self;
    Size at = PyLong_AsSsize_t(mark);
    if (at == -1 && PyErr_Occurred()) return NULL;
    Object *found = PyList_New(0);
    if (at < row->at) at = row->at;
    while (found && at < row->used) {
        Object *note = decoded(row, &at, 0);
        if (!note || PyList_Append(found, note)) Py_CLEAR(found);
        Py_XDECREF(note);
    }
    return found;
}

/* append(note): a note that Python made. It never fails for what vLLM does: whoever notes may not expect that. */
static Object *row_append(Object *self, Object *note) {
    NoteRow *row = (NoteRow *)self;
    int failed;
    if (!PyTuple_CheckExact(note)) {
        PyErr_SetString(PyExc_TypeError, "a note is a tuple");
        return NULL;
    }
    if (row->writing) failed = (!row->later && !(row->later = PyList_New(0))) || PyList_Append(row->later, note);
    else failed = add_tuple(row, note);
    if (failed) return NULL;
    Py_RETURN_NONE;
}

/* Makes room for words at `mark`, where a note begins. */
static Word *open_at(NoteRow *row, Size mark, Size count) {
    if (row->used + count > row->room && grow(row, row->used + count)) return 0;
    memmove(row->words + mark + count, row->words + mark, (row->used - mark) * sizeof *row->words);
    row->used += count;
    return row->words + mark;
}

/* insert(mark, note): in front of the note there, or of the first that is not taken. */
static Object *row_insert(Object *self, Object *args) {
    NoteRow *row = (NoteRow *)self;
    Size mark;
    Object *note;
    if (!PyArg_ParseTuple(args, "nO!", &mark, &PyTuple_Type, &note)) return NULL;
    if (row->writing) return row_append(self, note);
    if (mark < row->at) mark = row->at;
    if (mark > row->used) {
        PyErr_SetString(PyExc_IndexError, "no note begins there");
        return NULL;
    }
    Word *word = open_at(row, mark, 1);
    if (!word) return NULL;
    *word = (Word)Py_NewRef(note);
    Py_RETURN_NONE;
}

/* reset(): see Row.reset in note_queue.py. */
enum { KEPT = 8 * FULL }; /* words of room above which a row is let go */
static Object *row_reset(Object *self, Object *nothing) {
    NoteRow *row = (NoteRow *)self;
    if (row->at < row->used || row->writing || row->room > KEPT) Py_RETURN_FALSE;
    row->at = row->used = 0;
    Py_RETURN_TRUE;
}

static Object *row_new(PyTypeObject *type, Object *args, Object *named) {
    NoteRow *row = (NoteRow *)type->tp_alloc(type, 0);
    if (row && grow(row, 1)) Py_CLEAR(row);
    return (Object *)row;
}
static Size row_length(Object *self) { return ((NoteRow *)self)->used; }
static void row_dealloc(Object *self) {
    NoteRow *row = (NoteRow *)self;
    let_go(row, 0, row->used);
    Py_XDECREF(row->later);
    PyMem_Free(row->words);
    Py_TYPE(self)->tp_free(self);
}
static PyMethodDef row_methods[] = {
    {"append", row_append, METH_O, 0}, {"insert", row_insert, METH_VARARGS, 0},
    {"since", row_since, METH_O, 0},   {"take", row_take, METH_NOARGS, 0},
    {"reset", row_reset, METH_NOARGS, 0},
    {0},
};
static PyMemberDef row_members[] = {{"at", T_PYSSIZET, offsetof(NoteRow, at), READONLY, 0}, {0}};
static PySequenceMethods row_sequence = {.sq_length = row_length};
/* The garbage collector does not look into rows: notes are in no cycle that lasts, since the thread that judges them drops
them. */
static PyTypeObject NoteRowType = {
    PyVarObject_HEAD_INIT(0, 0).tp_name = "kvfence.NoteRow",
    .tp_basicsize = sizeof(NoteRow),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = row_new,
    .tp_dealloc = row_dealloc,
    .tp_methods = row_methods,
    .tp_members = row_members,
    .tp_as_sequence = &row_sequence,
};

/* The part of a note queue that hooks touch; note_queue.py has the rest. */
typedef struct {
    PyObject_HEAD
    NoteRow *row;      /* where notes go now */
    Size full, done; /* see note_queue.py */
    int lively, in_flight;
    char storing, on;
} NoteQueue;

static int queue_traverse(NoteQueue *self, visitproc visit, void *arg) { Py_VISIT(self->row); return 0; }
static int queue_clear(NoteQueue *self) { Py_CLEAR(self->row); return 0; }
static void queue_dealloc(NoteQueue *self) {
    PyObject_GC_UnTrack(self);
    queue_clear(self);
    Py_TYPE(self)->tp_free((Object *)self);
}
static Object *queue_get(NoteQueue *self, void *unused) { return Py_NewRef(self->row ? (Object *)self->row : Py_None); }
static int queue_set(NoteQueue *self, Object *row, void *unused) {
    if (!row || Py_TYPE(row) != &NoteRowType) {
        PyErr_SetString(PyExc_TypeError, "a row of notes is a NoteRow");
        return -1;
    }
    Py_XSETREF(self->row, (NoteRow *)Py_NewRef(row));
    return 0;
}
static PyGetSetDef queue_attributes[] = {{"row", (getter)queue_get, (setter)queue_set, 0, 0}, {0}};
static PyMemberDef queue_members[] = {
    {"full", T_PYSSIZET, offsetof(NoteQueue, full), 0, 0}, {"done", T_PYSSIZET, offsetof(NoteQueue, done), 0, 0},
    {"lively", T_INT, offsetof(NoteQueue, lively), 0, 0},  {"storing", T_BOOL, offsetof(NoteQueue, storing), 0, 0},
    {"on", T_BOOL, offsetof(NoteQueue, on), 0, 0},         {"kvfence_in_flight", T_INT, offsetof(NoteQueue, in_flight), 0, 0},
    {0},
};
static PyTypeObject NoteQueueType = {
    PyVarObject_HEAD_INIT(0, 0).tp_name = "kvfence.NoteQueue",
    .tp_basicsize = sizeof(NoteQueue),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
    .tp_traverse = (traverseproc)queue_traverse,
    .tp_clear = (inquiry)queue_clear,
    .tp_dealloc = (destructor)queue_dealloc,
    .tp_members = queue_members,
    .tp_getset = queue_attributes,
    .tp_new = PyType_GenericNew,
};

/* The note queue, if it takes notes in rows; NULL if it is another kind, or stopped. */
static NoteQueue *queue_of(Object *note_queue) {
    static PyTypeObject *known; /* the last type of note queues that was found to be one */
    if (Py_TYPE(note_queue) != known) {
        if (!PyType_IsSubtype(Py_TYPE(note_queue), &NoteQueueType)) return 0;
        Py_XSETREF(known, (PyTypeObject *)Py_NewRef((Object *)Py_TYPE(note_queue)));
    }
    NoteQueue *notes = (NoteQueue *)note_queue;
    return notes->on && notes->row ? notes : 0;
}

/* Hands the exception under way to the note queue. Not 0 if that raised one: then it must reach vLLM. */
static int trouble(Object *note_queue) {
    Object *kind, *error, *trace;
    PyErr_Fetch(&kind, &error, &trace);
    PyErr_NormalizeException(&kind, &error, &trace);
    Object *done = PyObject_CallMethodObjArgs(note_queue, s_trouble, error ? error : Py_None, 0);
    Py_XDECREF(kind), Py_XDECREF(error), Py_XDECREF(trace), Py_XDECREF(done);
    return done ? 0 : -1;
}
