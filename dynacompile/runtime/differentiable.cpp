// The callable of a compiled graph: flat inputs to user outputs, under the runtime contract, with autograd.
#include "runtime/region.h"

#include <ATen/ops/alias_ops.h>
#include <ATen/ops/as_strided_ops.h>
#include <ATen/ops/copy_ops.h>
#include <ATen/ops/detach_ops.h>
#include <c10/core/GradMode.h>

#include <structmember.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <thread>

#include "frame/outside.h"

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
        result = PyRef::take(checked(call_object(callable, args, count, nullptr)));
    }
    if (!PyTuple_Check(result.get()) && !PyList_Check(result.get()))
        raise(PyExc_TypeError, std::string("the ") + which + " graph must return a tuple or list of tensors, not " + Py_TYPE(result.get())->tp_name);
    Tensors outputs(PySequence_Fast_GET_SIZE(result.get()));
    if (outputs.size() < expected)
        raise(PyExc_ValueError,
              std::string("the ") + which + " graph returned " + std::to_string(outputs.size()) + " values, fewer than " + std::to_string(expected));
    for (size_t i = 0; i < outputs.size(); ++i) {
        PyObject* value = PySequence_Fast_GET_ITEM(result.get(), i);
        if (value == Py_None) continue;
        if (!is_tensor(value))
            raise(PyExc_TypeError, std::string("output ") + std::to_string(i) + " of the " + which + " graph is no tensor but " + Py_TYPE(value)->tp_name);
        outputs[i] = tensor_of(impl_of(value));
    }
    return outputs;
}

Tensors call_program(const Program& program, const Inputs& inputs, const char* which, size_t expected, Holder* holder = nullptr) {
    if (program.outputs.size() < expected) fail("the ", which, " program has ", program.outputs.size(), " outputs, the contract needs ", expected);
    Tensors outputs(program.outputs.size());
    program.run(inputs.impls.data(), outputs.data(), program.measure(inputs.impls.data(), inputs.numbers.data()), holder);
    return outputs;
}

// Of what a backward program reads: the tensors come behind the numbers.
class Saved final : public Holder {
public:
    Saved(Tensors& tensors, size_t numbers, const LetGo& let_go) : tensors_(tensors), numbers_(numbers), let_go_(let_go) {}

    void let_go(size_t input) override {
        let_go_(input - numbers_);
        tensors_[input - numbers_].reset();
    }

private:
    Tensors& tensors_;
    size_t numbers_;
    const LetGo& let_go_;
};

// The same memory and version counter, without autograd history.
at::Tensor detached(const at::Tensor& tensor) {
    c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
    return at::Tensor(impl->shallow_copy_and_detach(impl->version_counter(), true));
}

