/* Hooks of pools, and of the calls that say on whose behalf these change. */

enum { LIVELY = 3 }; /* note_queue.py says what for */

/* The hashes of the listed blocks from `from` to before `to`; an empty list if none has one and `all` is not set. */
static void put_hashes(Note *note, Object *listed, Size from, Size to, int all) {
    static Slot slot;
    Size count = PySequence_Fast_GET_SIZE(listed), none = 0;
    if (to > count) to = count;
    if (from > to) from = to;
    Size start = note->at;
    put_list(note, to - from);
    for (Size i = from; i < to && !note->failed; i++) {
        Object *hash = read_slot(&slot, PySequence_Fast_GET_ITEM(listed, i), s__block_hash);
        none += hash == Py_None;
        put_owned(note, hash);
    }
    if (note->failed || all || none < to - from) return;
    let_go(note->row, start, note->at);
    note->at = start;
    put_list(note, 0);
}

static Object *free_of(Object *tap) {
    static Slot slot;
    Object *queue = read_slot(&slot, tap, s_queue), *free = queue ? get(queue, s_num_free_blocks) : 0;
    Py_XDECREF(queue);
    return free;
}

/* Notes (function, tap, blocks, free slots[, hashes]). */
enum { WITHOUT, NONE, SOME, ALL };
static int pool_note(NoteQueue *notes, Object *function, Object *tap, Object *listed, int hashes) {
    Object *free = free_of(tap);
    notes->lively = LIVELY;
    Note note = begin_note(notes->row, function, hashes == WITHOUT ? 3 : 4);
    put(&note, tap);
    put_some(&note, listed, 0, PY_SSIZE_T_MAX);
    put_owned(&note, free);
    if (hashes == NONE) put(&note, Py_None);
    else if (hashes) put_hashes(&note, listed, 0, PY_SSIZE_T_MAX, hashes == ALL);
    return end_note(&note);
}

static Object *get_new_blocks(Hook *hook, REST) {
    Object *tap;
    NoteQueue *notes;
    int seen = kwnames || PyVectorcall_NARGS(nargsf) != 2 ? ODD : observed(hook, args[0], s__kvfence_tap, &tap, &notes);
    if (seen != NOTED) return seen ? plain(hook, PASS) : original(hook, PASS);
    Py_INCREF(tap), Py_INCREF(notes);
    Object *blocks = original(hook, PASS);
    if (blocks && notes->on) {
        Object *listed = PySequence_Fast(blocks, "blocks cannot be listed");
        if ((!listed || pool_note(notes, hook->calls[0], tap, listed, SOME)) && trouble((Object *)notes)) Py_CLEAR(blocks);
        Py_XDECREF(listed);
    } else if (!blocks && notes->on && PyErr_ExceptionMatches(PyExc_ValueError)) {
        Object *kind, *error, *trace;
        PyErr_Fetch(&kind, &error, &trace);
        Object *free = free_of(tap);
        Note note = begin_note(notes->row, hook->calls[1], 3);
        put(&note, tap), put(&note, args[1]), put_owned(&note, free);
        if (end_note(&note) && trouble((Object *)notes)) PyErr_Clear();
        PyErr_Restore(kind, error, trace);
    }
    Py_DECREF(tap), Py_DECREF(notes);
    return blocks;
}

static Object *touch(Hook *hook, REST) {
    Object *tap;
    NoteQueue *notes;
    int ordinary = !kwnames && PyVectorcall_NARGS(nargsf) == 2 && PyList_Check(args[1]);
    int seen = ordinary ? observed(hook, args[0], s__kvfence_tap, &tap, &notes) : ODD;
    if (seen != NOTED) return seen ? plain(hook, PASS) : original(hook, PASS);
    Object *listed = args[1];
    Py_INCREF(tap), Py_INCREF(notes), Py_INCREF(listed);
    Object *done = original(hook, PASS);
    if (done && notes->on && pool_note(notes, hook->calls[0], tap, listed, notes->storing ? ALL : NONE) && trouble((Object *)notes))
        Py_CLEAR(done);
    Py_DECREF(tap), Py_DECREF(notes), Py_DECREF(listed);
    return done;
}

