/* Hooks of the connector's scheduler side: stores and loads of a step, and their ends. */

/* Parts of a note: (id, its cursors, its computed tokens) of a request that is tracked for stores. */
static void put_cursors(Note *note, Object *id, Object *known, Object *now) {
    put_list(note, 3), put(note, id), put_all(note, now);
    Object *request = get(known, s_request), *computed = request ? get(request, s_num_computed_tokens) : 0;
    put_owned(note, computed);
    Py_XDECREF(request);
}

/* The sum of cursors; -1 after an error. */
static Size sum_of(Object *cursors) {
    Size sum = 0;
    if (!PyList_CheckExact(cursors)) { PyErr_SetString(PyExc_TypeError, "cursors are not in a list"); return -1; }
    for (Size i = PyList_GET_SIZE(cursors) - 1; i >= 0; i--) {
        Size one = PyLong_AsSsize_t(PyList_GET_ITEM(cursors, i));
        if (one == -1 && PyErr_Occurred()) return -1;
        sum += one;
    }
    return sum;
}

/* Whether cursors of this sum moved since they were seen: 1, 0, or -1 after an error. */
static int has_moved(Object *seen, Object *id, Size sum) {
    Object *before = PyDict_GetItemWithError(seen, id);
    if (!before) return PyErr_Occurred() ? -1 : 1;
    Size then = PyLong_AsSsize_t(before);
    return then == -1 && PyErr_Occurred() ? -1 : then != sum;
}

/* Puts the cursors that moved: see moved in transfers.py. Their number, -1 after an error. */
static Size put_moved(Note *note, Object *tracked, Object *tokens, Object *seen) {
    static Slot slot;
    Object *id, *ignored;
    Size place = 0, count = 0;
    while (!note->failed && PyDict_Next(tokens, &place, &id, &ignored)) {
        Object *known = PyDict_GetItemWithError(tracked, id);
        if (!known) continue;
        Object *now = read_slot(&slot, known, s_num_stored_blocks);
        Size sum = now ? sum_of(now) : -1;
        int there = sum < 0 ? -1 : has_moved(seen, id, sum);
        if (there > 0) {
            put_cursors(note, id, known, now);
            Object *total = PyLong_FromSsize_t(sum);
            if (!total || PyDict_SetItem(seen, id, total)) there = -1;
            Py_XDECREF(total);
            count++;
        }
        Py_XDECREF(now);
        if (there < 0) put(note, 0);
    }
    if (PyErr_Occurred()) put(note, 0);
    return note->failed ? -1 : count;
}

/* moved(tracked, tokens, seen): a list of them. */
static Object *moved_listed(Object *module, Object *const *args, Size count) {
    if (count != 3 || !PyDict_Check(args[0]) || !PyDict_Check(args[1]) || !PyDict_Check(args[2])) {
        PyErr_SetString(PyExc_TypeError, "moved() takes three dictionaries");
        return NULL;
    }
    NoteRow *row = (NoteRow *)row_new(&NoteRowType, 0, 0);
    if (!row) return NULL;
    Note note = begin_note(row, Py_None, 1);
    Size where = note.at, found;
    put_list(&note, 0);
    found = put_moved(&note, args[0], args[1], args[2]);
    if (found >= 0) row->words[where] = WORD(LIST, found);
    Object *all = end_note(&note) ? 0 : decoded(row, &where, 0);
    Py_DECREF(row);
    return all;
}
static PyMethodDef moved_method = {"moved", (PyCFunction)(void (*)(void))moved_listed, METH_FASTCALL, 0};

