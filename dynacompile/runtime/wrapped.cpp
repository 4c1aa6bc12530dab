// The callable of a graph whose inputs or outputs wrap other tensors, around the callable that takes and gives these.
//
// A tensor inside is given to the graph as an alias that has the version counter of its wrapper, as that is what autograd and the program count writes on.
// Gradients between the two are taken apart and wrapped by Python, which knows the classes; see ops/wrappers.py.
#include "runtime/wrapped.h"

#include "runtime/continuation.h"
#include "runtime/objects.h"

#include <ATen/ops/as_strided_ops.h>
#include <ATen/ops/empty_ops.h>
#include <c10/core/GradMode.h>

#include <structmember.h>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <vector>

namespace torch::autograd {
DYNACOMPILE_IMPORTED void registerCppFunction(const std::type_info& type, PyTypeObject* python_type);
DYNACOMPILE_IMPORTED PyTypeObject* _initFunctionPyTypeObject(PyTypeObject& type, const char* name, PyGetSetDef* properties, PyMethodDef* methods);
}  // namespace torch::autograd

namespace dynacompile::runtime {
namespace {

using torch::autograd::Edge;
using torch::autograd::edge_list;
using torch::autograd::Node;
using torch::autograd::variable_list;

constexpr int32_t as_it_is = -1, pending = -2;

// An input of the graph: the attribute `name` of the wrapper of this number; or as it is; or the result of a collective that is under way, once it has ended.
// grad: the sizes of the gradient there, where that has other ones than the input.
struct Part {
    int32_t wrapper = as_it_is;
    PyRef name;
    std::vector<int64_t> grad;
    bool has_grad = false;
};

// A wrapper among the outputs, of `count` results of the graph; 0: a result as it is. make: a wrapper of tensors; take: the tensors of its gradient.
struct Made {
    size_t count = 0;
    PyRef make, take;
};

struct Layout {
    PyRef call;
    std::vector<Part> inputs;
    std::vector<PyRef> gradients;  // of each wrapper among the inputs, what makes its gradient of those of its parts
    std::vector<Made> outputs;
};
using LayoutPtr = std::shared_ptr<const Layout>;

LayoutPtr shared(std::unique_ptr<Layout> layout) {
    return LayoutPtr(layout.release(), [](const Layout* dead) {
        if (!Py_IsInitialized()) return;
        WithGil gil;
        delete dead;
    });
}

// Without history: a wrapper is made of it.
at::Tensor plain(at::Tensor tensor) {
    if (!tensor.defined() || !tensor.requires_grad()) return tensor;
    c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
    return at::Tensor(impl->shallow_copy_and_detach(impl->version_counter(), true));
}

edge_list edges_of(const at::Tensor* tensors, size_t count) {
    edge_list edges;
    for (size_t i = 0; i < count; ++i) edges.push_back(tensors[i].defined() && tensors[i].requires_grad() ? torch::autograd::impl::gradient_edge(tensors[i]) : Edge());
    return edges;
}

template <typename Pointer>
void give_history(const at::Tensor& tensor, const Pointer& node) {
    const uint32_t number = node->add_input_metadata(tensor);
    torch::autograd::impl::set_gradient_edge(tensor, {node, number});
}

// The gradient function of gradients that were wrapped or taken apart: names itself when somebody differentiates them again.
struct WrappedTwice final : public Node {
    explicit WrappedTwice(edge_list&& edges) : Node(std::move(edges)) {}
    std::string name() const override { return "DynacompileDoubleBackward"; }
    variable_list apply(variable_list&&) override {
        fail("double backward through a compiled region whose inputs or outputs are tensors that wrap others, as DTensors do, is not supported: ",
             "leave the function that is differentiated twice out of the compiled region");
    }
};

void refuse_more(variable_list& made, const variable_list& given) {
    if (!c10::GradMode::is_enabled() || std::none_of(given.begin(), given.end(), [](const at::Tensor& t) { return t.defined() && t.requires_grad(); })) return;
    auto refusal = make_node<WrappedTwice>(edges_of(given.data(), given.size()));
    for (at::Tensor& grad : made)
        if (grad.defined() && !grad.requires_grad() && (grad.is_floating_point() || grad.is_complex())) give_history(grad, refusal);
}

void refuse_batches(const variable_list& grads) {
    for (const at::Tensor& grad : grads) {
        if (!grad.defined()) continue;
        const c10::DispatchKeySet keys = grad.unsafeGetTensorImpl()->key_set();
        if (keys.has(c10::DispatchKey::Batched) || keys.has(c10::DispatchKey::FuncTorchBatched))
            fail("a batch of gradients (is_grads_batched) through a compiled region with tensors that wrap others is not supported: leave it out of the compiled region");
    }
}

PyRef tuple_of(const at::Tensor* tensors, size_t count) {
    PyRef made = PyRef::take(checked(PyTuple_New(Py_ssize_t(count))));
    for (size_t i = 0; i < count; ++i) PyTuple_SET_ITEM(made.get(), Py_ssize_t(i), wrap(tensors[i]));
    return made;
}

// Gradients of the tensors inside of an input become its own. tangents: of those parts that have one, by their places.
class WrapGradient final : public Node {
public:
    WrapGradient(LayoutPtr layout, size_t wrapper, edge_list&& edges) : Node(std::move(edges)), layout_(std::move(layout)), wrapper_(wrapper) {}

