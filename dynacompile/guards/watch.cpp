// Watches dicts, so that one number tells whether any of them has changed.
#include "cpython/cpython.h"
#include "guards/values.h"

namespace dynacompile {
namespace {

bool watching = true;
uint64_t epoch = 1;

void on_change() { epoch++; }

// -1: dicts can't be watched, or no watcher was left.
int watcher() {
    static const int id = [] {
        const int got = add_dict_watcher<on_change>();
        if (got < 0) PyErr_Clear();
        return got;
    }();
    return id;
}

}  // namespace

uint64_t dict_epoch() { return watching && watcher() >= 0 ? epoch : 0; }

void watch_dict(PyObject* dict) {
    if (watching && watcher() >= 0 && watch_dict_with(watcher(), dict) < 0) PyErr_Clear();
}

void use_dict_watchers(bool on) { watching = on; }

}  // namespace dynacompile
