/* A Hook stands in a class of vLLM in place of the method `original`. It looks at the ordinary case only; `plain`, the
hook in Python, does the rest. */

#define MOST 3 /* arguments that a hook looks for by name */

/* Whom a hook saw last, what observes it, and where that notes: found without looking through attributes. */
typedef struct {
    Object *self, *alive, *what; /* self: borrowed, compared only; weak references to it and to what observes it */
    NoteQueue *notes;
} Seen;

typedef struct Hook Hook;
typedef Object *(*Call)(Hook *, Object *const *, size_t, Object *);
struct Hook {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    Call call; /* what most calls read comes first */
    Object *original;
    Seen seen[2]; /* a pool's hooks see those of both devices by turns */
    Size places[MOST]; /* of arguments, in the order in which a hook asks for them */
    Object *calls[3];   /* functions: what a note begins with, or what is called when needed */
    Object *names[MOST], *defaults[MOST], *plain, *dict;
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

static Object *referred(Object *weak) {
    Object *found = PyWeakref_GET_OBJECT(weak);
    return found == Py_None ? 0 : found;
}

static void forget(Seen *seen) {
    seen->self = 0;
    Py_CLEAR(seen->alive);
    Py_CLEAR(seen->what);
    Py_CLEAR(seen->notes);
}

static void remember(Hook *hook, Object *self, Object *what, NoteQueue *notes) {
    forget(&hook->seen[1]);
    hook->seen[1] = hook->seen[0];
    hook->seen[0] = (Seen){0};
    Seen seen = {self, PyWeakref_NewRef(self, 0), PyWeakref_NewRef(what, 0), (NoteQueue *)Py_NewRef((Object *)notes)};
    if (seen.alive && seen.what) hook->seen[0] = seen;
    else PyErr_Clear(), forget(&seen);
}

/* Whether what observes `self`, an attribute of that name with an attribute `note_queue`, takes notes from compiled hooks:
both are borrowed, and live as long as `self` does. NOBODY: nothing observes it. ODD: only `plain` knows. */
enum { ODD = -1, NOBODY, NOTED };
static int observed(Hook *hook, Object *self, Object *name, Object **what, NoteQueue **notes) {
    for (int i = 0; i < 2; i++) {
        Seen *seen = &hook->seen[i];
        if (seen->self != self || referred(seen->alive) != self) continue;
        if ((*what = referred(seen->what)) && seen->notes->on && seen->notes->row) { *notes = seen->notes; return NOTED; }
        break;
    }
    Object *found = get(self, name), *note_queue = 0;
    int how = found == Py_None ? NOBODY : ODD;
    if (found && how && found != Py_False && (note_queue = get(found, s_note_queue)) && (*notes = queue_of(note_queue))) {
        *what = found, how = NOTED;
        remember(hook, self, found, *notes);
    }
    PyErr_Clear();
    Py_XDECREF(note_queue), Py_XDECREF(found);
    return how;
}

/* An attribute of objects of one class with slots, read at its place. */
typedef struct { PyTypeObject *type; Size offset; } Slot;
static Object *read_slot(Slot *slot, Object *of, Object *name) {
    if (Py_TYPE(of) != slot->type) {
        PyTypeObject *type = Py_TYPE(of);
        Object *found = _PyType_Lookup(type, name);
        if (!found || Py_TYPE(found) != &PyMemberDescr_Type) return get(of, name);
        PyMemberDef *member = ((PyMemberDescrObject *)found)->d_member;
        if (member->type != T_OBJECT_EX || type->tp_getattro != PyObject_GenericGetAttr) return get(of, name);
        Py_XSETREF(slot->type, (PyTypeObject *)Py_NewRef((Object *)type));
        slot->offset = member->offset;
    }
    Object *value = *(Object **)((char *)of + slot->offset);
    return value ? Py_NewRef(value) : get(of, name);
}