// What was saved in the forward pass is as the backward program was compiled for, in sizes, type and device: the caller may have given its tensor other memory
// since, by `.data`. Where that has other strides, a copy takes its place.
void refit(const Program& program, const std::vector<int64_t>& symbols, Tensors& flat, size_t saved) {
    const Inputs inputs = backward_inputs(program, symbols, flat);
    const CallSizes call = program.measure(inputs.impls.data(), inputs.numbers.data());
    for (size_t i = 0; i < saved; ++i) {
        const int32_t slot = program.inputs[symbols.size() + i];
        if (slot < 0 || !flat[i].defined()) continue;
        const Buffer& b = program.buffers[slot];
        const Geometry g = program.geometry(slot, call);
        const c10::TensorImpl& impl = *flat[i].unsafeGetTensorImpl();
        if (impl.sizes() != g.size || impl.dtype() != b.meta || impl.device().type() != b.device.type())
            fail(b.name, " was ", b.meta.name(), g.size, " on ", b.device, " when it was saved for backward, and is ", impl.dtype().name(), impl.sizes(), " on ",
                 impl.device(), " now");
        if (!same_geometry(impl, g.size, g.stride)) flat[i] = copy_to_geometry(b, g, flat[i]);
    }
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
Tensors Region::forward(PyObject* const* args, const Inputs& inputs) const {
    Tensors outputs = forward_.program ? call_program(*forward_.program, inputs, "forward", contract.positions)
                                       : call_python(forward_.callable.get(), args, contract.inputs, "forward", contract.positions);
    for (at::Tensor& output : outputs)
        if (output.defined() && (!forward_.program || output.use_count() > 1)) output = detached(output);
    return outputs;
}

// Waits while another thread builds the backward. True where this thread is to build it: nobody does, or whoever does is this thread itself, or has taken
// so long that it may wait for this one, in code of the program. Holds the GIL, and gives it away meanwhile.
bool Region::begin_building() {
    using namespace std::chrono;
    constexpr auto patience = seconds(20);
    const auto begin = steady_clock::now();
    while (!built_.load(std::memory_order_acquire)) {
        const bool others = builder_.process == getpid() && !pthread_equal(builder_.thread, pthread_self());
        if (!others || steady_clock::now() - begin > patience) return true;
        Py_BEGIN_ALLOW_THREADS;
        std::this_thread::sleep_for(milliseconds(1));
        Py_END_ALLOW_THREADS;
        if (PyErr_CheckSignals()) throw_python_error();
    }
    return false;
}

// Calls make_backward, which runs Python for seconds. Holds the GIL.
void Region::build_backward() {
    struct Claim {
        Builder &of, before = of;
        ~Claim() { of = before; }
    } claim{builder_};
    builder_ = {getpid(), pthread_self()};
    Outside outside;
    PyRef make = make_backward_;
    PyRef made = PyRef::take(stay([&] { return PyObject_CallNoArgs(make.get()); }));
    if (made && !PyCallable_Check(made.get())) {
        PyErr_Format(PyExc_TypeError, "make_backward must return a callable, not %s", Py_TYPE(made.get())->tp_name);
        made = PyRef();
    }
    if (!made) {
        outside.restore();
        throw_python_error();
    }
    if (built_.load(std::memory_order_acquire)) return;  // by a thread that had waited for long
    backward_ = Graph(std::move(made));
    built_.store(true, std::memory_order_release);
    make_backward_ = PyRef();
}

const Graph& Region::built_backward() {
    if (built_.load(std::memory_order_acquire)) return backward_;
    WithGil gil;
    if (begin_building()) build_backward();
    return backward_;
}

std::unique_ptr<PausedRun> Region::begin_backward(const std::vector<int64_t>& symbols, Tensors& flat, LetGo let_go) {
    const Graph& graph = built_backward();
    if (!graph.program || graph.program->gives.empty()) return nullptr;
    if (graph.program->gives.size() != gives.size() || graph.program->outputs.size() < contract.grads.size())
        fail("the backward program stops ", graph.program->gives.size(), " times and gives ", graph.program->outputs.size(), " gradients, not ", gives.size(),
             " and ", contract.grads.size());
    refit(*graph.program, symbols, flat, contract.saved_inputs.size());
    return std::make_unique<PausedRun>(*graph.program, symbols, std::move(flat), std::move(let_go));
}

Tensors Region::backward(const std::vector<int64_t>& symbols, Tensors flat, const LetGo& let_go) {
    const Graph& graph = built_backward();
    size_t expected = contract.grads.size();
    if (graph.program) {
        refit(*graph.program, symbols, flat, contract.saved_inputs.size());
        const Inputs inputs = backward_inputs(*graph.program, symbols, flat);
        Saved saved(flat, symbols.size(), let_go);
        return call_program(*graph.program, inputs, "backward", expected, let_go ? &saved : nullptr);
    }
    WithGil gil;
    try {
        std::vector<PyRef> args;
        std::vector<PyObject*> borrowed;
        for (size_t i = 0; i < symbols.size(); ++i) {
            bool is_real = contract.symbols[i].second == real_number;
            args.push_back(PyRef::take(checked(is_real ? PyFloat_FromDouble(real_of(symbols[i])) : PyLong_FromLongLong(symbols[i]))));
            borrowed.push_back(args.back().get());
        }
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
        if (!t.defined()) fail("forward output ", position, " needs a tangent and is no tensor");
        made->push_back({t.sizes().vec(), t.strides().vec(), t.scalar_type(), t.device()});
    }
    remembered_ = made;
    return made;
}

namespace {

struct DifferentiableObject {
    PyObject_HEAD vectorcallfunc vectorcall;
    std::shared_ptr<Region> region;
    PyObject* weakrefs;
};

PyTypeObject* differentiable_type = nullptr;

DifferentiableObject* self_of(PyObject* object) { return reinterpret_cast<DifferentiableObject*>(object); }

c10::SmallVector<c10::SymInt, 8> values_of(const std::vector<Extent>& extents, const int64_t* numbers) {
    c10::SmallVector<c10::SymInt, 8> values;
    for (const Extent& extent : extents) values.emplace_back(extent.value(numbers));
    return values;
}

// The same memory, as .detach() gives it, or, where writes to it are not to be counted, .data.
at::Tensor unknown_to_autograd(const at::Tensor& tensor, bool counted) {
    return counted ? at::_ops::detach::call(tensor) : tensor.variable_data();
}

// behind: what autograd is to come to first from the view, of the same memory: the base, or a view of it.
at::Tensor view_of(const at::Tensor& base, const at::Tensor& behind, const Output& output, const int64_t* numbers) {
    c10::AutoGradMode grad(output.made == Made::grad || output.made == Made::part || output.made == Made::custom);
    at::Tensor from = output.detached ? unknown_to_autograd(base, output.counted) : behind;
    const auto size = values_of(output.size, numbers), stride = values_of(output.stride, numbers);
    const int64_t offset = base.storage_offset() + output.offset.value(numbers);
    const bool has_sizes = c10::SymIntArrayRef(size) == from.sym_sizes() && c10::SymIntArrayRef(stride) == from.sym_strides();
    const bool is_whole = has_sizes && offset == from.storage_offset();
    at::Tensor view = is_whole ? at::_ops::alias::call(from) : at::_ops::as_strided::call(from, size, stride, offset);
    if (output.made == Made::part || output.made == Made::custom) refuse_writes(view, output.made);
    if (output.made == Made::detached) view = unknown_to_autograd(view, output.counted);
    if (output.leaf) view.set_requires_grad(true);
    return view;
}

class Call {
public:
    Call(const std::shared_ptr<Region>& region, PyObject* const* args)
        : region_(region), contract_(region->contract), args_(args) {
        inputs_.impls.assign(contract_.inputs, nullptr);
        inputs_.numbers.assign(contract_.inputs, 0);
        for (int32_t i = 0; i < contract_.inputs; ++i) {
            if (is_tensor(args[i]))
                inputs_.impls[i] = impl_of(args[i]);
            else if (PyLong_Check(args[i]) || PyFloat_Check(args[i]))
                inputs_.numbers[i] = to_number(args[i]);
        }
    }

    PyObject* run() {
        const bool is_recorded = needs_node();
        if (is_recorded || contract_.has_effects) return run_with_effects(is_recorded);
        Tensors made = region_->forward(args_, inputs_);
        return user_outputs(made);
    }

private:
    PyObject* run_with_effects(bool is_recorded) {
        const Versions versions(contract_, inputs_);
        Generators generators = is_recorded && region_->draws() ? region_->draws()->generators() : Generators();
        Tensors made = region_->forward(args_, inputs_);
        count_writes(contract_, made);
        for (int64_t input : contract_.mutated_in_graph) tensor_input(input)->bump_version();
        if (is_recorded && !contract_.mutated_in_graph.empty()) versions.count_in_graph(inputs_);
        if (is_recorded)
            for (const Mutation& mutation : contract_.mutations) renew_history(tensor_of(tensor_input(mutation.input)));
        if (is_recorded && !region_->stages.empty()) return in_stages(made, generators, versions);
        if (is_recorded) attach_node(region_, inputs_, made, std::move(generators));
        for (const Mutation& mutation : contract_.mutations) apply(mutation, made);
        versions.count(inputs_);
        if (is_recorded) watch_writes(*region_, inputs_, made);
        for (int64_t position : contract_.marks.inference) made[position] = inference_alias(made[position]);
        return user_outputs(made);
    }

    c10::TensorImpl* tensor_input(int64_t input) const {
        if (!inputs_.impls[input])
            raise(PyExc_TypeError, "input " + std::to_string(input) + " of a compiled graph must be a tensor, not " + Py_TYPE(args_[input])->tp_name);
        return inputs_.impls[input];
    }

    void apply(const Mutation& mutation, const Tensors& made) const {
        at::Tensor input = tensor_of(tensor_input(mutation.input));
        at::_ops::copy_::call(input, made[mutation.position], false);
    }

    // The same, where outputs are computed from others: what makes an output comes before the node of what is computed from it.
    PyObject* in_stages(Tensors& made, const Generators& generators, const Versions& versions) {
        if (contract_.sizes.any()) contract_.sizes.measure(inputs_.impls.data(), inputs_.numbers.data(), sizes_);
        PyRef result = PyRef::take(checked(PyTuple_New(contract_.outputs.size())));
        auto output = [&](int32_t index) -> at::Tensor { return shown(index, result.get(), made); };
        std::vector<bool> applied(contract_.mutations.size());
        auto finish = [&](size_t stage) {
            const bool is_last = stage + 1 == region_->stages.size();
            bool writes = false;
            const auto& own = region_->stages[stage]->contract.tangents;
            for (size_t i = 0; i < applied.size(); ++i) {
                const Mutation& mutation = contract_.mutations[i];
                if (applied[i] || (!is_last && std::find(own.begin(), own.end(), mutation.position) == own.end())) continue;
                apply(mutation, made);
                applied[i] = writes = true;
            }
            if (writes) versions.count(inputs_);  // a view has the node of its last version, which the next stages lead to
        };
        attach_stages(*region_, inputs_, made, generators, sizes_.numbers.data(), output, finish);
        versions.count(inputs_);
        for (const std::shared_ptr<Region>& stage : region_->stages) watch_writes(*stage, inputs_, made);
        for (int64_t position : contract_.marks.inference) made[position] = inference_alias(made[position]);
        for (size_t i = 0; i < contract_.outputs.size(); ++i) give(i, result.get(), made);
        return result.release();
    }

    bool needs_node() const {
        if (!region_->trains() || contract_.tangents.empty() || !c10::GradMode::is_enabled()) return false;
        for (int64_t input : contract_.grads)
            if (inputs_.impls[input] && inputs_.impls[input]->requires_grad()) return true;
        return false;
    }

    PyObject* user_outputs(Tensors& made) {
        if (contract_.sizes.any()) contract_.sizes.measure(inputs_.impls.data(), inputs_.numbers.data(), sizes_);
        PyRef result = PyRef::take(checked(PyTuple_New(contract_.outputs.size())));
        for (size_t i = 0; i < contract_.outputs.size(); ++i) give(i, result.get(), made);
        return result.release();
    }

    // Puts the user output into its place of the result, unless it is there.
    void give(size_t index, PyObject* result, Tensors& made) const {
        if (!PyTuple_GET_ITEM(result, index)) PyTuple_SET_ITEM(result, index, user_output(contract_.outputs[index], result, made));
    }

    at::Tensor shown(int32_t index, PyObject* result, Tensors& made) const {
        give(size_t(index), result, made);
        return tensor_of(impl_of(PyTuple_GET_ITEM(result, index)));
    }

    PyObject* view(const at::Tensor& base, const Output& output, PyObject* result, Tensors& made) const {
        return wrap(view_of(base, output.through < 0 ? base : shown(output.through, result, made), output, sizes_.numbers.data()));
    }

    PyObject* user_output(const Output& output, PyObject* result, Tensors& made) const {
        switch (output.from) {
            case From::fresh:
                return wrap(made[output.index]);
            case From::input:
                return Py_NewRef(args_[output.index]);
            case From::input_view:
                return view(tensor_of(tensor_input(output.index)), output, result, made);
            case From::output_view:
                return view(made[output.index], output, result, made);
            case From::constant:
                return Py_NewRef(output.value.get());
        }
        Py_UNREACHABLE();
    }

    const std::shared_ptr<Region>& region_;
    const Contract& contract_;
    PyObject* const* args_;
    Inputs inputs_;
    CallSizes sizes_;
};

PyObject* call_differentiable(PyObject* self, PyObject* const* args, size_t flags, PyObject* keywords) {
    try {
        std::shared_ptr<Region> region = self_of(self)->region;  // the callable may be dropped while it runs
        size_t count = PyVectorcall_NARGS(flags);
        if (keywords && PyTuple_GET_SIZE(keywords)) raise(PyExc_TypeError, "a compiled graph takes no keyword arguments");
        if (count != size_t(region->contract.inputs))
            raise(PyExc_TypeError, "the compiled graph takes " + std::to_string(region->contract.inputs) + " inputs, not " + std::to_string(count));
        return Call(region, args).run();
    } catch (...) {
        set_python_error();
        return nullptr;
    }
}

// (from, index, (made, detached, counted, leaf, through), size, stride, offset, value), as differentiable.py writes it.
Output read_output(PyObject* row) {
    Output output;
    output.from = From(to_int(item(row, 0)));
    output.index = int32_t(to_int(item(row, 1)));
    output.made = Made(to_int(item(item(row, 2), 0)));
    output.detached = PyObject_IsTrue(item(item(row, 2), 1)) == 1;
    output.counted = PyObject_IsTrue(item(item(row, 2), 2)) == 1;
    output.leaf = PyObject_IsTrue(item(item(row, 2), 3)) == 1;
    output.through = int32_t(to_int(item(item(row, 2), 4)));
    for (Py_ssize_t i = 0; i < PyTuple_Size(item(row, 3)); ++i) output.size.push_back(read_extent(item(item(row, 3), i)));
    for (Py_ssize_t i = 0; i < PyTuple_Size(item(row, 4)); ++i) output.stride.push_back(read_extent(item(item(row, 4), i)));
    output.offset = read_extent(item(row, 5));
    output.value = PyRef::share(item(row, 6));
    return output;
}

// make_differentiable(forward, make_backward | None, inputs, positions, outputs, mutations, mutated_in_graph, saved_inputs, saved_positions, tangents, grads, sources,
// symbols, sizes, marks)
PyObject* make_differentiable(PyObject*, PyObject* args) {
    PyObject *forward, *make_backward, *outputs, *mutations, *in_graph, *saved_inputs, *saved_positions, *tangents, *grads, *sources, *symbols, *sizes, *marks;
    Contract contract;
    if (!PyArg_ParseTuple(args, "OOiiO!O!OOOOOO!O!O!O!", &forward, &make_backward, &contract.inputs, &contract.positions, &PyTuple_Type, &outputs, &PyTuple_Type,
                          &mutations, &in_graph, &saved_inputs, &saved_positions, &tangents, &grads, &PyTuple_Type, &sources, &PyTuple_Type, &symbols,
                          &PyTuple_Type, &sizes, &PyTuple_Type, &marks))
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
        for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(sources); ++i) contract.sources.push_back(to_ints(PyTuple_GET_ITEM(sources, i)));
        for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(symbols); ++i) {
            PyObject* row = PyTuple_GET_ITEM(symbols, i);
            contract.symbols.emplace_back(int32_t(to_int(item(row, 0))), int32_t(to_int(item(row, 1))));
        }
        contract.marks = read_marks(marks);
        contract.has_effects = !contract.mutated_in_graph.empty() || !contract.mutations.empty() || contract.marks.has_effects();
        contract.sizes = read_numbers(sizes, size_t(contract.inputs));
        std::shared_ptr<Region> region =
            Region::make(std::move(contract), PyRef::share(forward), make_backward == Py_None ? PyRef() : PyRef::share(make_backward));
        PyObject* self = checked(differentiable_type->tp_alloc(differentiable_type, 0));
        self_of(self)->vectorcall = call_differentiable;
        new (&self_of(self)->region) std::shared_ptr<Region>(std::move(region));
        return self;
    } catch (...) {
        set_python_error();
        return nullptr;
    }
}

