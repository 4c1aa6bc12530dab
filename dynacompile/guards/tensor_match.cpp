// Checks a tensor's metadata by reading its TensorImpl, at an offset in the Python object that is probed at start-up.
#include <c10/core/TensorImpl.h>

#include <torch/csrc/Device.h>
#include <torch/csrc/Dtype.h>

#include "guards/program.h"
#include "guards/tensor_words.h"

namespace dynacompile {
namespace {

Py_ssize_t impl_offset = -1;
PyTypeObject* tensor_type = nullptr;
AutogradPlaces autograd;
uint64_t policies, deciding;  // bits of TensorWords::facts: those that no tensor that is read here has, and with dtype and device

const c10::TensorImpl* tensor_impl(PyObject* tensor) { return *reinterpret_cast<c10::TensorImpl**>(reinterpret_cast<char*>(tensor) + impl_offset); }

// What a plain strided tensor may carry. Not: sparse, quantized, conjugate, negated, wrapped by a transform or a Python subclass.
c10::DispatchKeySet plain_keys() {
    using c10::DispatchKey;
    c10::DispatchKeySet keys(c10::DispatchKeySet::RAW, c10::full_backend_mask);
    for (DispatchKey key : {DispatchKey::Dense, DispatchKey::ADInplaceOrView, DispatchKey::AutogradFunctionality, DispatchKey::AutocastCPU, DispatchKey::AutocastCUDA}) keys = keys | c10::DispatchKeySet(key);
    return keys;
}

const uint64_t not_plain = ~plain_keys().raw_repr();
const uint64_t of_python = c10::DispatchKeySet({c10::DispatchKey::Python, c10::DispatchKey::PythonTLSSnapshot}).raw_repr();  // tensors whose class dispatches

bool matches(const int64_t* actual, const std::vector<int64_t>& expected) {
    for (size_t i = 0; i < expected.size(); i++) {  // a loop: sizes are few, and memcmp's call costs more
        if (expected[i] >= 0 && actual[i] != expected[i]) return false;
    }
    return true;
}

bool metadata_holds(const TensorCheck& check, const c10::TensorImpl* impl) {
    if ((impl->key_set().raw_repr() & not_plain & ~(check.wraps ? of_python : 0)) || impl->has_symbolic_sizes_strides()) return false;
    if (static_cast<int8_t>(c10::typeMetaToScalarType(impl->dtype())) != check.dtype || impl->requires_grad() != check.requires_grad) return false;
    c10::Device device = impl->device();
    if (static_cast<int8_t>(device.type()) != check.device_type || (check.device_index >= 0 && device.has_index() && device.index() != check.device_index)) return false;
    c10::IntArrayRef sizes = impl->sizes();
    if (sizes.size() != check.sizes.size() || !matches(sizes.data(), check.sizes)) return false;
    return check.any_strides || matches(impl->strides().data(), check.strides);
}

// The same, where the words that decide about all but extents and requires_grad are those of the last tensor that passed. False: perhaps.
bool words_hold(const TensorCheck& check, const c10::TensorImpl* impl) {
    const c10::impl::SizesAndStrides& extents = impl->*TensorWords::sizes_and_strides;
    const size_t dim = check.sizes.size();
    if (impl->key_set().raw_repr() != check.keys || (TensorWords::facts(impl) & deciding) != check.facts || extents.size() != dim) return false;
    return matches(extents.sizes_data(), check.sizes) && (check.any_strides || matches(extents.strides_data(), check.strides)) && requires_grad(impl, autograd) == check.requires_grad;
}

uint64_t sizes_seed(c10::ScalarType dtype, size_t dim) { return mix(static_cast<uint64_t>(dtype), dim); }

uint64_t layout_seed(const void* type, bool requires_grad, int8_t device_type) {
    return mix(reinterpret_cast<uint64_t>(type), uint64_t{requires_grad} | (static_cast<uint64_t>(device_type) << 1));
}

// Of those that `wanted` fixes.
uint64_t add_extents(uint64_t number, const std::vector<int64_t>& wanted, c10::IntArrayRef extents) {
    for (size_t i = 0; i < wanted.size() && i < extents.size(); i++) {
        if (wanted[i] >= 0) number = mix(number, static_cast<uint64_t>(extents[i]));
    }
    return number;
}

// The offset of the TensorImpl pointer in `tensor`, found by the address that its `_cdata` reports; -1 where there is none.
Py_ssize_t find_impl(PyObject* tensor) {
    PyObject* address = PyObject_GetAttrString(tensor, "_cdata");
    void* wanted = address ? PyLong_AsVoidPtr(address) : nullptr;
    Py_XDECREF(address);
    for (Py_ssize_t at = sizeof(PyObject); wanted && at + static_cast<Py_ssize_t>(sizeof(void*)) <= Py_TYPE(tensor)->tp_basicsize; at += sizeof(void*)) {
        if (*reinterpret_cast<void**>(reinterpret_cast<char*>(tensor) + at) == wanted) return at;
    }
    return -1;
}

// Reads a tuple of int or None (-1) into `into`.
bool parse_extents(PyObject* tuple, std::vector<int64_t>& into) {
    if (!PyTuple_Check(tuple)) {
        PyErr_SetString(PyExc_TypeError, "a tensor check's sizes and strides are tuples of int or None");
        return false;
    }
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(tuple); i++) {
        PyObject* item = PyTuple_GET_ITEM(tuple, i);
        int64_t value = item == Py_None ? -1 : PyLong_AsLongLong(item);
        if (value == -1 && PyErr_Occurred()) return false;
        into.push_back(value);
    }
    return true;
}

}  // namespace

