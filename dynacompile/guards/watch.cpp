// Watches dicts, so that one number tells whether any of them has changed.
#include "guards/values.h"

namespace dynacompile {
namespace {

bool watching = true;

#if PY_VERSION_HEX >= 0x030C0000

uint64_t epoch = 1;

int on_change(PyDict_WatchEvent, PyObject*, PyObject*, PyObject*) {
    epoch++;
    return 0;
}

// CPython has 8 watchers for all extensions; -1: none was left.
int watcher() {
    static const int id = [] {
        const int got = PyDict_AddWatcher(on_change);
        if (got < 0) PyErr_Clear();
        return got;
    }();
    return id;
}

#endif

}  // namespace

#if PY_VERSION_HEX >= 0x030C0000

uint64_t dict_epoch() { return watching && watcher() >= 0 ? epoch : 0; }

void watch_dict(PyObject* dict) {
    if (watching && watcher() >= 0 && PyDict_Watch(watcher(), dict) < 0) PyErr_Clear();
}

#else

uint64_t dict_epoch() { return 0; }
void watch_dict(PyObject*) {}

#endif

void use_dict_watchers(bool on) { watching = on; }

}  // namespace dynacompile