/* free_blocks(blocks, ...): the original gets a list in place of an iterator. */
static Object *free_blocks(Hook *hook, REST) {
    Object *tap, *passed[8];
    NoteQueue *notes;
    Size given = PyVectorcall_NARGS(nargsf), all = given + (kwnames ? PyTuple_GET_SIZE(kwnames) : 0);
    int seen = given < 2 || all > 8 ? ODD : observed(hook, args[0], s__kvfence_tap, &tap, &notes);
    if (seen != NOTED) return seen ? plain(hook, PASS) : original(hook, PASS);
    Py_INCREF(tap), Py_INCREF(notes);
    Object *listed = PySequence_Tuple(args[1]), *done = 0;
    int again = PyList_Check(args[1]) || PyTuple_Check(args[1]); /* it can be read twice */
    Object *blocks = !listed ? 0 : again ? Py_NewRef(args[1]) : PySequence_List(listed);
    if (blocks) {
        for (Size i = 0; i < all; i++) passed[i] = i == 1 ? blocks : args[i];
        done = PyObject_Vectorcall(hook->original, passed, given, kwnames);
    }
    Py_XDECREF(blocks);
    if (done && notes->on && pool_note(notes, hook->calls[0], tap, listed, WITHOUT) && trouble((Object *)notes)) Py_CLEAR(done);
    Py_XDECREF(listed), Py_DECREF(tap), Py_DECREF(notes);
    return done;
}

/* cache_full_blocks: arguments 0 to 2 are the blocks, how many are cached, and how many are full. */
static Object *cache_full_blocks(Hook *hook, REST) {
    Object *tap, *blocks = argument(hook, 0, PASS), *cached = argument(hook, 1, PASS), *full = argument(hook, 2, PASS);
    NoteQueue *notes;
    if (!blocks || !PyList_Check(blocks) || !cached || !full || !PyLong_Check(cached) || !PyLong_Check(full))
        return plain(hook, PASS);
    Size from = PyLong_AsSsize_t(cached), to = PyLong_AsSsize_t(full);
    if ((from == -1 || to == -1) && PyErr_Occurred()) return NULL;
    int seen = from >= to ? NOBODY : observed(hook, args[0], s__kvfence_tap, &tap, &notes);
    if (seen != NOTED) return seen ? plain(hook, PASS) : original(hook, PASS);
    Py_INCREF(tap), Py_INCREF(notes), Py_INCREF(blocks);
    Object *done = original(hook, PASS);
    if (done && notes->on) {
        notes->lively = LIVELY;
        Note note = begin_note(notes->row, hook->calls[0], 3);
        put(&note, tap), put_some(&note, blocks, from, to), put_hashes(&note, blocks, from, to, 1);
        if (end_note(&note) && trouble((Object *)notes)) Py_CLEAR(done);
    }
    Py_DECREF(tap), Py_DECREF(notes), Py_DECREF(blocks);
    return done;
}

/* Says, before the notes since `mark`, that a call began then; its end is noted already. calls[0] begins that note. */
static int begun(Hook *hook, NoteQueue *notes, Object *stream, Size mark) {
    NoteRow *row = notes->row;
    if (mark < row->at) mark = row->at; /* The engine stood still in the call for long: some of it is judged. */
    if (row->writing || mark > row->used) {
        PyErr_SetString(PyExc_RuntimeError, "the beginning of a call cannot be noted");
        return -1;
    }
    Word *word = open_at(row, mark, 3);
    if (!word) return -1;
    word[0] = WORD(CALL, 3 << PARTS | 2);
    word[1] = (Word)Py_NewRef(hook->calls[0]), word[2] = (Word)Py_NewRef(stream);
    return 0;
}

/* Whether nothing but labels was noted since `mark`: these say nothing about who holds the blocks. */
static int labels_only(NoteRow *row, Size mark, Object *labelled) {
    for (Size at = mark; at < row->used; at += length_at(row, at)) {
        if (KIND_OF(row->words[at]) != CALL || (Object *)row->words[at + 1] != labelled) return 0;
    }
    return 1;
}

/* The number of blocks that were given or shared since `mark`. Notes of that have five parts, the third lists blocks. */
static Size given_since(NoteRow *row, Size mark) {
    Size most = 0;
    for (Size at = mark; at < row->used; at += length_at(row, at)) {
        Word word = row->words[at];
        if (KIND_OF(word) == CALL) {
            Size third = at + 3;
            if ((VALUE_OF(word) & ((1 << PARTS) - 1)) == 5 && KIND_OF(row->words[third]) == LIST)
                most += VALUE_OF(row->words[third]);
        } else if (word) { /* Python made it. */
            Object *made = (Object *)word, *blocks = PyTuple_GET_SIZE(made) > 4 ? PyTuple_GET_ITEM(made, 2) : 0;
            if (blocks && PyList_CheckExact(blocks)) most += PyList_GET_SIZE(blocks);
        }
    }
    return most;
}

