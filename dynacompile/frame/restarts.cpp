#include "frame/restarts.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/Generator.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/clone.h>
#include <torch/csrc/autograd/python_variable.h>

#include <structmember.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <memory>
#include <mutex>

namespace dynacompile {
namespace {

PyObject* restart_type = nullptr;
thread_local KeptCall* last_kept = nullptr;

// Pushes the arguments of a frame as those of a vectorcall. Returns the keyword names (new), or null for none or an error.
PyObject* unpack_arguments(const GivenCall& given, std::vector<PyObject*>& values, Py_ssize_t& positional) {
    PyCodeObject* code = given.code;
    PyObject** slots = given.slots;
    int next = code->co_argcount + code->co_kwonlyargcount;
    values.assign(slots, slots + code->co_argcount);
    if (code->co_flags & CO_VARARGS) {
        PyObject* rest = slots[next++];
        for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(rest); i++) values.push_back(PyTuple_GET_ITEM(rest, i));
    }
    positional = static_cast<Py_ssize_t>(values.size());
    PyObject* more = code->co_flags & CO_VARKEYWORDS ? slots[next] : nullptr;
    Py_ssize_t keywords = code->co_kwonlyargcount + (more ? PyDict_GET_SIZE(more) : 0);
    if (keywords == 0) return nullptr;
    PyRef names = PyRef::take(PyTuple_New(keywords));
    if (!names) return nullptr;
    Py_ssize_t at = 0;
    for (int i = code->co_argcount; i < code->co_argcount + code->co_kwonlyargcount; i++) {
        PyTuple_SET_ITEM(names.get(), at++, Py_NewRef(PyTuple_GET_ITEM(code->co_localsplusnames, i)));
        values.push_back(slots[i]);
    }
    PyObject *key, *value;
    for (Py_ssize_t pos = 0; more && PyDict_Next(more, &pos, &key, &value);) {
        PyTuple_SET_ITEM(names.get(), at++, Py_NewRef(key));
        values.push_back(value);
    }
    return names.release();
}

// The graph of an entry that restarts. draws: it takes numbers from the default generator of CPUs. is_own: a function of an exception, which says whether it
// is the graph's, rather than an interrupt's. written: the arguments that the graph writes, tensors.
struct RestartingCall {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    PyObject* call;
    PyObject* is_own;
    std::vector<Py_ssize_t>* written;
    char draws;
};

// What a graph may change of what was there before. bytes: of all that is written and contiguous, in a row; of the rest, `copies`.
struct Before {
    at::Tensor random;
    std::vector<char> bytes;
    std::vector<at::Tensor> copies;
};

at::Tensor random_state() {
    at::Generator generator = at::detail::getDefaultCPUGenerator();
    const std::lock_guard<std::mutex> lock(generator.mutex());
    return generator.get_state();
}

void set_random_state(const at::Tensor& state) {
    at::Generator generator = at::detail::getDefaultCPUGenerator();
    const std::lock_guard<std::mutex> lock(generator.mutex());
    generator.set_state(state);
}

bool lies_in_a_row(const at::Tensor& tensor) { return tensor.device().is_cpu() && tensor.is_contiguous(); }

Before state_before(const RestartingCall& graph, PyObject* const* args) {
    Before before;
    if (graph.draws) before.random = random_state();
    size_t size = 0;
    for (Py_ssize_t n : *graph.written) {
        const at::Tensor& tensor = THPVariable_Unpack(args[n]);
        if (lies_in_a_row(tensor)) size += tensor.nbytes();
    }
    before.bytes.resize(size);
    char* to = before.bytes.data();
    for (Py_ssize_t n : *graph.written) {
        const at::Tensor& tensor = THPVariable_Unpack(args[n]);
        if (lies_in_a_row(tensor)) {
            if (tensor.nbytes()) std::memcpy(to, tensor.unsafeGetTensorImpl()->data(), tensor.nbytes());
            to += tensor.nbytes();
        } else {
            const at::AutoDispatchBelowAutograd below;
            before.copies.push_back(tensor.clone());
        }
    }
    return before;
}

void put_back(const RestartingCall& graph, PyObject* const* args, const Before& before) {
    if (graph.draws) set_random_state(before.random);
    const char* from = before.bytes.data();
    size_t next = 0;
    const at::AutoDispatchBelowAutograd below;
    for (Py_ssize_t n : *graph.written) {
        const at::Tensor& tensor = THPVariable_Unpack(args[n]);
        if (lies_in_a_row(tensor)) {
            if (tensor.nbytes()) std::memcpy(tensor.unsafeGetTensorImpl()->mutable_data(), from, tensor.nbytes());
            from += tensor.nbytes();
        } else {
            tensor.copy_(before.copies[next++]);
        }
    }
}

// Puts Restart in the place of the current error, where that is the graph's.
void restart(const RestartingCall& self, PyObject* const* args, const Before& before) {
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    PyErr_NormalizeException(&type, &value, &traceback);
    if (traceback) PyException_SetTraceback(value, traceback);
    const PyRef own = PyRef::take(PyObject_CallOneArg(self.is_own, value));
    if (own.get() != Py_True) {
        if (own) PyErr_Restore(type, value, traceback);
        else Py_XDECREF(type), Py_XDECREF(value), Py_XDECREF(traceback);
        return;
    }
    Py_XDECREF(type), Py_XDECREF(value), Py_XDECREF(traceback);
    put_back(self, args, before);
    PyErr_SetNone(restart_type);
}

PyObject* restarting_call(PyObject* self, PyObject* const* args, size_t nargsf, PyObject* kwnames) {
    const RestartingCall& graph = *reinterpret_cast<RestartingCall*>(self);
    KeptCall* kept = KeptCall::claim();
    const bool changes = graph.draws || !graph.written->empty();
    const Before before = changes ? state_before(graph, args) : Before();
    PyObject* result = call_object(graph.call, args, nargsf, kwnames);
    if (!result) restart(graph, args, before);
    else if (kept) kept->let_go();
    return result;
}

PyObject* restarting_new(PyTypeObject* type, PyObject* args, PyObject*) {
    PyObject *call, *is_own, *written;
    int draws;
    if (!PyArg_ParseTuple(args, "OOpO!:RestartingCall", &call, &is_own, &draws, &PyTuple_Type, &written)) return nullptr;
    auto places = std::make_unique<std::vector<Py_ssize_t>>();
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(written); i++) places->push_back(PyLong_AsSsize_t(PyTuple_GET_ITEM(written, i)));
    if (PyErr_Occurred()) return nullptr;
    RestartingCall* made = reinterpret_cast<RestartingCall*>(checked(type->tp_alloc(type, 0)));
    made->written = places.release();
    made->vectorcall = boundary<restarting_call>;
    made->call = Py_NewRef(call);
    made->is_own = Py_NewRef(is_own);
    made->draws = static_cast<char>(draws);
    return reinterpret_cast<PyObject*>(made);
}