/* What a dictionary of the manager has under an event, as a list or tuple: an empty one for no event or nothing. */
static Object *requests_of(Object *manager, Object *name, Object *event) {
    if (!PyLong_Check(event) || PyLong_AsLong(event) < 0) return PyErr_Occurred() ? NULL : PyTuple_New(0);
    Object *by_event = get(manager, name), *found = 0;
    if (by_event && PyDict_Check(by_event)) {
        Object *ids = PyDict_GetItemWithError(by_event, event);
        if (!PyErr_Occurred()) found = ids ? PySequence_Tuple(ids) : PyTuple_New(0);
    } else if (by_event) PyErr_SetString(PyExc_TypeError, "events are not in a dictionary");
    Py_XDECREF(by_event);
    return found;
}

/* Puts the cursors of owners of a store that are not among those whose cursors moved. Their number. */
static Size put_owners(Note *note, Object *tracked, Object *owners, Object *tokens, Object *seen, int moving) {
    Size count = 0;
    for (Size i = 0; i < PyTuple_GET_SIZE(owners) && !note->failed; i++) {
        Object *id = PyTuple_GET_ITEM(owners, i), *known = PyDict_GetItemWithError(tracked, id), *now = 0;
        if (!known && !PyErr_Occurred()) continue;
        now = known ? get(known, s_num_stored_blocks) : 0;
        Size sum = now ? sum_of(now) : -1;
        int there = sum >= 0 && moving ? PyDict_Contains(tokens, id) : 0;
        if (there > 0) there = has_moved(seen, id, sum);
        if (!now || there < 0 || PyErr_Occurred()) put(note, 0);
        else if (!there) put_cursors(note, id, known, now), count++;
        Py_XDECREF(now);
    }
    return count;
}

/* Notes what the metadata of a step was made from: see _step in hooks_simple.py. 1: the tier is full, which is left to
Python. */
static int step_decided(Hook *hook, NoteQueue *notes, Object *tier, Object *manager, Object *meta, Object *output, Size mark) {
    static Slot of_tap, of_stream, of_seen;
    Object *tap = read_slot(&of_tap, tier, s_tap), *free = tap ? free_of(tap) : 0, *tracked = get(manager, s__reqs_to_store);
    Object *stream = read_slot(&of_stream, tier, s_stream), *store = get(meta, s_store_event), *load = get(meta, s_load_event);
    Object *tokens = get(output, s_num_scheduled_tokens), *seen = read_slot(&of_seen, tier, s_seen), *owners = 0, *loads = 0;
    int failed = -1;
    if (!free || !tracked || !stream || !store || !load || !tokens || !seen) goto over;
    if (!PyDict_Check(tracked) || !PyDict_Check(tokens) || !PyDict_Check(seen) || !PyLong_Check(free) || PyLong_AsLong(free) <= 0) { failed = 1; goto over; }
    owners = requests_of(manager, s__store_event_to_reqs, store), loads = requests_of(manager, s__load_event_to_reqs, load);
    if (!owners || !loads) goto over;
    int moving = notes->lively && PyDict_GET_SIZE(tracked);
    if (moving) notes->lively--;
    Note note = begin_note(notes->row, hook->calls[1], 7);
    put(&note, tier), put(&note, store), put_some(&note, owners, 0, PY_SSIZE_T_MAX), put_some(&note, loads, 0, PY_SSIZE_T_MAX);
    Size where = note.at, more, found;
    put_list(&note, 0);
    more = put_owners(&note, tracked, owners, tokens, seen, moving);
    found = moving ? put_moved(&note, tracked, tokens, seen) : 0;
    if (!note.failed) notes->row->words[where] = WORD(LIST, more + found);
    put_number(&note, found), put(&note, free);
    failed = end_note(&note) || begun(hook, notes, stream, mark) ? -1 : 0;
over:
    Py_XDECREF(tap), Py_XDECREF(free), Py_XDECREF(tracked), Py_XDECREF(stream), Py_XDECREF(store), Py_XDECREF(load);
    Py_XDECREF(tokens), Py_XDECREF(seen), Py_XDECREF(owners), Py_XDECREF(loads);
    return failed;
}

