// The callable of a compiled graph: flat inputs to user outputs, under the runtime contract, with autograd.
#include "runtime/region.h"

#include <ATen/ops/as_strided_ops.h>
#include <ATen/ops/copy_ops.h>
#include <ATen/ops/detach_ops.h>
#include <c10/core/GradMode.h>

#include <structmember.h>

#include <cstddef>

namespace dynacompile::runtime {
namespace {

struct DifferentiableObject {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    std::shared_ptr<Region> region;
    PyObject* weakrefs;
};

PyTypeObject* differentiable_type = nullptr;

DifferentiableObject* self_of(PyObject* object) { return reinterpret_cast<DifferentiableObject*>(object); }

at::Tensor view_of(const at::Tensor& base, const Output& output) {
    at::Tensor from = output.differentiable ? base : at::_ops::detach::call(base);
    return at::_ops::as_strided::call(from, c10::fromIntArrayRefSlow(output.size), c10::fromIntArrayRefSlow(output.stride), base.storage_offset() + output.offset);
}

class Call {
public:
    Call(const std::shared_ptr<Region>& region, PyObject* const* args) : region_(region), contract_(region->contract), args_(args), impls_(contract_.inputs, static_cast<c10::TensorImpl*>(nullptr)) {
        for (int32_t i = 0; i < contract_.inputs; ++i)
            if (is_tensor(args[i])) impls_[i] = impl_of(args[i]);
    }

    PyObject* run() {
        Tensors made = region_->forward(args_, impls_.data());
        for (int64_t input : contract_.mutated_in_graph) tensor_input(input)->bump_version();
        if (needs_node()) attach_node(region_, impls_.data(), made);
        for (const Mutation& mutation : contract_.mutations) {
            at::Tensor input = tensor_of(tensor_input(mutation.input));
            at::_ops::copy_::call(input, made[mutation.position], false);
        }
        return user_outputs(made);
    }

private:
    c10::TensorImpl* tensor_input(int64_t input) const {
        if (!impls_[input]) raise(PyExc_TypeError, "input " + std::to_string(input) + " of a compiled graph must be a tensor, not " + Py_TYPE(args_[input])->tp_name);
        return impls_[input];
    }

    bool needs_node() const {
        if (!region_->trains() || contract_.tangents.empty() || !c10::GradMode::is_enabled()) return false;
        for (int64_t input : contract_.grads)
            if (impls_[input] && impls_[input]->requires_grad()) return true;
        return false;
    }

    PyObject* user_outputs(Tensors& made) const {
        PyRef result = PyRef::take(checked(PyTuple_New(contract_.outputs.size())));
        for (size_t i = 0; i < contract_.outputs.size(); ++i) PyTuple_SET_ITEM(result.get(), i, user_output(contract_.outputs[i], made));
        return result.release();
    }

    PyObject* user_output(const Output& output, Tensors& made) const {
        switch (output.from) {
            case From::fresh:
                return wrap(made[output.index]);
            case From::input:
                return Py_NewRef(args_[output.index]);
            case From::input_view:
                return wrap(view_of(tensor_of(tensor_input(output.index)), output));
            case From::output_view:
                return wrap(view_of(made[output.index], output));
            case From::constant:
                return Py_NewRef(output.value.get());
        }
        Py_UNREACHABLE();
    }