int restarting_traverse(PyObject* self, visitproc visit, void* arg) noexcept {
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(reinterpret_cast<RestartingCall*>(self)->call);
    Py_VISIT(reinterpret_cast<RestartingCall*>(self)->is_own);
    return 0;
}

void restarting_dealloc(PyObject* self) noexcept {
    PyTypeObject* type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    Py_XDECREF(reinterpret_cast<RestartingCall*>(self)->call);
    Py_XDECREF(reinterpret_cast<RestartingCall*>(self)->is_own);
    delete reinterpret_cast<RestartingCall*>(self)->written;
    type->tp_free(self);
    Py_DECREF(type);
}

PyMemberDef restarting_members[] = {
    {"call", T_OBJECT, offsetof(RestartingCall, call), READONLY, "the graph"},
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(RestartingCall, vectorcall), READONLY},
    {nullptr},
};

PyType_Slot restarting_slots[] = {
    {Py_tp_doc, const_cast<char*>("RestartingCall(call, is_own, draws, written): a graph that raises Restart in the place of errors of its own.")},
    {Py_tp_new, as_slot<restarting_new>()},
    {Py_tp_dealloc, reinterpret_cast<void*>(restarting_dealloc)},
    {Py_tp_traverse, reinterpret_cast<void*>(restarting_traverse)},
    {Py_tp_call, reinterpret_cast<void*>(PyVectorcall_Call)},
    {Py_tp_members, restarting_members},
    {0, nullptr},
};
PyType_Spec restarting_spec = {"dynacompile_native.RestartingCall", sizeof(RestartingCall), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
                               restarting_slots};

}  // namespace

PyObject* GivenCall::call(PyCodeObject* other) const {
    PyRef function = PyRef::take(PyFunction_New(reinterpret_cast<PyObject*>(other), globals));
    if (!function || (closure && PyFunction_SetClosure(function.get(), closure))) return nullptr;
    std::vector<PyObject*> values;
    Py_ssize_t positional = 0;
    PyRef names = PyRef::take(unpack_arguments(*this, values, positional));
    return PyErr_Occurred() ? nullptr : call_object(function.get(), values.data(), positional, names.get());
}

KeptCall::KeptCall(Frame* frame) : given_(frame), before_(last_kept), count_(given_.count()) {
    if (count_ > few) more_.resize(static_cast<size_t>(count_));
    PyObject** kept = count_ > few ? more_.data() : here_;
    std::copy(given_.slots, given_.slots + count_, kept);
    for (int i = 0; i < count_; i++) Py_XINCREF(kept[i]);
    given_.slots = kept;
    Py_INCREF(given_.code);
    Py_INCREF(given_.globals);
    Py_XINCREF(given_.closure);
    if (before_) before_->after_ = this;
    last_kept = this;
}

KeptCall::~KeptCall() {
    (after_ ? after_->before_ : last_kept) = before_;
    if (before_) before_->after_ = after_;
    let_go();
    Py_DECREF(given_.code);
    Py_DECREF(given_.globals);
    Py_XDECREF(given_.closure);
}

KeptCall* KeptCall::claim() {
    KeptCall* found = last_kept;
    while (found && found->claimed_) found = found->before_;
    if (found) found->claimed_ = true;
    return found;
}

void KeptCall::let_go() {
    for (int i = std::exchange(count_, 0); i > 0; i--) Py_XDECREF(given_.slots[i - 1]);
}

bool is_restart_set() { return PyErr_ExceptionMatches(restart_type); }

bool init_restarts(PyObject* module) {
    restart_type = PyErr_NewExceptionWithDoc("dynacompile_native.Restart", "The graph of an entry that restarts has raised.", PyExc_BaseException, nullptr);
    if (!restart_type || PyModule_AddObject(module, "Restart", Py_NewRef(restart_type)) != 0) return false;
    const PyRef type = PyRef::take(PyType_FromSpec(&restarting_spec));
    return type && PyModule_AddObjectRef(module, "RestartingCall", type.get()) == 0;
}

}  // namespace dynacompile
