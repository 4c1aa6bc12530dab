#define AT_PER_OPERATOR_HEADERS
#include "runtime/again.h"

#include <ATen/Context.h>
#include <ATen/LegacyBatchedTensorImpl.h>

#include <algorithm>
#include <mutex>

namespace dynacompile::runtime {
namespace {

PyRef tuple_of(const std::vector<int64_t>& numbers) {
    PyRef found = PyRef::take(checked(PyTuple_New(Py_ssize_t(numbers.size()))));
    for (size_t i = 0; i < numbers.size(); ++i) PyTuple_SET_ITEM(found.get(), Py_ssize_t(i), checked(PyLong_FromLongLong(numbers[i])));
    return found;
}

}  // namespace

Generators Again::generators() const {
    Generators found;
    for (const c10::Device& device : draws) {
        at::Generator generator = at::globalContext().defaultGenerator(device);
        std::lock_guard<std::mutex> lock(generator.mutex());
        found.push_back(generator.clone());
    }
    return found;
}

void Primals::remember(const Again& again, const Inputs& inputs, Generators generators) {
    kept_.reserve(again.kept.size() + again.outputs.size());
    for (int64_t input : again.kept) {
        c10::TensorImpl* impl = inputs.impls[input];
        if (!impl) fail("input ", input, " is kept for double backward and is no tensor");
        at::Tensor tensor = tensor_of(impl);
        const bool is_accumulated = tensor.requires_grad() && tensor.is_leaf() &&
                                    std::find(again.accumulated.begin(), again.accumulated.end(), input) != again.accumulated.end();
        if (is_accumulated)
            kept_.push_back({{}, int64_t(tensor._version())});
        else
            kept_.push_back({torch::autograd::SavedVariable(tensor.is_inference() ? plain_alias(tensor) : tensor, false), -1});
    }
    if (again.has_numbers) numbers_.assign(inputs.numbers.begin(), inputs.numbers.end());
    for (int64_t input : again.measured)
        if (const c10::TensorImpl* impl = inputs.impls[input]) shapes_.emplace_back(impl->sizes().vec(), impl->strides().vec());
    generators_ = std::move(generators);
}

PyRef Primals::with_rest(PyRef values) const {
    PyRef shapes = PyRef::take(checked(PyTuple_New(Py_ssize_t(shapes_.size()))));
    for (size_t i = 0; i < shapes_.size(); ++i) {
        PyRef size = tuple_of(shapes_[i].first), stride = tuple_of(shapes_[i].second);
        PyTuple_SET_ITEM(shapes.get(), Py_ssize_t(i), checked(PyTuple_Pack(2, size.get(), stride.get())));
    }
    PyRef states = PyRef::take(checked(PyTuple_New(Py_ssize_t(generators_.size()))));
    for (size_t i = 0; i < generators_.size(); ++i) PyTuple_SET_ITEM(states.get(), Py_ssize_t(i), wrap(generators_[i].get_state()));
    PyRef numbers = tuple_of(numbers_);
    return PyRef::take(checked(PyTuple_Pack(4, values.get(), numbers.get(), shapes.get(), states.get())));
}

// set_again(differentiable, call, kept, measured, accumulated, copies, outputs, has_numbers, draws)
PyObject* set_again(PyObject*, PyObject* args) {
    PyObject *differentiable, *call, *kept, *measured, *accumulated, *copies, *outputs, *draws;
    int has_numbers;
    if (!PyArg_ParseTuple(args, "OOOOOO!OpO!", &differentiable, &call, &kept, &measured, &accumulated, &PyTuple_Type, &copies, &outputs, &has_numbers,
                          &PyTuple_Type, &draws))
        return nullptr;
    try {
        auto made = std::make_unique<Again>();
        made->call = PyRef::share(call);
        made->kept = to_ints(kept);
        made->measured = to_ints(measured);
        made->accumulated = to_ints(accumulated);
        for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(copies); ++i) {
            PyObject* row = PyTuple_GET_ITEM(copies, i);
            made->copies.emplace_back(to_int(item(row, 0)), to_int(item(row, 1)));
        }
        made->outputs = to_ints(outputs);
        made->has_numbers = has_numbers != 0;
        for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(draws); ++i) made->draws.emplace_back(to_string(PyTuple_GET_ITEM(draws, i)));
        region_of(differentiable)->again = std::move(made);
        Py_RETURN_NONE;
    } catch (...) {
        set_python_error();
        return nullptr;
    }
}

// unbatched(tensor) -> (the tensor without the innermost batch that torch.autograd's own vmap gave it, the dimension of that batch, its level), or None
PyObject* unbatched(PyObject*, PyObject* tensor) {
    try {
        if (!is_tensor(tensor)) raise(PyExc_TypeError, "unbatched takes a tensor");
        const at::Tensor given = tensor_of(impl_of(tensor));
        const at::BatchedTensorImpl* batched = at::maybeGetBatchedImpl(given);
        if (!batched) Py_RETURN_NONE;
        at::BatchDims rest(batched->bdims().begin(), batched->bdims().end());
        const at::BatchDim last = rest.pop_back_val();
        int64_t dim = last.dim();
        for (const at::BatchDim& other : rest) dim -= other.dim() < last.dim();
        PyRef value = PyRef::take(wrap(rest.empty() ? batched->value() : at::makeBatched(batched->value(), rest)));
        return Py_BuildValue("OLL", value.get(), static_cast<long long>(dim), static_cast<long long>(last.level()));
    } catch (...) {
        set_python_error();
        return nullptr;
    }
}

}  // namespace dynacompile::runtime