bool tensor_holds(const TensorCheck& check, PyObject* value) {
    PyTypeObject* type = check.exact ? check.exact : reinterpret_cast<PyTypeObject*>(check.type.get());
    if (Py_TYPE(value) != type) return false;
    const c10::TensorImpl* impl = tensor_impl(value);
    if (words_hold(check, impl)) return true;
    if (!metadata_holds(check, impl)) return false;
    const uint64_t facts = TensorWords::facts(impl) & deciding;
    if (facts & policies) return true;
    check.keys = impl->key_set().raw_repr();
    check.facts = facts;
    return true;
}

void KnownTensors::add(const Check& check, PyObject* value) {
    const c10::TensorImpl* impl = tensor_impl(value);
    const c10::impl::SizesAndStrides& extents = impl->*TensorWords::sizes_and_strides;
    const int64_t *sizes = extents.sizes_data(), *strides = extents.strides_data();
    const auto dim = static_cast<uint32_t>(extents.size());
    const uint32_t last = dim ? dim - 1 : 0;  // without dimensions, there are a size and a stride all the same
    const uint64_t facts = TensorWords::facts(impl);
    PyTypeObject* type = facts & policies ? nullptr : check.tensor->exact;
    tensors.push_back({&check, value, type, impl, requires_grad_word(impl, autograd), impl->key_set().raw_repr(), facts, {sizes[0], sizes[last], strides[0], strides[last]}, dim, check.tensor->requires_grad});
    for (uint32_t i = 1; i < last; i++) inner.insert(inner.end(), {sizes[i], strides[i]});
}

// Whether the metadata is what it was when the tensor passed its check. inner: sizes and strides of its inner dimensions then.
inline bool is_unchanged(const KnownTensor& known, const int64_t* inner) {
    const auto* impl = static_cast<const c10::TensorImpl*>(known.impl);
    if (Py_TYPE(known.value) != known.type || tensor_impl(known.value) != impl) return false;
    const c10::impl::SizesAndStrides& extents = impl->*TensorWords::sizes_and_strides;
    const uint64_t dim = known.dim, last = dim > 1 ? dim - 1 : 0;
    if ((impl->key_set().raw_repr() ^ known.keys) | (TensorWords::facts(impl) ^ known.facts) | (extents.size() ^ dim)) return false;
    const int64_t *sizes = extents.sizes_data(), *strides = extents.strides_data();
    int64_t differs = (sizes[0] ^ known.outer[0]) | (sizes[last] ^ known.outer[1]) | (strides[0] ^ known.outer[2]) | (strides[last] ^ known.outer[3]);
    for (uint64_t i = 1; i < last; i++, inner += 2) differs |= (sizes[i] ^ inner[0]) | (strides[i] ^ inner[1]);
    return !differs && requires_grad(impl, autograd) == known.requires_grad;
}

bool KnownTensors::hold(int& failed) const {
    constexpr size_t ahead = 6;
    const size_t count = tensors.size();
    const int64_t* at = inner.data();
    for (size_t i = 0; i < count; i++) {
        const KnownTensor& known = tensors[i];
        if (i + ahead < count) {  // the words that lie farthest from what is read first
            const KnownTensor& later = tensors[i + ahead];
            __builtin_prefetch(&(static_cast<const c10::TensorImpl*>(later.impl)->*TensorWords::sizes_and_strides));
            __builtin_prefetch(&(static_cast<const c10::TensorImpl*>(later.impl)->*TensorWords::keys));
            __builtin_prefetch(later.requires_grad_word);
        }
        const bool unchanged = is_unchanged(known, at);
        if (known.dim > 2) at += 2 * (known.dim - 2);
        if (unchanged || tensor_holds(*known.check->tensor, known.value)) continue;
        failed = known.check->guard;
        return false;
    }
    return true;
}

uint64_t tensor_number(const TensorCheck& check, TensorPart part, PyObject* value) {
    if (!PyObject_TypeCheck(value, tensor_type)) return 0;
    const c10::TensorImpl* impl = tensor_impl(value);
    if (impl->has_symbolic_sizes_strides() || impl->is_nested()) return 0;
    if (part == TensorPart::sizes) return add_extents(sizes_seed(c10::typeMetaToScalarType(impl->dtype()), impl->sizes().size()), check.sizes, impl->sizes());
    if (impl->key_set().raw_repr() & not_plain) return 0;
    const uint64_t seed = layout_seed(Py_TYPE(value), impl->requires_grad(), static_cast<int8_t>(impl->device().type()));
    return check.any_strides ? seed : add_extents(seed, check.strides, impl->strides());
}

