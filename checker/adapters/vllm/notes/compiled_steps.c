/* Hooks of the scheduler's steps, and what Python gets of all this. */

/* Counts the step and notes it: see _SCHEDULE in hooks_scheduler.py. */
static int dispatched(Hook *hook, NoteQueue *notes, Object *stream, Object *output) {
    Object *tokens = get(output, s_num_scheduled_tokens), *running = PyLong_FromLong(notes->in_flight);
    int failed = !tokens || !running || PyObject_SetAttr(output, s_kvfence_in_flight, running);
    if (!failed && !PyDict_Check(tokens)) {
        PyErr_SetString(PyExc_TypeError, "num_scheduled_tokens is not a dictionary");
        failed = 1;
    }
    if (!failed && PyDict_GET_SIZE(tokens)) {
        Object *uneven = get(output, s_scheduled_spec_decode_tokens);
        int some = uneven ? PyObject_IsTrue(uneven) : -1;
        notes->in_flight++;
        failed = some < 0;
        if (!failed && notes->on) {
            Note note = begin_note(notes->row, hook->calls[0], 4);
            put(&note, stream), put_number(&note, (Word)output), put_pairs(&note, tokens);
            if (some) put_all(&note, uneven);
            else put_list(&note, 0);
            failed = end_note(&note);
        }
        Py_XDECREF(uneven);
    }
    Py_XDECREF(tokens), Py_XDECREF(running);
    return failed;
}

static Object *schedule(Hook *hook, REST) {
    Object *stream;
    NoteQueue *notes;
    /* Steps in flight are counted where nothing else is observed, too. */
    if (observed(hook, args[0], s__kvfence_stream, &stream, &notes) != NOTED) return plain(hook, PASS);
    Py_INCREF(stream), Py_INCREF(notes);
    Object *output = original(hook, PASS);
    if (output && dispatched(hook, notes, stream, output) && trouble((Object *)notes)) Py_CLEAR(output);
    Py_DECREF(stream), Py_DECREF(notes);
    return output;
}

/* update_from_output: argument 0 is the scheduler's output of the step. */
static Object *update_from_output(Hook *hook, REST) {
    Object *stream, *output = argument(hook, 0, PASS);
    NoteQueue *notes;
    if (!output || observed(hook, args[0], s__kvfence_stream, &stream, &notes) != NOTED) return plain(hook, PASS);
    Py_INCREF(stream), Py_INCREF(notes);
    Object *tokens = get(output, s_num_scheduled_tokens), *uneven = get(output, s_scheduled_spec_decode_tokens);
    Object *done = 0;
    int failed = !tokens || !uneven, some = failed ? 0 : PyObject_IsTrue(tokens);
    if (some > 0 && notes->in_flight > 0) notes->in_flight--;
    if (some > 0 && !failed) {
        Note note = begin_note(notes->row, hook->calls[0], 2);
        put(&note, stream), put_number(&note, (Word)output);
        failed |= end_note(&note);
    }
    if (!failed || !trouble((Object *)notes)) done = original(hook, PASS);
    if (done) {
        /* calls[1](scheduler, output): after a step with speculative tokens */
        if (uneven && PyObject_IsTrue(uneven)) {
            Object *settled = PyObject_CallFunctionObjArgs(hook->calls[1], args[0], output, 0);
            if (!settled && trouble((Object *)notes)) Py_CLEAR(done);
            Py_XDECREF(settled);
        }
        if (notes->on && notes->row) {
            notes->done = notes->row->used;
            if (notes->done > notes->full) {
                Object *turned = PyObject_CallMethodObjArgs((Object *)notes, s_turn, 0);
                if (!turned && trouble((Object *)notes)) Py_CLEAR(done);
                Py_XDECREF(turned);
            }
        }
    }
    Py_XDECREF(tokens), Py_XDECREF(uneven);
    Py_DECREF(stream), Py_DECREF(notes);
    return done;
}

/* The type of hooks. */

#define NAMED(name) {#name, name}
static const struct { const char *name; Call call; } kinds[] = {
    NAMED(get_new_blocks), NAMED(touch), NAMED(free_blocks), NAMED(cache_full_blocks), NAMED(allocate_slots),
    NAMED(build_connector_meta), NAMED(process_store_event), NAMED(update_connector_output), NAMED(schedule),
    NAMED(update_from_output),
};

static Object *hook_vectorcall(Object *self, REST) {
    Hook *hook = (Hook *)self;
    if (PyVectorcall_NARGS(nargsf) < 1) return original(hook, PASS);
    return hook->call(hook, PASS);
}

/* Hook(kind, original, plain, calls, arguments): `calls` are functions; `arguments` are (name, place, default) each, or
(name, place) without a default. */
static Object *hook_new(PyTypeObject *type, Object *args, Object *named) {
    const char *kind;
    Object *original, *plain, *calls, *arguments;
    if (!PyArg_ParseTuple(args, "sOOO!O!", &kind, &original, &plain, &PyTuple_Type, &calls, &PyTuple_Type, &arguments))
        return NULL;
    Call call = 0;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (!strcmp(kinds[i].name, kind)) call = kinds[i].call;
    if (!call || PyTuple_GET_SIZE(calls) > 3 || PyTuple_GET_SIZE(arguments) > MOST) {
        PyErr_Format(PyExc_ValueError, "no compiled hook %s", kind);
        return NULL;
    }
    Hook *hook = (Hook *)type->tp_alloc(type, 0);
    if (!hook) return NULL;
    hook->vectorcall = hook_vectorcall, hook->call = call;
    hook->original = Py_NewRef(original), hook->plain = Py_NewRef(plain);
    for (Size i = 0; i < PyTuple_GET_SIZE(calls); i++) hook->calls[i] = Py_NewRef(PyTuple_GET_ITEM(calls, i));
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
    for (int i = 0; i < 2; i++) {
        Py_VISIT(self->seen[i].alive);
        Py_VISIT(self->seen[i].what);
        Py_VISIT(self->seen[i].notes);
    }
    for (int i = 0; i < 3; i++) Py_VISIT(self->calls[i]);
    for (int i = 0; i < MOST; i++) Py_VISIT(self->defaults[i]);
    return 0;
}
static int hook_clear(Hook *self) {
    Py_CLEAR(self->original);
    Py_CLEAR(self->plain);
    Py_CLEAR(self->dict);
    for (int i = 0; i < 2; i++) forget(&self->seen[i]);
    for (int i = 0; i < 3; i++) Py_CLEAR(self->calls[i]);
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

/* (NoteQueue, NoteRow, Hook, moved) */
Object *compiled_hooks(void) {
#define INTERN(name) \
    if (!(s_##name = PyUnicode_InternFromString(#name))) return NULL;
    NAMES(INTERN)
    if (PyType_Ready(&NoteRowType) || PyType_Ready(&NoteQueueType) || PyType_Ready(&HookType)) return NULL;
    Object *full = PyLong_FromLong(FULL);
    int failed = !full || PyDict_SetItemString(NoteRowType.tp_dict, "full", full);
    Py_XDECREF(full);
    if (failed) return NULL;
    Object *moved = PyCFunction_NewEx(&moved_method, 0, 0);
    return Py_BuildValue("(OOON)", (Object *)&NoteQueueType, (Object *)&NoteRowType, (Object *)&HookType, moved);
}
