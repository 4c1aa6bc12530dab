#include "runtime/region.h"

namespace dynacompile::runtime {
namespace {

// Python graphs may dispatch as they like, but without gradients and without autocast: the graph has its casts in it.
struct PlainMode {
    c10::impl::ExcludeDispatchKeyGuard exclude{c10::autocast_dispatch_keyset};
    c10::AutoGradMode grad{false};
};

// Calls a Python graph. Holds the GIL; raises PythonErrorSet.
Tensors call_python(PyObject* callable, PyObject* const* args, size_t count, const char* which, size_t expected) {
    PyRef result;
    {
        PlainMode plain;
        result = PyRef::take(checked(PyObject_Vectorcall(callable, args, count, nullptr)));
    }
    if (!PyTuple_Check(result.get()) && !PyList_Check(result.get())) raise(PyExc_TypeError, std::string("the ") + which + " graph must return a tuple or list of tensors, not " + Py_TYPE(result.get())->tp_name);
    Tensors outputs(PySequence_Fast_GET_SIZE(result.get()));
    if (outputs.size() < expected) raise(PyExc_ValueError, std::string("the ") + which + " graph returned " + std::to_string(outputs.size()) + " values, fewer than " + std::to_string(expected));
    for (size_t i = 0; i < outputs.size(); ++i) {
        PyObject* value = PySequence_Fast_GET_ITEM(result.get(), i);
        if (value == Py_None) continue;
        if (!is_tensor(value)) raise(PyExc_TypeError, std::string("output ") + std::to_string(i) + " of the " + which + " graph is no tensor but " + Py_TYPE(value)->tp_name);
        outputs[i] = tensor_of(impl_of(value));
    }
    return outputs;
}

Tensors call_program(const Program& program, c10::TensorImpl* const* impls, const char* which, size_t expected) {
    TORCH_CHECK(program.outputs.size() >= expected, "dynacompile: the ", which, " program has ", program.outputs.size(), " outputs, the contract needs ", expected);
    Tensors outputs(program.outputs.size());
    program.run(impls, outputs.data());
    return outputs;
}

// The same memory and version counter, without autograd history.
at::Tensor detached(const at::Tensor& tensor) {
    c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
    return at::Tensor(impl->shallow_copy_and_detach(impl->version_counter(), true));
}

}  // namespace

std::shared_ptr<Region> Region::make(Contract contract, PyRef forward, PyRef make_backward) {
    return std::shared_ptr<Region>(new Region(std::move(contract), std::move(forward), std::move(make_backward)), [](Region* region) {
        if (!Py_IsInitialized()) return;  // the interpreter is gone, and with it all that the region refers to
        WithGil gil;
        delete region;
    });
}

// A node is set on these tensors, so each must be ours alone: one that somebody else holds (an input, a constant, the same output twice)
// is replaced by an alias. Tensors of Python graphs have Python objects, which others may hold unseen.
Tensors Region::forward(PyObject* const* args, c10::TensorImpl* const* impls) const {
    Tensors outputs = forward_.program ? call_program(*forward_.program, impls, "forward", contract.positions)
                                       : call_python(forward_.callable.get(), args, contract.inputs, "forward", contract.positions);
    for (at::Tensor& output : outputs)
        if (output.defined() && (!forward_.program || output.use_count() > 1)) output = detached(output);
    return outputs;
}

const Graph& Region::built_backward() {
    if (built_.load(std::memory_order_acquire)) return backward_;
    // make_backward runs Python for seconds, perhaps on several threads at once: wait without the GIL, then take it.
    PyThreadState* released = PyGILState_Check() ? PyEval_SaveThread() : nullptr;
    std::unique_lock<std::mutex> lock(building_);
    if (released) PyEval_RestoreThread(released);
    if (!built_.load(std::memory_order_acquire)) {
        WithGil gil;
        PyObject* made = PyObject_CallNoArgs(make_backward_.get());
        if (made && !PyCallable_Check(made)) {
            PyErr_Format(PyExc_TypeError, "make_backward must return a callable, not %s", Py_TYPE(made)->tp_name);
            Py_CLEAR(made);
        }
        if (!made) throw_python_error();
        backward_ = Graph(PyRef::take(made));
        make_backward_ = PyRef();
        built_.store(true, std::memory_order_release);
    }
    return backward_;
}

Tensors Region::backward(Tensors flat) {
    const Graph& graph = built_backward();
    size_t expected = contract.grads.size();
    if (graph.program) {
        TORCH_CHECK(graph.program->inputs.size() == flat.size(), "dynacompile: the backward program takes ", graph.program->inputs.size(), " inputs, not ", flat.size());
        c10::SmallVector<c10::TensorImpl*, 16> impls;
        for (const at::Tensor& tensor : flat) impls.push_back(tensor.unsafeGetTensorImpl());
        return call_program(*graph.program, impls.data(), "backward", expected);
    }
    WithGil gil;
    try {
        std::vector<PyRef> args;
        std::vector<PyObject*> borrowed;
        for (at::Tensor& tensor : flat) {
            args.push_back(PyRef::take(wrap(tensor)));
            borrowed.push_back(args.back().get());
            tensor.reset();
        }
        return call_python(graph.callable.get(), borrowed.data(), borrowed.size(), "backward", expected);
    } catch (const PythonErrorSet&) {
        throw_python_error();
    }
}

std::shared_ptr<const std::vector<TangentGeometry>> Region::tangent_geometry(const Tensors& outputs) {
    std::lock_guard<std::mutex> lock(remembering_);
    bool same = bool(remembered_);
    for (size_t i = 0; same && i < contract.tangents.size(); ++i) {
        const at::Tensor& t = outputs[contract.tangents[i]];
        const TangentGeometry& g = (*remembered_)[i];
        same = t.scalar_type() == g.dtype && t.device() == g.device && t.sizes() == c10::IntArrayRef(g.size) && t.strides() == c10::IntArrayRef(g.stride);
    }
    if (same) return remembered_;
    auto made = std::make_shared<std::vector<TangentGeometry>>();
    for (int64_t position : contract.tangents) {
        const at::Tensor& t = outputs[position];
        TORCH_CHECK(t.defined(), "dynacompile: forward output ", position, " needs a tangent and is no tensor");
        made->push_back({t.sizes().vec(), t.strides().vec(), t.scalar_type(), t.device()});
    }
    remembered_ = made;
    return made;
}

}  // namespace dynacompile::runtime
