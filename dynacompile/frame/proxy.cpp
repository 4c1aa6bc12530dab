// What a region's callback sees of a frame that has not started, and the answers that it may give.
#include "hook.h"

namespace dynacompile {

PyObject *answer_null, *answer_skip, *answer_skip_recursive, *answer_run_once, *answer_run_plainly;

namespace {

struct Proxy {
    PyObject_HEAD
    Frame* frame;  // null once the callback is over
    Extra* extra;
    const RegionState* state;
    PyObject* ticket;  // lives as long as the callback; or null
};

struct Sentinel {
    PyObject_HEAD
    const char* name;
};

PyTypeObject* proxy_type;
PyTypeObject* sentinel_type;

Proxy* live(PyObject* self) {
    Proxy* proxy = reinterpret_cast<Proxy*>(self);
    if (proxy->frame) return proxy;
    PyErr_SetString(PyExc_RuntimeError, "a FrameProxy is valid only during the callback that it was passed to");
    return nullptr;
}

PyObject* or_none(PyObject* object) { return Py_NewRef(object ? object : Py_None); }

PyObject* get_code(PyObject* self, void*) {
    Proxy* p = live(self);
    return p ? Py_NewRef(reinterpret_cast<PyObject*>(frame_code(p->frame))) : nullptr;
}
PyObject* get_function(PyObject* self, void*) {
    Proxy* p = live(self);
    return p ? or_none(reinterpret_cast<PyObject*>(frame_function(p->frame))) : nullptr;
}
PyObject* get_globals(PyObject* self, void*) {
    Proxy* p = live(self);
    return p ? or_none(frame_globals(p->frame)) : nullptr;
}
PyObject* get_builtins(PyObject* self, void*) {
    Proxy* p = live(self);
    return p ? or_none(frame_builtins(p->frame)) : nullptr;
}
PyObject* get_closure(PyObject* self, void*) {
    Proxy* p = live(self);
    return p ? or_none(frame_function(p->frame)->func_closure) : nullptr;
}
PyObject* get_slots(PyObject* self, void*) {
    Proxy* p = live(self);
    if (!p) return nullptr;
    int count = frame_code(p->frame)->co_nlocalsplus;
    PyObject* slots = PyTuple_New(count);
    for (int i = 0; slots && i < count; i++) {
        PyObject* value = frame_slots(p->frame)[i];
        PyTuple_SET_ITEM(slots, i, Py_NewRef(value ? value : answer_null));
    }
    return slots;
}
PyObject* get_entries(PyObject* self, void*) {
    Proxy* p = live(self);
    return p ? bucket_entries(*p->extra, p->state->bucket) : nullptr;
}
PyObject* get_limit(PyObject* self, void*) {
    Proxy* p = live(self);
    if (!p) return nullptr;
    const char* reached = limit_reached(*p->extra, *p->state);
    return PyUnicode_FromString(reached ? reached : "");
}

PyObject* get_ticket(PyObject* self, void*) {
    Proxy* p = live(self);
    return p ? or_none(p->ticket) : nullptr;
}
int set_ticket(PyObject* self, PyObject* value, void*) {
    Proxy* p = live(self);
    if (!p) return -1;
    Py_XSETREF(p->ticket, Py_XNewRef(value));
    return 0;
}

PyGetSetDef proxy_fields[] = {
    {"code", boundary<get_code>, nullptr, "the code object of the frame"},
    {"function", boundary<get_function>, nullptr, "the function that was called"},
    {"globals", boundary<get_globals>, nullptr, "its globals dict"},
    {"builtins", boundary<get_builtins>, nullptr, "its builtins dict"},
    {"closure", boundary<get_closure>, nullptr, "the function's tuple of cells, or None"},
    {"slots", boundary<get_slots>, nullptr, "the frame's localsplus by index, arguments first; NULL marks a slot that is not filled yet"},
    {"entries", boundary<get_entries>, nullptr, "this code's entries in the region's bucket, most recently used first"},
    {"ticket", boundary<get_ticket>, boundary<set_ticket>, "any object, let go when the callback is over and before its answer is used"},
    {"limit_reached", boundary<get_limit>, nullptr, "'recompile_limit' or 'accumulated_recompile_limit' where one is reached, else ''"},
    {nullptr},
};

void plain_dealloc(PyObject* self) noexcept {
    PyTypeObject* type = Py_TYPE(self);
    type->tp_free(self);
    Py_DECREF(type);
}

PyType_Slot proxy_slots[] = {{Py_tp_dealloc, reinterpret_cast<void*>(plain_dealloc)}, {Py_tp_getset, proxy_fields}, {0, nullptr}};
PyType_Spec proxy_spec = {"dynacompile_native.FrameProxy", sizeof(Proxy), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, proxy_slots};

PyObject* sentinel_repr(PyObject* self) { return PyUnicode_FromFormat("<%s>", reinterpret_cast<Sentinel*>(self)->name); }
PyObject* sentinel_reduce(PyObject* self, PyObject*) { return PyUnicode_FromString(reinterpret_cast<Sentinel*>(self)->name); }
PyMethodDef sentinel_methods[] = {{"__reduce__", boundary<sentinel_reduce>, METH_NOARGS, nullptr}, {nullptr}};
PyType_Slot sentinel_slots[] = {{Py_tp_dealloc, reinterpret_cast<void*>(plain_dealloc)}, {Py_tp_repr, as_slot<sentinel_repr>()}, {Py_tp_methods, sentinel_methods}, {0, nullptr}};
PyType_Spec sentinel_spec = {"dynacompile_native.Answer", sizeof(Sentinel), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, sentinel_slots};

bool add_sentinel(PyObject* module, const char* name, PyObject** into) {
    Sentinel* made = PyObject_New(Sentinel, sentinel_type);
    if (!made) return false;
    made->name = name;
    *into = reinterpret_cast<PyObject*>(made);
    return PyModule_AddObjectRef(module, name, *into) == 0;
}

}  // namespace

PyObject* new_proxy(Frame* frame, Extra* extra, const RegionState* state) {
    Proxy* proxy = PyObject_New(Proxy, proxy_type);
    if (!proxy) return nullptr;
    proxy->frame = frame;
    proxy->extra = extra;
    proxy->state = state;
    proxy->ticket = nullptr;
    return reinterpret_cast<PyObject*>(proxy);
}

void end_proxy(PyObject* proxy) {
    reinterpret_cast<Proxy*>(proxy)->frame = nullptr;
    Py_CLEAR(reinterpret_cast<Proxy*>(proxy)->ticket);
}

bool proxy_frame(PyObject* object, Frame** frame) {
    if (!Py_IS_TYPE(object, proxy_type)) return false;
    *frame = reinterpret_cast<Proxy*>(object)->frame;
    return *frame != nullptr;
}

const char* limit_reached(const Extra& extra, const RegionState& state) {
    if (count_entries(extra, state) >= state.limit) return "recompile_limit";
    return count_entries(extra) >= state.accumulated_limit ? "accumulated_recompile_limit" : nullptr;
}

bool init_proxy(PyObject* module) {
    proxy_type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&proxy_spec));
    sentinel_type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&sentinel_spec));
    return proxy_type && sentinel_type && PyModule_AddObjectRef(module, "FrameProxy", reinterpret_cast<PyObject*>(proxy_type)) == 0 &&
           add_sentinel(module, "NULL", &answer_null) && add_sentinel(module, "SKIP", &answer_skip) &&
           add_sentinel(module, "SKIP_RECURSIVE", &answer_skip_recursive) && add_sentinel(module, "RUN_ONCE", &answer_run_once) &&
           add_sentinel(module, "RUN_PLAINLY", &answer_run_plainly);
}

}  // namespace dynacompile