    std::string name() const override { return "DynacompileWrapGradient"; }

    void add_part(const at::Tensor& alias, const NodePtr& self, size_t place, const Part& part) {
        places_.push_back(place);
        if (!part.has_grad || alias.sizes() == c10::IntArrayRef(part.grad)) return give_history(alias, self);
        const std::vector<int64_t> nowhere(part.grad.size(), 0);  // autograd looks at sizes, dtype and device
        const at::Tensor one = at::_ops::empty_memory_format::call(c10::fromIntArrayRefSlow(c10::IntArrayRef{1}), alias.scalar_type(), c10::Layout::Strided,
                                                                   alias.device(), false, std::nullopt);
        const uint32_t number =
            add_input_metadata(at::_ops::as_strided::call(one, c10::fromIntArrayRefSlow(part.grad), c10::fromIntArrayRefSlow(nowhere), std::nullopt));
        torch::autograd::impl::set_gradient_edge(alias, {self, number});
    }
    void set_count(size_t parts) { parts_ = parts; }

    variable_list apply(variable_list&& grads) override {
        refuse_batches(grads);
        const variable_list given_grads = c10::GradMode::is_enabled() ? grads : variable_list();
        std::vector<at::Tensor> parts(parts_);
        for (size_t i = 0; i < places_.size() && i < grads.size(); ++i) parts[places_[i]] = plain(std::move(grads[i]));
        WithGil gil;
        try {
            PyRef given = tuple_of(parts.data(), parts.size());
            parts.clear();  // an accumulation takes memory over that nobody else has
            PyRef made = PyRef::take(checked(PyObject_CallOneArg(layout_->gradients[wrapper_].get(), given.get())));
            if (made.get() == Py_None) return {at::Tensor()};
            if (!is_tensor(made.get())) raise(PyExc_TypeError, "a gradient must be a tensor");
            variable_list found{tensor_of(impl_of(made.get()))};
            refuse_more(found, given_grads);
            return found;
        } catch (const PythonErrorSet&) {
            throw_python_error();
        }
    }

private:
    LayoutPtr layout_;
    const size_t wrapper_;
    std::vector<size_t> places_;
    size_t parts_ = 1;
};

// The gradient of a wrapper among the outputs is taken apart.
class TakeGradient final : public Node {
public:
    TakeGradient(LayoutPtr layout, size_t output, edge_list&& edges) : Node(std::move(edges)), layout_(std::move(layout)), output_(output) {}

    std::string name() const override { return "DynacompileTakeGradient"; }

