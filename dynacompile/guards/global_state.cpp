// Checks what torch reads from thread and process state.
#include <ATen/Context.h>
#include <ATen/PythonTorchFunctionTLS.h>
#include <c10/core/AutogradState.h>
#include <c10/core/DefaultDtype.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>
#include <torch/csrc/Device.h>
#include <torch/csrc/Dtype.h>

#include "guards/function_modes.h"
#include "guards/members.h"
#include "guards/program.h"

// Exported by torch; its own header takes ten seconds to compile.
namespace at::autocast {
at::ScalarType get_autocast_dtype(at::DeviceType device_type);
}  // namespace at::autocast
c10::impl::PyInterpreter* getPyInterpreter();

namespace dynacompile {

using at::impl::PythonTorchFunctionTLS;
using c10::impl::TorchDispatchModeTLS;

struct FunctionModesDisabled {
    using type = at::impl::TorchFunctionDisabledState PythonTorchFunctionTLS::*;
    friend constexpr type member_of(FunctionModesDisabled);
};
struct FunctionModes {
    using type = std::vector<std::shared_ptr<c10::SafePyObject>> PythonTorchFunctionTLS::*;
    friend constexpr type member_of(FunctionModes);
};
template struct Expose<FunctionModesDisabled, &PythonTorchFunctionTLS::disabled_state_>;
template struct Expose<FunctionModes, &PythonTorchFunctionTLS::stack_>;

namespace {

// Where the state of this thread lies, so that reading it costs one call and not one for each fact.
struct ThreadPlaces {
    const c10::AutogradState* autograd = nullptr;
    const c10::impl::PODLocalDispatchKeySet* keys;
    const PythonTorchFunctionTLS* functions;
};

[[gnu::always_inline]] inline const ThreadPlaces& thread_places() {
    static thread_local ThreadPlaces of_thread;
    ThreadPlaces& places = *found_once(&of_thread);
    if (!places.autograd) {
        places.keys = &c10::impl::raw_local_dispatch_key_set;
        places.functions = &PythonTorchFunctionTLS::get_state();
        places.autograd = &c10::AutogradState::get_tls_state();
    }
    return places;
}

PyObject* module_hooks = nullptr;  // a tuple of dicts
PyObject* forward_ad_names = nullptr;  // a dict
PyObject* level_name = nullptr;
constexpr c10::DeviceType autocast_devices[] = {c10::DeviceType::CPU, c10::DeviceType::CUDA};

Py_ssize_t count_module_hooks() {
    Py_ssize_t count = 0;
    for (Py_ssize_t i = 0; module_hooks && i < PyTuple_GET_SIZE(module_hooks); i++) count += PyDict_GET_SIZE(PyTuple_GET_ITEM(module_hooks, i));
    return count;
}

// Whether tensors may carry tangents: the level of forward-mode differentiation, a global of torch's Python code, is -1 where there is none.
bool in_forward_ad() {
    static uint64_t seen_off = 0;  // the namespace's tag when it was so
    if (!forward_ad_names || dict_tag(forward_ad_names) == seen_off) return false;
    PyObject* level = PyDict_GetItemWithError(forward_ad_names, level_name);
    if (level && PyLong_CheckExact(level) && PyLong_AsLong(level) >= 0) return true;
    seen_off = dict_tag(forward_ad_names);
    return false;
}

thread_local const ModeStack* modes_of_call = nullptr;  // that is compiled on this thread, whose modes are off meanwhile
PyTypeObject* device_mode = nullptr;  // torch.utils._device.DeviceContext
PyObject* device_name = nullptr;

ModeStack& modes_that_are_on() { return const_cast<PythonTorchFunctionTLS&>(PythonTorchFunctionTLS::get_state()).*member_of(FunctionModes()); }

// Whether a mode is the expected one: a device stands for any mode that makes it the default, as each `with torch.device(...)` makes another.
bool is_mode(PyObject* mode, PyObject* expected) {
    if (mode == expected) return true;
    if (!THPDevice_Check(expected) || !Py_IS_TYPE(mode, device_mode)) return false;
    const PyRef device = PyRef::take(PyObject_GenericGetAttr(mode, device_name));
    if (!device) PyErr_Clear();
    return device && THPDevice_Check(device.get()) && reinterpret_cast<THPDevice*>(device.get())->device == reinterpret_cast<THPDevice*>(expected)->device;
}

bool same_function_modes(const PythonTorchFunctionTLS& now, PyObject* expected) {
    const ModeStack& modes = modes_of_call ? *modes_of_call : now.*member_of(FunctionModes());
    if (static_cast<Py_ssize_t>(modes.size()) != PyTuple_GET_SIZE(expected)) return false;
    for (size_t i = 0; i < modes.size(); i++) {
        if (!is_mode(modes[i]->ptr(getPyInterpreter()), PyTuple_GET_ITEM(expected, i))) return false;
    }
    return true;
}

constexpr c10::DispatchKey autocast_keys[] = {c10::DispatchKey::AutocastCPU, c10::DispatchKey::AutocastCUDA};  // excluded where autocast is off

[[gnu::always_inline]] inline int8_t autocast_dtype(const c10::impl::LocalDispatchKeySet& keys, int device) {
    return keys.excluded_.has(autocast_keys[device]) ? int8_t{-1} : static_cast<int8_t>(at::autocast::get_autocast_dtype(autocast_devices[device]));
}

bool parse_dtype(PyObject* object, int8_t& into) {
    if (object == Py_None) {
        into = -1;
        return true;
    }
    if (!THPDtype_Check(object)) {
        PyErr_Format(PyExc_TypeError, "expected a torch.dtype or None, not %.200s", Py_TYPE(object)->tp_name);
        return false;
    }
    into = static_cast<int8_t>(reinterpret_cast<THPDtype*>(object)->scalar_type);
    return true;
}

}  // namespace

const void* dispatch_keys() { return thread_places().keys; }

bool is_traced(const void* keys) {
    return c10::impl::LocalDispatchKeySet(*static_cast<const c10::impl::PODLocalDispatchKeySet*>(keys)).included_.has(c10::DispatchKey::Tracer);
}

bool state_holds(const StateCheck& check) {
    static const at::Context& context = at::globalContext();
    const ThreadPlaces& thread = thread_places();
    if (thread.autograd->get_grad_mode() != check.grad_mode || thread.autograd->get_inference_mode() != check.inference_mode) return false;
    const c10::impl::LocalDispatchKeySet keys = *thread.keys;
    for (int i = 0; i < 2; i++) {
        if (autocast_dtype(keys, i) != check.autocast[i]) return false;
    }
    bool functorch = keys.included_.has(c10::DispatchKey::FuncTorchDynamicLayerFrontMode) || keys.included_.has(c10::DispatchKey::VmapMode) ||
                     keys.included_.has(c10::DispatchKey::Tracer) || in_forward_ad();
    return functorch == check.functorch && static_cast<int8_t>(c10::get_default_dtype_as_scalartype()) == check.default_dtype &&
           context.deterministicAlgorithms() == check.deterministic && static_cast<int>(thread.functions->*member_of(FunctionModesDisabled())) == check.torch_function &&
           same_function_modes(*thread.functions, check.function_modes) && TorchDispatchModeTLS::stack_len() == check.dispatch_modes &&
           count_module_hooks() == check.module_hooks;
}

uint64_t number_of(bool grad_mode, bool inference_mode, int8_t cpu, int8_t cuda, int8_t default_dtype, bool deterministic) {
    uint64_t number = (uint64_t{grad_mode} << 2) | (uint64_t{inference_mode} << 1) | uint64_t{deterministic};
    for (int8_t dtype : {cpu, cuda, default_dtype}) number = (number << 8) | static_cast<uint8_t>(dtype);
    return number;
}

uint64_t state_number() {
    const ThreadPlaces& thread = thread_places();
    const c10::impl::LocalDispatchKeySet keys = *thread.keys;
    return number_of(thread.autograd->get_grad_mode(), thread.autograd->get_inference_mode(), autocast_dtype(keys, 0), autocast_dtype(keys, 1),
                     static_cast<int8_t>(c10::get_default_dtype_as_scalartype()), at::globalContext().deterministicAlgorithms());
}

uint64_t state_number(const StateCheck& check) {
    return number_of(check.grad_mode, check.inference_mode, check.autocast[0], check.autocast[1], check.default_dtype, check.deterministic);
}

std::unique_ptr<StateCheck> parse_state(PyObject* tuple) {
    int grad_mode, inference_mode, deterministic, functorch, torch_function;
    long long dispatch_modes;
    Py_ssize_t hooks;
    PyObject *cpu, *cuda, *default_dtype, *modes;
    if (!PyArg_ParseTuple(tuple, "ppOOOpiO!Lpn:state check", &grad_mode, &inference_mode, &cpu, &cuda, &default_dtype, &deterministic, &torch_function, &PyTuple_Type, &modes,
                          &dispatch_modes, &functorch, &hooks))
        return nullptr;
    auto check = std::make_unique<StateCheck>();
    if (!parse_dtype(cpu, check->autocast[0]) || !parse_dtype(cuda, check->autocast[1]) || !parse_dtype(default_dtype, check->default_dtype)) return nullptr;
    check->grad_mode = grad_mode;
    check->inference_mode = inference_mode;
    check->deterministic = deterministic;
    check->functorch = functorch;
    check->torch_function = torch_function;
    check->dispatch_modes = dispatch_modes;
    check->module_hooks = hooks;
    check->function_modes = Py_NewRef(modes);
    return check;
}

FunctionModesOff::FunctionModesOff() { modes_.swap(modes_that_are_on()); }
FunctionModesOff::~FunctionModesOff() { modes_.swap(modes_that_are_on()); }

GuardedModes::GuardedModes(const ModeStack* modes) : before_(std::exchange(modes_of_call, modes)) {}
GuardedModes::~GuardedModes() { modes_of_call = before_; }

GuardedModesOn::GuardedModesOn() : before_(modes_that_are_on()) {
    if (modes_of_call) modes_that_are_on() = *modes_of_call;
}
GuardedModesOn::~GuardedModesOn() { modes_that_are_on() = std::move(before_); }

PyObject* function_modes() {
    const ModeStack modes = modes_of_call ? *modes_of_call : modes_that_are_on();
    PyRef found = PyRef::take(checked(PyTuple_New(static_cast<Py_ssize_t>(modes.size()))));
    for (size_t i = 0; i < modes.size(); i++) PyTuple_SET_ITEM(found.get(), static_cast<Py_ssize_t>(i), Py_NewRef(modes[i]->ptr(getPyInterpreter())));
    return found.release();
}

void watch_state(PyObject* hook_dicts, PyObject* forward_ad, PyObject* device_context) {
    Py_XDECREF(device_mode);
    device_mode = reinterpret_cast<PyTypeObject*>(Py_NewRef(device_context));
    if (!device_name) device_name = PyUnicode_InternFromString("device");
    Py_XDECREF(module_hooks);
    module_hooks = Py_NewRef(hook_dicts);
    Py_XDECREF(forward_ad_names);
    forward_ad_names = Py_NewRef(forward_ad);
    if (!level_name) level_name = PyUnicode_InternFromString("_current_level");
}

}  // namespace dynacompile