void free_differentiable(PyObject* self) noexcept {
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

PyType_Spec spec = {"dynacompile_native.Differentiable", sizeof(DifferentiableObject), 0,
                    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_DISALLOW_INSTANTIATION, slots};

PyMethodDef functions[] = {{"make_differentiable", boundary<make_differentiable>, METH_VARARGS,
                            "make_differentiable(forward, make_backward, inputs, positions, outputs, mutations, mutated_in_graph, saved_inputs, "
                            "saved_positions, tangents, grads, sources, symbols, sizes, marks) -> Differentiable"},
                           {"backward_pass", boundary<backward_pass>, METH_NOARGS,
                            "backward_pass() -> (for each tangent whether it has come, for each gradient whether it is asked for) of the backward that runs on "
                            "this thread; None outside of one."},
                           {"view_writes", boundary<view_writes>, METH_O,
                            "view_writes(tensors) -> [(node, the operation's own node that it holds), ...] of the writes to views in their histories."},
                           {"set_again", boundary<set_again>, METH_VARARGS,
                            "set_again(differentiable, call, kept, measured, accumulated, copies, outputs, has_numbers, draws): how the backward is differentiated again."},
                           {"set_stages", boundary<set_stages>, METH_VARARGS,
                            "set_stages(differentiable, ((stage, edges, hidden), ...)): the parts of its backward."},
                           {"set_gives", boundary<set_gives>, METH_VARARGS,
                            "set_gives(differentiable, ((gradient, ...), ...)): those that are final at each stop of its backward program."},
                           {"node_behind", boundary<node_behind>, METH_O,
                            "node_behind(gradient) -> the autograd node to which the region's node that runs gives this gradient, wherever it leaves it."},
                           {"stand_above_node", boundary<stand_above_node>, METH_O,
                            "stand_above_node(tensors): has the nodes of new tensors count as above the autograd node that runs"},
                           {"lead_to_ends", boundary<lead_to_ends>, METH_VARARGS,
                            "lead_to_ends(results, ((leaf, end), ...), ends): has histories that come to leaves go on at these ends"},
                           {"lead_to_node", boundary<lead_to_node>, METH_VARARGS,
                            "lead_to_node(gradients, ((result, tangent), ...), ends): has histories that come to results go on at the autograd node that runs"},
                           {"unbatched", boundary<unbatched>, METH_O,
                            "unbatched(tensor) -> (the tensor without its innermost batch of torch.autograd's own vmap, that batch's dimension, its level), or "
                            "None."},
                           {nullptr}};

}  // namespace

std::shared_ptr<Region> region_of(PyObject* differentiable) {
    if (!PyObject_TypeCheck(differentiable, differentiable_type)) raise(PyExc_TypeError, "not a differentiable callable");
    return self_of(differentiable)->region;
}

}  // namespace dynacompile::runtime

bool init_differentiable(PyObject* module) {
    using namespace dynacompile::runtime;
    differentiable_type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&spec));
    if (!differentiable_type || PyModule_AddFunctions(module, functions) || !init_node()) return false;
    return PyModule_AddObjectRef(module, "Differentiable", reinterpret_cast<PyObject*>(differentiable_type)) == 0;
}