/* build_connector_meta: argument 0 is the scheduler's output. calls[1] begins its note. */
static Object *build_connector_meta(Hook *hook, REST) {
    Object *tier, *output = argument(hook, 0, PASS);
    NoteQueue *notes;
    if (!output || observed(hook, args[0], s__kvfence_tier, &tier, &notes) != NOTED) return plain(hook, PASS);
    Py_INCREF(tier), Py_INCREF(notes);
    Size mark = notes->row->used;
    notes->storing = 1;
    Object *meta = original(hook, PASS);
    notes->storing = 0;
    int needed = notes->on && (!meta || notes->lively || notes->row->used != mark);
    if (notes->on && !needed) {
        Object *store = get(meta, s_store_event), *load = get(meta, s_load_event);
        needed = !store || !load || PyLong_AsLong(store) >= 0 || PyLong_AsLong(load) >= 0;
        Py_XDECREF(store), Py_XDECREF(load);
        PyErr_Clear();
    }
    if (needed) {
        Object *kind, *error, *trace;
        PyErr_Fetch(&kind, &error, &trace);
        int left = meta ? step_decided(hook, notes, tier, args[0], meta, output, mark) : 1;
        if (left > 0) { /* calls[2](tier, manager, meta or None, output, mark) */
            Object *where = PyLong_FromSsize_t(mark), *more = meta ? meta : Py_None, *done = 0;
            if (where) done = PyObject_CallFunctionObjArgs(hook->calls[2], tier, args[0], more, output, where, 0);
            Py_XDECREF(where), Py_XDECREF(done);
            left = done ? 0 : -1;
        }
        if (left && trouble((Object *)notes)) Py_CLEAR(meta);
        if (kind) PyErr_Restore(kind, error, trace);
    }
    Py_DECREF(tier), Py_DECREF(notes);
    return meta;
}

/* The hashes in a list, with None for those of blocks that are not in the index: looks at both ends, and leaves the rest
to calls[2](index, hashes). -1 after an error. */
static int only_found(Hook *hook, Object *pool, Object *hashes) {
    Size count = PyList_GET_SIZE(hashes), good = 0;
    Object *index = get(pool, s_cached_block_hash_to_block), *done = index;
    for (int last = 0; done && count && last < 2; last++) {
        Object *hash = PyList_GET_ITEM(hashes, last ? count - 1 : 0);
        Object *found = hash == Py_None ? Py_NewRef(hash) : PyObject_CallMethodObjArgs(index, s_get_one_block, hash, 0);
        good += found && found != Py_None;
        if (!found) done = 0;
        Py_XDECREF(found);
    }
    if (done && count && good < 2) {
        done = PyObject_CallFunctionObjArgs(hook->calls[2], index, hashes, 0);
        Py_XDECREF(done);
    }
    Py_XDECREF(index);
    return done ? 0 : -1;
}

/* The slots of a completed store, a list or tuple, and their hashes in the tier now. */
static int stored(Hook *hook, Object *manager, Object *transfer, Object **slots, Object **hashes) {
    static Slot slot;
    Object *ids = get(transfer, s_cpu_block_ids), *pool = get(manager, s_cpu_block_pool);
    Object *blocks = pool ? get(pool, s_blocks) : 0, *at = ids ? PySequence_Tuple(ids) : 0;
    Object *found = at ? PyList_New(PyTuple_GET_SIZE(at)) : 0;
    int failed = !blocks || !found || !PyList_Check(blocks);
    for (Size i = 0; !failed && i < PyTuple_GET_SIZE(at); i++) {
        Size number = PyLong_AsSsize_t(PyTuple_GET_ITEM(at, i));
        Object *block = number >= 0 && number < PyList_GET_SIZE(blocks) ? PyList_GET_ITEM(blocks, number) : 0;
        Object *hash = block ? read_slot(&slot, block, s__block_hash) : 0;
        if (hash) PyList_SET_ITEM(found, i, hash);
        failed = !hash;
    }
    if (failed && !PyErr_Occurred()) PyErr_SetString(PyExc_TypeError, "a store to blocks that are not known");
    if (!failed) failed = only_found(hook, pool, found);
    if (failed) { Py_CLEAR(found); Py_CLEAR(at); }
    *hashes = found, *slots = at;
    Py_XDECREF(ids), Py_XDECREF(pool), Py_XDECREF(blocks);
    return failed;
}