    const std::shared_ptr<Region>& region_;
    const Contract& contract_;
    PyObject* const* args_;
    c10::SmallVector<c10::TensorImpl*, 16> impls_;
};

PyObject* call_differentiable(PyObject* self, PyObject* const* args, size_t flags, PyObject* keywords) {
    try {
        std::shared_ptr<Region> region = self_of(self)->region;  // the callable may be dropped while it runs
        size_t count = PyVectorcall_NARGS(flags);
        if (keywords && PyTuple_GET_SIZE(keywords)) raise(PyExc_TypeError, "a compiled graph takes no keyword arguments");
        if (count != size_t(region->contract.inputs)) raise(PyExc_TypeError, "the compiled graph takes " + std::to_string(region->contract.inputs) + " inputs, not " + std::to_string(count));
        return Call(region, args).run();
    } catch (...) {
        set_python_error();
        return nullptr;
    }
}

// (from, index, differentiable, size, stride, offset, value), as differentiable.py writes it.
Output read_output(PyObject* row) {
    Output output;
    output.from = From(to_int(item(row, 0)));
    output.index = int32_t(to_int(item(row, 1)));
    output.differentiable = PyObject_IsTrue(item(row, 2)) == 1;
    output.size = to_ints(item(row, 3));
    output.stride = to_ints(item(row, 4));
    output.offset = to_int(item(row, 5));
    output.value = PyRef::share(item(row, 6));
    return output;
}

// make_differentiable(forward, make_backward | None, inputs, positions, outputs, mutations, mutated_in_graph, saved_inputs, saved_positions, tangents, grads)
PyObject* make_differentiable(PyObject*, PyObject* args) {
    PyObject *forward, *make_backward, *outputs, *mutations, *in_graph, *saved_inputs, *saved_positions, *tangents, *grads;
    Contract contract;
    if (!PyArg_ParseTuple(args, "OOiiO!O!OOOOO", &forward, &make_backward, &contract.inputs, &contract.positions, &PyTuple_Type, &outputs, &PyTuple_Type, &mutations, &in_graph, &saved_inputs,
                          &saved_positions, &tangents, &grads))
        return nullptr;
    try {
        for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(outputs); ++i) contract.outputs.push_back(read_output(PyTuple_GET_ITEM(outputs, i)));
        for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(mutations); ++i) {
            PyObject* row = PyTuple_GET_ITEM(mutations, i);
            contract.mutations.push_back({int32_t(to_int(item(row, 0))), int32_t(to_int(item(row, 1)))});
        }
        contract.mutated_in_graph = to_ints(in_graph);
        contract.saved_inputs = to_ints(saved_inputs);
        contract.saved_positions = to_ints(saved_positions);
        contract.tangents = to_ints(tangents);
        contract.grads = to_ints(grads);
        std::shared_ptr<Region> region = Region::make(std::move(contract), PyRef::share(forward), make_backward == Py_None ? PyRef() : PyRef::share(make_backward));
        PyObject* self = checked(differentiable_type->tp_alloc(differentiable_type, 0));
        self_of(self)->vectorcall = call_differentiable;
        new (&self_of(self)->region) std::shared_ptr<Region>(std::move(region));
        return self;
    } catch (...) {
        set_python_error();
        return nullptr;
    }
}

void free_differentiable(PyObject* self) {
    if (self_of(self)->weakrefs) PyObject_ClearWeakRefs(self);
    PyTypeObject* type = Py_TYPE(self);
    self_of(self)->region.~shared_ptr();
    type->tp_free(self);
    Py_DECREF(type);
}

PyMemberDef members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(DifferentiableObject, vectorcall), READONLY, nullptr},
    {"__weaklistoffset__", T_PYSSIZET, offsetof(DifferentiableObject, weakrefs), READONLY, nullptr},
    {nullptr},
};

PyType_Slot slots[] = {
    {Py_tp_doc, const_cast<char*>("A compiled graph: called with its flat inputs it returns the tuple of user outputs, with autograd.")},
    {Py_tp_call, reinterpret_cast<void*>(PyVectorcall_Call)},
    {Py_tp_dealloc, reinterpret_cast<void*>(free_differentiable)},
    {Py_tp_members, members},
    {0, nullptr},
};

PyType_Spec spec = {"dynacompile_native.Differentiable", sizeof(DifferentiableObject), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_DISALLOW_INSTANTIATION, slots};

PyMethodDef functions[] = {{"make_differentiable", make_differentiable, METH_VARARGS,
                            "make_differentiable(forward, make_backward, inputs, positions, outputs, mutations, mutated_in_graph, saved_inputs, saved_positions, tangents, grads) -> Differentiable"},
                           {nullptr}};

}  // namespace
}  // namespace dynacompile::runtime

bool init_differentiable(PyObject* module) {
    using namespace dynacompile::runtime;
    differentiable_type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&spec));
    if (!differentiable_type || PyModule_AddFunctions(module, functions) || !init_node()) return false;
    return PyModule_AddObjectRef(module, "Differentiable", reinterpret_cast<PyObject*>(differentiable_type)) == 0;
}
