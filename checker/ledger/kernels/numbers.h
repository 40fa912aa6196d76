/* Numbers of an event as they come from Python: a list or tuple of integers, bytes of packed numbers, or an array.
packed.py says what each of these means. */

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
extern Object *PyDict_GetItem(Object *, Object *), *PyCFunction_NewEx(Method *, Object *, Object *);
extern Object *PyTuple_New(Size);
extern Size PyList_Size(Object *), PyTuple_Size(Object *), PyBytes_Size(Object *);
extern char *PyBytes_AsString(Object *);
extern long long PyLong_AsLongLong(Object *);
extern unsigned long long PyLong_AsUnsignedLongLong(Object *);
extern Object *PyErr_Occurred(void);
extern int PyTuple_SetItem(Object *, Size, Object *), PyObject_GetBuffer(Object *, View *, int);
extern void PyErr_Clear(void), PyBuffer_Release(View *), Py_DecRef(Object *);

enum { FASTCALL = 0x80, STRIDED_WITH_FORMAT = 0x1c };

/* The numbers, unpacked; keys as the signed integers with the same bits. */
typedef struct { int64_t *at; Size n, room; } Numbers;
static _Thread_local Numbers scratch[3];

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

static int of_buffer(Object *from, int wide, Numbers *to) {
    View view;
    if (PyObject_GetBuffer(from, &view, STRIDED_WITH_FORMAT)) { PyErr_Clear(); return 0; }
    const char *format = view.format ? view.format : "B";
    char kind = format[*format == '@' || *format == '<' || *format == '='];
    int is_signed = kind == 'i' || kind == 'l' || kind == 'q';
    int ok = view.ndim == 1 && (is_signed || kind == 'I' || kind == 'L' || kind == 'Q') && view.itemsize >= 4;
    int64_t *at = ok ? extend(to, view.shape[0]) : 0, all = 0;
    char *p = view.buf;
    for (Size i = 0; at && i < view.shape[0]; i++, p += view.strides[0])
        all |= at[i] = view.itemsize == 8 ? *(int64_t *)p : is_signed ? *(int32_t *)p : *(uint32_t *)p;
    PyBuffer_Release(&view);
    return at && !(all < 0 && wide == is_signed); /* a negative number is no key, 2**63 no slot */
}

/* Appends the numbers of an object; 0 if they are not a row of integers that fit. */
static int append(Object *from, int wide, Numbers *to) {
    char *type = (char *)PyObject_Type(from);
    Py_DecRef((Object *)type);
    int list = type == &PyList_Type, bytes = type == &PyBytes_Type;
    if (!list && !bytes && type != &PyTuple_Type) return of_buffer(from, wide, to);
    Size n = bytes ? PyBytes_Size(from) : list ? PyList_Size(from) : PyTuple_Size(from);
    if (bytes && n % (wide ? 8 : 4)) return 0;
    if (bytes) n /= wide ? 8 : 4;
    int64_t *at = extend(to, n);
    if (!at) return 0;
    void *packed = bytes ? PyBytes_AsString(from) : 0;
    if (bytes && wide) for (Size i = 0; i < n; i++) at[i] = ((int64_t *)packed)[i];
    else if (bytes) for (Size i = 0; i < n; i++) at[i] = ((uint32_t *)packed)[i];
    else for (Size i = 0; i < n; i++) {
        Object *one = list ? PyList_GetItem(from, i) : PyTuple_GetItem(from, i);
        at[i] = wide ? (int64_t)PyLong_AsUnsignedLongLong(one) : PyLong_AsLongLong(one);
        if (at[i] == -1 && PyErr_Occurred()) { PyErr_Clear(); return 0; }
    }
    return 1;
}

static int numbers(Object *from, int wide, Numbers *to) {
    to->n = 0;
    return append(from, wide, to);
}