/* _process_store_event: argument 0 is the number of the event. calls[1] begins its note, calls[2]: see only_found. */
static Object *process_store_event(Hook *hook, REST) {
    Object *tier, *event = argument(hook, 0, PASS);
    NoteQueue *notes;
    if (!event || observed(hook, args[0], s__kvfence_tier, &tier, &notes) != NOTED) return plain(hook, PASS);
    Object *stream = get(tier, s_stream), *waiting = stream ? get(args[0], s__store_event_to_blocks) : 0;
    if (!waiting || !PyDict_Check(waiting)) {
        PyErr_Clear();
        Py_XDECREF(stream), Py_XDECREF(waiting);
        return plain(hook, PASS);
    }
    Py_INCREF(tier), Py_INCREF(notes);
    Object *transfer = Py_XNewRef(PyDict_GetItemWithError(waiting, event));
    PyErr_Clear();
    Size mark = notes->row->used;
    Object *done = original(hook, PASS), *kind, *error, *trace, *slots = 0, *hashes = 0;
    PyErr_Fetch(&kind, &error, &trace);
    if (done && transfer && notes->on && stored(hook, args[0], transfer, &slots, &hashes) && trouble((Object *)notes)) Py_CLEAR(done);
    if (notes->on) {
        Note note = begin_note(notes->row, hook->calls[1], 4);
        put(&note, tier), put(&note, event);
        if (slots) put_some(&note, slots, 0, PY_SSIZE_T_MAX), put_some(&note, hashes, 0, PY_SSIZE_T_MAX);
        else put_list(&note, 0), put_list(&note, 0);
        if ((end_note(&note) || begun(hook, notes, stream, mark)) && trouble((Object *)notes)) Py_CLEAR(done);
    }
    Py_XDECREF(slots), Py_XDECREF(hashes), Py_XDECREF(transfer), Py_DECREF(waiting);
    Py_DECREF(tier), Py_DECREF(notes), Py_DECREF(stream);
    if (kind) PyErr_Restore(kind, error, trace);
    return done;
}

/* update_connector_output: argument 0 says what the workers finished. calls[0] begins the note of loads, calls[1] that of
stores. */
static Object *update_connector_output(Hook *hook, REST) {
    Object *output = argument(hook, 0, PASS), *tier;
    NoteQueue *notes;
    if (!output || observed(hook, args[0], s__kvfence_tier, &tier, &notes) != NOTED) return plain(hook, PASS);
    Object *received = get(output, s_finished_recving), *meta = received ? get(output, s_kv_connector_worker_meta) : 0;
    Object *completed = meta && meta != Py_None ? get(meta, s_completed_store_events) : 0;
    int known = meta && !PyErr_Occurred() && (!completed || PyDict_Check(completed)), failed = 0;
    PyErr_Clear();
    Py_INCREF(notes);
    if (known && PyObject_IsTrue(received) > 0) {
        Note note = begin_note(notes->row, hook->calls[0], 2);
        put(&note, tier), put_all(&note, received);
        failed = end_note(&note) && trouble((Object *)notes);
    }
    if (known && !failed && notes->on && completed && PyDict_GET_SIZE(completed)) {
        Note note = begin_note(notes->row, hook->calls[1], 2);
        put(&note, tier), put_pairs(&note, completed);
        failed = end_note(&note) && trouble((Object *)notes);
    }
    Py_XDECREF(received), Py_XDECREF(meta), Py_XDECREF(completed), Py_DECREF(notes);
    return failed ? NULL : known ? original(hook, PASS) : plain(hook, PASS);
}