uint64_t tensor_number(const TensorCheck& check, TensorPart part) {
    if (part == TensorPart::sizes) return add_extents(sizes_seed(static_cast<c10::ScalarType>(check.dtype), check.sizes.size()), check.sizes, check.sizes);
    const uint64_t seed = layout_seed(check.type.get(), check.requires_grad, check.device_type);
    return check.any_strides ? seed : add_extents(seed, check.strides, check.strides);
}

PyObject* known_leaf(PyObject* tensor) {
    const char* meta = autograd_meta(tensor_impl(tensor));
    if (!meta) return Py_True;
    if (*reinterpret_cast<const bool*>(meta + autograd.is_view)) return nullptr;
    return *reinterpret_cast<void* const*>(meta + autograd.function) ? Py_False : Py_True;
}

bool memory_range(PyObject* value, MemoryRange& range) {
    if (!PyObject_TypeCheck(value, tensor_type)) return false;
    const c10::TensorImpl* impl = tensor_impl(value);
    if (!impl->has_storage() || impl->has_symbolic_sizes_strides() || impl->numel() == 0) return true;
    const auto start = reinterpret_cast<uintptr_t>(impl->unsafe_storage().data());
    if (!start) return true;
    int64_t last = 0;
    for (int64_t i = 0; i < impl->dim(); i++) last += (impl->sizes()[i] - 1) * impl->strides()[i];
    const uintptr_t itemsize = impl->itemsize();
    range.begin = start + impl->storage_offset() * itemsize;
    range.end = range.begin + (last + 1) * itemsize;
    return true;
}

bool extent_of(PyObject* value, bool stride, int64_t dim, int64_t& into) {
    if (!PyObject_TypeCheck(value, tensor_type)) return false;
    const c10::TensorImpl* impl = tensor_impl(value);
    if (impl->has_symbolic_sizes_strides() || dim >= impl->dim()) return false;
    into = stride ? impl->strides()[dim] : impl->sizes()[dim];
    return true;
}

std::unique_ptr<TensorCheck> parse_tensor(PyObject* tuple) {
    PyObject *type, *dtype, *device, *sizes, *strides;
    int requires_grad, wraps = 0;
    if (!PyArg_ParseTuple(tuple, "O!OOpOO|p:tensor check", &PyType_Type, &type, &dtype, &device, &requires_grad, &sizes, &strides, &wraps)) return nullptr;
    if (!THPDtype_Check(dtype) || !THPDevice_Check(device)) {
        PyErr_SetString(PyExc_TypeError, "a tensor check takes (type, torch.dtype, torch.device, requires_grad, sizes, strides)");
        return nullptr;
    }
    auto check = std::make_unique<TensorCheck>();
    c10::Device wanted = reinterpret_cast<THPDevice*>(device)->device;
    check->dtype = static_cast<int8_t>(reinterpret_cast<THPDtype*>(dtype)->scalar_type);
    check->device_type = static_cast<int8_t>(wanted.type());
    check->device_index = wanted.index();
    check->requires_grad = requires_grad;
    check->wraps = wraps != 0;
    check->any_strides = strides == Py_None;
    if (type == reinterpret_cast<PyObject*>(torch_types.tensor) || type == reinterpret_cast<PyObject*>(torch_types.parameter)) check->exact = reinterpret_cast<PyTypeObject*>(type);
    if (!check->type.hold(type) || !parse_extents(sizes, check->sizes) || (!check->any_strides && !parse_extents(strides, check->strides))) return nullptr;
    if (!check->any_strides && check->strides.size() != check->sizes.size()) {
        PyErr_SetString(PyExc_ValueError, "a tensor check's strides and sizes differ in number");
        return nullptr;
    }
    return check;
}

bool probe_tensor_offset(PyObject* tensor, PyObject* parameter) {
    impl_offset = find_impl(tensor);
    if (impl_offset < 0 || find_impl(parameter) != impl_offset) {
        impl_offset = -1;
        if (!PyErr_Occurred()) PyErr_SetString(PyExc_ImportError, "this torch keeps the TensorImpl of a tensor at no place that the native core knows");
        return false;
    }
    tensor_type = reinterpret_cast<PyTypeObject*>(Py_NewRef(Py_TYPE(tensor)));
    autograd = autograd_places();
    policies = TensorWords::policies();
    deciding = policies | TensorWords::dtype_and_device();
    const c10::TensorImpl* impl = tensor_impl(tensor);
    if (impl->dim() == 1 && impl->sizes()[0] == 1 && !requires_grad(impl, autograd) && requires_grad(tensor_impl(parameter), autograd)) return true;
    PyErr_SetString(PyExc_ImportError, "the native core misreads tensors: it was built with the headers of another torch");
    return false;
}

}  // namespace dynacompile