/* The last blocks of each table of a request: as many as were given since `mark`, which are at the ends of its tables
if `ends` is set. */
static void put_tables(Note *note, Object *all, Object *id, Size mark, int ends) {
    Size most = ends ? given_since(note->row, mark) : 0, where = note->at, count = 0;
    put_list(note, 0);
    if (ends && !most) return;
    for (Size group = 0; group < PyList_GET_SIZE(all) && !note->failed; group++) {
        Object *tables = PyList_GET_ITEM(all, group), *table = 0;
        if (PyDict_Check(tables)) table = PyDict_GetItemWithError(tables, id);
        if (!table && (PyErr_Occurred() || !PyDict_Check(tables))) { put(note, 0); return; }
        if (!table || !PyList_Check(table)) continue;
        Size length = PyList_GET_SIZE(table), start = ends && length > most ? length - most : 0;
        put_list(note, 3), put_number(note, group), put_number(note, start), put_some(note, table, start, length);
        count++;
    }
    if (!note->failed) note->row->words[where] = WORD(LIST, count);
}

/* Notes what allocate_slots did for a request: see _allocated in hooks_scheduler.py. */
static int allocated(Hook *hook, NoteQueue *notes, Object *manager, Object *request, Object *local, Object *external, Size mark,
                     int done) {
    static Slot of_tables, of_appending;
    Object *stream = get(manager, s__kvfence_stream), *reader = get(manager, s__kvfence_tables);
    Object *id = get(request, s_request_id), *computed = get(request, s_num_computed_tokens);
    Object *total = done ? get(request, s_num_tokens) : 0, *appending = reader ? read_slot(&of_appending, reader, s_appending) : 0;
    Object *all = reader ? read_slot(&of_tables, reader, s_tables) : 0, *here = 0;
    int failed = 0, running = computed ? PyObject_IsTrue(computed) : 0;
    if (stream && running && done && labels_only(notes->row, mark, hook->calls[2])) goto over;
    if (done && computed) here = PyNumber_Add(local, computed);
    Note note = begin_note(notes->row, hook->calls[1], 4);
    put(&note, stream), put(&note, id);
    if (id && all && appending && PyList_CheckExact(all)) put_tables(&note, all, id, mark, running && appending == Py_True);
    else put(&note, 0);
    if (done) put_list(&note, 3), put(&note, here), put(&note, external), put(&note, total);
    else put(&note, Py_None);
    failed = end_note(&note) || begun(hook, notes, stream, mark);
over:
    Py_XDECREF(stream), Py_XDECREF(reader), Py_XDECREF(id), Py_XDECREF(computed), Py_XDECREF(total);
    Py_XDECREF(appending), Py_XDECREF(all), Py_XDECREF(here);
    return failed;
}

/* allocate_slots: arguments 0 to 2 are the request and its computed tokens, new ones and those from elsewhere. Most calls
change nothing that is noted. */
static Object *allocate_slots(Hook *hook, REST) {
    Object *stream;
    NoteQueue *notes;
    int seen = observed(hook, args[0], s__kvfence_stream, &stream, &notes);
    if (seen != NOTED) return seen ? plain(hook, PASS) : original(hook, PASS);
    Size mark = notes->row->used;
    Py_INCREF(notes);
    Object *blocks = original(hook, PASS);
    if (notes->on && (!blocks || notes->row->used != mark)) {
        Object *kind, *error, *trace;
        PyErr_Fetch(&kind, &error, &trace);
        Object *request = argument(hook, 0, PASS), *local = argument(hook, 1, PASS), *more = argument(hook, 2, PASS);
        int failed = !request || !local || !more;
        if (failed) PyErr_SetString(PyExc_TypeError, "allocate_slots was not told of what");
        else failed = allocated(hook, notes, args[0], request, local, more, mark, blocks && blocks != Py_None);
        if (failed && trouble((Object *)notes)) Py_CLEAR(blocks);
        if (kind) PyErr_Restore(kind, error, trace);
    }
    Py_DECREF(notes);
    return blocks;
}