    variable_list apply(variable_list&& grads) override {
        refuse_batches(grads);
        variable_list found(num_outputs());
        if (grads.empty() || !grads[0].defined()) return found;
        WithGil gil;
        try {
            PyRef given = PyRef::take(wrap(grads[0]));
            PyRef parts = PyRef::take(checked(PyObject_CallOneArg(layout_->outputs[output_].take.get(), given.get())));
            if (!PyTuple_Check(parts.get()) || size_t(PyTuple_GET_SIZE(parts.get())) != found.size())
                raise(PyExc_TypeError, "a gradient has other parts than what it is the gradient of");
            for (size_t i = 0; i < found.size(); ++i) {
                PyObject* part = PyTuple_GET_ITEM(parts.get(), Py_ssize_t(i));
                if (is_tensor(part)) found[i] = tensor_of(impl_of(part));
            }
            refuse_more(found, grads);
            return found;
        } catch (const PythonErrorSet&) {
            throw_python_error();
        }
    }

private:
    LayoutPtr layout_;
    const size_t output_;
};

using WrapPtr = decltype(make_node<WrapGradient>(LayoutPtr(), size_t(0), edge_list()));

class Call {
public:
    Call(const LayoutPtr& layout, PyObject* const* args) : layout_(layout), args_(args), nodes_(layout->gradients.size()), counts_(layout->gradients.size()) {}

    PyObject* run() {
        std::vector<PyRef> given;
        std::vector<PyObject*> borrowed;
        for (size_t i = 0; i < layout_->inputs.size(); ++i) {
            const Part& part = layout_->inputs[i];
            given.push_back(part.wrapper == as_it_is ? PyRef::share(args_[i]) : part.wrapper == pending ? ended(args_[i]) : part_of(args_[i], part));
            borrowed.push_back(given.back().get());
        }
        for (size_t i = 0; i < nodes_.size(); ++i)
            if (nodes_[i]) nodes_[i]->set_count(counts_[i]);
        PyRef results = PyRef::take(checked(call_object(layout_->call.get(), borrowed.data(), borrowed.size(), nullptr)));
        if (!PyTuple_Check(results.get())) raise(PyExc_TypeError, "a graph must return a tuple");
        return outputs(results.get());
    }

private:
    // The plain tensor that the result of a collective is once that has ended: the object itself, where it is no such result.
    static PyRef settled(PyRef object) {
        if (!is_tensor(object.get())) raise(PyExc_TypeError, std::string("an input of a compiled graph must be a tensor, not ") + Py_TYPE(object.get())->tp_name);
        if (!impl_of(object.get())->is_python_dispatch()) return object;
        object = PyRef::take(checked(PyObject_CallMethod(object.get(), "trigger_wait", nullptr)));
        if (!is_tensor(object.get())) raise(PyExc_TypeError, "a collective must give a tensor");
        return object;
    }

    // An alias of it, with the version and the history of the result.
    static PyRef ended(PyObject* result) {
        const PyRef inside = settled(PyRef::share(result));
        c10::TensorImpl* outer = impl_of(result);
        if (outer->is_inference() || outer == impl_of(inside.get())) return inside;
        const at::Tensor alias(impl_of(inside.get())->shallow_copy_and_detach(outer->version_counter(), true));
        if (outer->requires_grad() && c10::GradMode::is_enabled())
            torch::autograd::impl::set_gradient_edge(alias, torch::autograd::impl::gradient_edge(tensor_of(outer)));
        return PyRef::take(wrap(alias));
    }

    // An alias of a tensor inside of a wrapper, through which gradients come to the wrapper.
    PyRef part_of(PyObject* wrapper, const Part& part) {
        if (!is_tensor(wrapper)) raise(PyExc_TypeError, std::string("an input of a compiled graph must be a tensor, not ") + Py_TYPE(wrapper)->tp_name);
        const size_t place = counts_[part.wrapper]++;
        PyRef inside = settled(PyRef::take(checked(PyObject_GetAttr(wrapper, part.name.get()))));
        c10::TensorImpl *outer = impl_of(wrapper), *impl = impl_of(inside.get());
        if (outer->is_inference() || impl->is_inference()) return inside;
        const at::Tensor alias(impl->shallow_copy_and_detach(outer->version_counter(), true));
        if (outer->requires_grad() && c10::GradMode::is_enabled() && (alias.is_floating_point() || alias.is_complex())) {
            WrapPtr& node = nodes_[part.wrapper];
            if (!node) node = make_node<WrapGradient>(layout_, size_t(part.wrapper), edge_list{torch::autograd::impl::gradient_edge(tensor_of(outer))});
            node->add_part(alias, node, place, part);
        }
        return PyRef::take(wrap(alias));
    }

    PyObject* outputs(PyObject* results) const {
        PyRef found = PyRef::take(checked(PyTuple_New(Py_ssize_t(layout_->outputs.size()))));
        size_t taken = 0;
        for (size_t i = 0; i < layout_->outputs.size(); ++i) {
            const size_t count = layout_->outputs[i].count;
            if (taken + std::max(count, size_t(1)) > size_t(PyTuple_GET_SIZE(results))) raise(PyExc_ValueError, "a graph has returned too few results");
            PyObject* made = count ? wrapper_of(results, taken, i) : Py_NewRef(PyTuple_GET_ITEM(results, Py_ssize_t(taken)));
            PyTuple_SET_ITEM(found.get(), Py_ssize_t(i), made);
            taken += std::max(count, size_t(1));
        }
        return found.release();
    }

    // A wrapper of results of the graph, whose gradient comes to theirs. Writes to it count as writes to these, which a backward pass may read.
    PyObject* wrapper_of(PyObject* results, size_t first, size_t output) const {
        const Made& made = layout_->outputs[output];
        std::vector<at::Tensor> parts, plain;
        bool is_recorded = false;
        for (size_t i = first; i < first + made.count; ++i) {
            PyObject* part = PyTuple_GET_ITEM(results, Py_ssize_t(i));
            if (!is_tensor(part)) raise(PyExc_TypeError, "a wrapper among the outputs of a graph is made of tensors");
            parts.push_back(tensor_of(impl_of(part)));
            c10::TensorImpl* impl = parts.back().unsafeGetTensorImpl();
            plain.push_back(parts.back().is_inference() ? parts.back() : at::Tensor(impl->shallow_copy_and_detach(impl->version_counter(), true)));
            is_recorded = is_recorded || parts.back().requires_grad();
        }
        PyRef given = tuple_of(plain.data(), plain.size());
        PyRef wrapper = PyRef::take(checked(PyObject_CallOneArg(made.make.get(), given.get())));
        if (!is_tensor(wrapper.get())) raise(PyExc_TypeError, "a wrapper must be a tensor");
        const at::Tensor outer = tensor_of(impl_of(wrapper.get()));
        if (!outer.is_inference() && !parts[0].is_inference()) outer.unsafeGetTensorImpl()->set_version_counter(parts[0].unsafeGetTensorImpl()->version_counter());
        if (is_recorded) give_history(outer, make_node<TakeGradient>(layout_, output, edges_of(parts.data(), parts.size())));
        return wrapper.release();
    }

    const LayoutPtr& layout_;
    PyObject* const* args_;
    std::vector<WrapPtr> nodes_;
    std::vector<size_t> counts_;
};

struct WrappedObject {
    PyObject_HEAD vectorcallfunc vectorcall;
    LayoutPtr layout;
};

PyTypeObject* wrapped_type = nullptr;

WrappedObject* self_of(PyObject* object) { return reinterpret_cast<WrappedObject*>(object); }

PyObject* call_wrapped(PyObject* self, PyObject* const* args, size_t flags, PyObject* keywords) {
    try {
        const LayoutPtr layout = self_of(self)->layout;  // the callable may be dropped while it runs
        if (keywords && PyTuple_GET_SIZE(keywords)) raise(PyExc_TypeError, "a compiled graph takes no keyword arguments");
        if (size_t(PyVectorcall_NARGS(flags)) != layout->inputs.size())
            raise(PyExc_TypeError, "the compiled graph takes " + std::to_string(layout->inputs.size()) + " inputs, not " + std::to_string(PyVectorcall_NARGS(flags)));
        return Call(layout, args).run();
    } catch (...) {
        set_python_error();
        return nullptr;
    }
}

// make_wrapped(call, inputs, gradients, outputs), as wrapped.py writes it.
PyObject* make_wrapped(PyObject*, PyObject* args) {
    PyObject *call, *inputs, *gradients, *outputs;
    if (!PyArg_ParseTuple(args, "OO!O!O!", &call, &PyTuple_Type, &inputs, &PyTuple_Type, &gradients, &PyTuple_Type, &outputs)) return nullptr;
    auto layout = std::make_unique<Layout>();
    layout->call = PyRef::share(call);
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(gradients); ++i) layout->gradients.push_back(PyRef::share(PyTuple_GET_ITEM(gradients, i)));
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(inputs); ++i) {
        PyObject* row = PyTuple_GET_ITEM(inputs, i);
        Part part;
        if (row != Py_None) {
            part.wrapper = int32_t(to_int(item(row, 0)));
            part.name = PyRef::share(item(row, 1));
            part.has_grad = item(row, 2) != Py_None;
            if (part.has_grad) part.grad = to_ints(item(row, 2));
        }
        if (part.wrapper >= int32_t(layout->gradients.size())) raise(PyExc_IndexError, "an input is of no wrapper");
        layout->inputs.push_back(std::move(part));
    }
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(outputs); ++i) {
        PyObject* row = PyTuple_GET_ITEM(outputs, i);
        Made made;
        if (row != Py_None) made = {size_t(to_int(item(row, 0))), PyRef::share(item(row, 1)), PyRef::share(item(row, 2))};
        layout->outputs.push_back(std::move(made));
    }
    PyObject* self = checked(wrapped_type->tp_alloc(wrapped_type, 0));
    self_of(self)->vectorcall = call_wrapped;
    new (&self_of(self)->layout) LayoutPtr(shared(std::move(layout)));
    return self;
}

void free_wrapped(PyObject* self) noexcept {
    PyTypeObject* type = Py_TYPE(self);
    self_of(self)->layout.~shared_ptr();
    type->tp_free(self);
    Py_DECREF(type);
}

PyMemberDef members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(WrappedObject, vectorcall), READONLY, nullptr},
    {nullptr},
};

PyType_Slot slots[] = {
    {Py_tp_doc, const_cast<char*>("A compiled graph whose inputs or outputs wrap other tensors.")},
    {Py_tp_call, reinterpret_cast<void*>(PyVectorcall_Call)},
    {Py_tp_dealloc, reinterpret_cast<void*>(free_wrapped)},
    {Py_tp_members, members},
    {0, nullptr},
};

PyType_Spec spec = {"dynacompile_native.Wrapped", sizeof(WrappedObject), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_DISALLOW_INSTANTIATION,
                    slots};

PyMethodDef functions[] = {
    {"make_wrapped", boundary<make_wrapped>, METH_VARARGS, "make_wrapped(call, inputs, gradients, outputs) -> Wrapped: a graph's callable around one of plain tensors."},
    {nullptr}};

}  // namespace

Node* accumulation(Node* next) {
    if (next && dynamic_cast<WrapGradient*>(next)) next = next->next_edge(0).function.get();
    return next && next->num_outputs() == 0 ? next : nullptr;
}

}  // namespace dynacompile::runtime

bool init_wrapped(PyObject* module) {
    using namespace dynacompile::runtime;
    static PyTypeObject wrap_type, take_type;  // torch keeps them for the life of the process
    wrapped_type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&spec));
    if (!wrapped_type || PyModule_AddFunctions(module, functions)) return false;
    torch::autograd::registerCppFunction(typeid(WrapGradient), torch::autograd::_initFunctionPyTypeObject(wrap_type, "DynacompileWrapGradient", nullptr, nullptr));
    torch::autograd::registerCppFunction(typeid(TakeGradient), torch::autograd::_initFunctionPyTypeObject(take_type, "DynacompileTakeGradient", nullptr, nullptr));
    return !PyErr_Occurred();
}
