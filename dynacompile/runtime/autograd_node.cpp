// The autograd node of a compiled region: one for all its differentiable outputs.
#include "guards/function_modes.h"
#include "runtime/again.h"
#include "runtime/continuation.h"

#include <ATen/ops/allclose_ops.h>
#include <ATen/ops/as_strided_ops.h>
#include <ATen/ops/copy_ops.h>
#include <ATen/ops/detach_ops.h>
#include <ATen/ops/empty_strided_ops.h>
#include <ATen/ops/narrow_ops.h>
#include <ATen/ops/zero_ops.h>

#include <algorithm>
#include <exception>
#include <optional>

namespace torch::autograd {
DYNACOMPILE_IMPORTED bool get_current_graph_task_keep_graph();  // true outside of a backward pass
DYNACOMPILE_IMPORTED void registerCppFunction(const std::type_info& type, PyTypeObject* python_type);
DYNACOMPILE_IMPORTED PyTypeObject* _initFunctionPyTypeObject(PyTypeObject& type, const char* name, PyGetSetDef* properties, PyMethodDef* methods);
}  // namespace torch::autograd

namespace dynacompile::runtime {
namespace {

using torch::autograd::Node;
using torch::autograd::SavedVariable;
using torch::autograd::variable_list;
void add_edge(torch::autograd::edge_list& edges, const at::Tensor& tensor) {
    if (tensor.defined() && tensor.requires_grad())
        edges.push_back(torch::autograd::impl::gradient_edge(tensor));
    else
        edges.emplace_back();
}

template <typename Pointer>
void set_history(const at::Tensor& tensor, const Pointer& node) {
    uint32_t number = node->add_input_metadata(tensor);
    torch::autograd::impl::set_gradient_edge(tensor, {node, number});
}

const char no_double_backward[] = "double backward through this compiled region is not supported: ";
const char was_detached[] =
    "Trying to use a saved tensor that has been detached in-place, i.e. with .detach_(). This is not supported, please use out-of-place `.detach()` instead";
const char advice[] = "Compute it eagerly: leave the function that is differentiated twice out of the compiled region.";

// The gradient function of our gradients where they can't be differentiated: names itself when somebody differentiates them again.
struct DoubleBackward final : public Node {
    DoubleBackward(torch::autograd::edge_list&& edges, std::string reason) : Node(std::move(edges)), reason_(std::move(reason)) {}
    std::string name() const override { return "DynacompileDoubleBackward"; }
    variable_list apply(variable_list&&) override {
        fail(no_double_backward, reason_, ". ", advice);
    }

private:
    std::string reason_;
};

at::Tensor empty_like(const TangentGeometry& g) {
    return at::_ops::empty_strided::call(c10::fromIntArrayRefSlow(g.size), c10::fromIntArrayRefSlow(g.stride), g.dtype, c10::Layout::Strided, g.device, false);
}

at::Tensor zeros(const TangentGeometry& g) {
    at::Tensor made = empty_like(g);
    at::_ops::zero_::call(made);
    return made;
}

// A copy in memory of the geometry. Where that has several elements in one place, as expanded tensors do, these are to be equal.
at::Tensor fit_to(const at::Tensor& tensor, const TangentGeometry& g) {
    at::Tensor made = empty_like(g), from = tensor, to = made;
    for (size_t dim = 0; dim < g.size.size(); ++dim) {
        if (g.stride[dim] != 0 || g.size[dim] < 2) continue;
        from = at::_ops::narrow::call(from, int64_t(dim), 0, 1);
        to = at::_ops::narrow::call(to, int64_t(dim), 0, 1);
    }
    at::_ops::copy_::call(to, from, false);
    if (to.numel() != made.numel() && !at::_ops::allclose::call(made, tensor.to(made.device(), made.scalar_type()), 0, 0, true))
        fail("a tensor of sizes ", tensor.sizes(), " whose elements differ can't have strides ", c10::IntArrayRef(g.stride), ", which a compiled backward takes");
    return made;
}

// The tangent as the backward graph was compiled for: zeros where nothing flowed, the forward output's strides, plain memory.
at::Tensor fit_tangent(const at::Tensor& tangent, const TangentGeometry& g) {
    if (!tangent.defined() || tangent._is_zerotensor()) return zeros(g);
    const c10::TensorImpl& impl = *tangent.unsafeGetTensorImpl();
    if (impl.layout() != c10::Layout::Strided || !impl.has_storage() || impl.is_python_dispatch() || impl.key_set().has(c10::DispatchKey::FuncTorchBatched))
        fail("the backward of a compiled region takes plain dense gradients, not vmapped (is_grads_batched), sparse or subclassed ones");
    bool plain = tangent.scalar_type() == g.dtype && tangent.device() == g.device && !tangent.is_conj() && !tangent.is_neg();
    if (plain && same_geometry(impl, g.size, g.stride)) return tangent;
    if (impl.sizes() != c10::IntArrayRef(g.size)) fail("a gradient has sizes ", impl.sizes(), ", its output has ", c10::IntArrayRef(g.size));
    return fit_to(tangent, g);
}

// What the user's hooks gave back, with the strides that the backward program was compiled for.
at::Tensor fit_unpacked(const at::Tensor& tensor, const TangentGeometry& g) {
    const c10::TensorImpl& impl = *tensor.unsafeGetTensorImpl();
    if (!tensor.defined() || impl.is_python_dispatch() || impl.layout() != c10::Layout::Strided) return tensor;
    if (tensor.scalar_type() != g.dtype || tensor.device() != g.device || impl.sizes() != c10::IntArrayRef(g.size))
        fail("a hook for saved tensors gave back ", tensor.scalar_type(), " of sizes ", impl.sizes(), " on ", tensor.device(), " for ", g.dtype, " of sizes ",
             c10::IntArrayRef(g.size), " on ", g.device, ", which a compiled backward can't take");
    return same_geometry(impl, g.size, g.stride) ? tensor : fit_to(tensor, g);
}

// The backward that this thread runs, null outside of one: which tangents have come, and which gradients are asked for. Hooks ask, as zeros stand for
// tangents that have not come. On the heap, for a hook may switch to another greenlet, whose C stack then lies in this one's place.
struct Pass {
    explicit Pass(std::vector<bool> came, std::vector<bool> asked) : arrived(std::move(came)), wanted(std::move(asked)), before(std::exchange(current, this)) {}
    ~Pass() {
        Pass** at = &current;
        while (*at && *at != this) at = &(*at)->before;
        if (*at) *at = before;
    }
    Pass(const Pass&) = delete;
    Pass& operator=(const Pass&) = delete;

    std::vector<bool> arrived, wanted;
    Pass* before;
    static thread_local Pass* current;
};
thread_local Pass* Pass::current = nullptr;

// How Python gives the gradients in the place of the backward program: with a history, or of a batch of tangents.
enum class Replayed : uint8_t { differentiate, batch };

// Of what is saved for backward and was written since. lost: the results of the forward graph among these that the backward program reads, and an error of one.
struct Written {
    bool any = false;
    std::vector<size_t> lost;
    std::exception_ptr error;
};

// impl: of the tensor, where it is an input, or an output that is not this node's.
struct Saved {
    SavedVariable variable;
    const c10::TensorImpl* impl = nullptr;
    std::unique_ptr<TangentGeometry> packed;  // what it was, where hooks of the user keep it, or its metadata may change, so that it may have other strides
    const c10::StorageImpl* memory = nullptr;  // that it had then; not to be read by

    void note(const c10::TensorImpl& impl) {
        memory = impl.has_storage() ? impl.unsafe_storage().unsafeGetStorageImpl() : nullptr;
        packed.reset(new TangentGeometry{impl.sizes().vec(), impl.strides().vec(), c10::typeMetaToScalarType(impl.dtype()), impl.device()});
    }
};

// A tensor that is not to be written before the backward pass, as of the end of the call.
struct Watched {
    c10::VariableVersion counter;
    uint32_t version;
    const Watch* watch;
    c10::weak_intrusive_ptr<c10::TensorImpl> computed;  // the tensor, where it had a history

    // Whether the tensor has been detached in place.
    bool is_detached() const {
        c10::intrusive_ptr<c10::TensorImpl> impl = computed.lock();
        return impl && !torch::autograd::impl::gradient_edge(at::Tensor(std::move(impl))).function;
    }
};

// An output that is a view in eager. runs: the latest backward pass comes by what a write of the caller has made of it; freed: one has freed that.
struct Viewed {
    c10::weak_intrusive_ptr<c10::TensorImpl> output;
    const Part* part;
    bool runs = false, freed = false;

    bool is_written(const torch::autograd::Node* node) const {
        c10::intrusive_ptr<c10::TensorImpl> impl = output.lock();
        if (!impl) return false;
        const auto made_by = torch::autograd::impl::gradient_edge(at::Tensor(std::move(impl))).function;
        return made_by && made_by.get() != node;
    }
};

class RegionBackward final : public Head {
public:
    RegionBackward(std::shared_ptr<Region> region, torch::autograd::edge_list&& edges) : Head(std::move(edges)), region_(std::move(region)) {}

    // Where something listens to single gradients, and the backward program stops where some are final. Before the node has parents.
    void split() {
        if (!region_->gives.empty() && has_listener(next_edges())) chain_ = make_chain(*this, region_->gives, device());
    }

    size_t ways() const override { return chain_.nodes.empty() ? num_outputs() : chain_.places.size(); }

    const torch::autograd::Edge& way(size_t gradient) const override {
        const uint32_t after = chain_.nodes.empty() ? 0 : chain_.places[gradient].after;
        return after ? chain_.nodes[after - 1]->next_edge(chain_.places[gradient].place) : next_edge(gradient);
    }

    bool is_wanted(size_t gradient) const override {
        const uint32_t after = chain_.nodes.empty() ? 0 : chain_.places[gradient].after;
        return after ? chain_.nodes[after - 1]->task_should_compute_output(chain_.places[gradient].place) : task_should_compute_output(gradient);
    }

    std::string name() const override { return "DynacompileBackward"; }

    bool flows(uint32_t tangent, size_t gradient) const override {
        if (gradient >= region_->contract.grads.size()) return false;  // it comes through a stage below
        const auto& sources = region_->contract.sources;
        return sources.empty() || sources[gradient].empty() || std::find(sources[gradient].begin(), sources[gradient].end(), int64_t(tangent)) != sources[gradient].end();
    }

    bool is_made_by_pass(uint32_t tangent) const override {
        const std::vector<Part>& makers = region_->contract.marks.makers;
        if (tangent >= makers.size() || makers[tangent].first.empty()) return true;
        const Part& maker = makers[tangent];
        return std::any_of(maker.second.begin(), maker.second.end(), [&](int64_t grad) { return is_asked(*this, size_t(grad)); }) ||
               is_end(const_cast<RegionBackward&>(*this), maker.first);
    }

    // later: of forward outputs, those that get a history after this.
    void remember(const Inputs& inputs, const Tensors& outputs, const std::vector<bool>& later = {}) {
        const Contract& contract = region_->contract;
        const auto& impls = inputs.impls;
        for (auto [input, dim] : contract.symbols) symbols_.push_back(dim < 0 ? inputs.numbers[input] : impls[input]->size(dim));
        geometry_ = region_->tangent_geometry(outputs);
        if (!contract.marks.makers.empty()) retain_as_made(*this);
        for (const Part& part : contract.marks.views) {
            const at::Tensor& output = outputs[contract.tangents[part.first[0]]];
            viewed_.push_back({c10::weak_intrusive_ptr<c10::TensorImpl>(output.getIntrusivePtr()), &part});
        }
        saved_.reserve(contract.saved_inputs.size() + contract.saved_positions.size());
        for (int64_t input : contract.saved_inputs) {
            if (!impls[input]) fail("input ", input, " is saved for backward and is no tensor");
            const size_t place = saved_.size();
            save(tensor_of(impls[input]));
            if (is_aliased(place) || may_stand_for(place, *impls[input])) saved_.back().note(*impls[input]);
        }
        for (int64_t position : contract.saved_positions) {
            if (!later.empty() && later[position]) {  // a node above this one, which must not be held by it
                save(alias_of(outputs[position].unsafeGetTensorImpl()));
                continue;
            }
            bool is_output = outputs[position].grad_fn().get() == this;
            saved_.push_back({SavedVariable(outputs[position], is_output), is_output ? nullptr : outputs[position].unsafeGetTensorImpl(), {}});
            if (saved_.back().variable.has_hooks()) saved_.back().note(*outputs[position].unsafeGetTensorImpl());
        }
    }

    void save(const at::Tensor& tensor) {
        saved_.push_back({SavedVariable(tensor, false), tensor.unsafeGetTensorImpl(), {}});
        if (saved_.back().variable.has_hooks()) saved_.back().note(*tensor.unsafeGetTensorImpl());
    }

    bool is_aliased(size_t place) const {
        const std::vector<bool>& aliased = region_->contract.marks.aliased;
        return place < aliased.size() && aliased[place];
    }

    // Whether zeros may stand for a saved input that the caller transposes in place: a backward pass may come by what keeps it. Not leaves with gradients,
    // which autograd has nobody write in place, and of which there are many.
    bool may_stand_for(size_t place, const c10::TensorImpl& impl) const {
        const Marks& marks = region_->contract.marks;
        if (place >= marks.keeps.size() || (geometry_->size() < 2 && region_->contract.grads.size() < 2)) return false;
        const c10::AutogradMetaInterface* meta = impl.autograd_meta();
        return !meta || !meta->requires_grad() || static_cast<const torch::autograd::AutogradMeta*>(meta)->grad_fn_;
    }

    // The same memory and version, with metadata of its own and no history.
    static at::Tensor alias_of(const c10::TensorImpl* impl) { return at::Tensor(impl->shallow_copy_and_detach(impl->version_counter(), true)); }

    // Those whose metadata the caller changed since, in place, and eager's nodes keep no such tensor: as they were. Other memory, which the caller may have
    // given a tensor by `.data`, stays as it is.
    void lay_again(Tensors& flat) const {
        for (size_t i = 0; i < region_->contract.marks.aliased.size() && i < saved_.size(); ++i) {
            const TangentGeometry* was = saved_[i].packed.get();
            if (!was || !is_aliased(i) || saved_[i].variable.has_hooks() || same_geometry(*flat[i].unsafeGetTensorImpl(), was->size, was->stride)) continue;
            const c10::TensorImpl& now = *flat[i].unsafeGetTensorImpl();
            if (!now.has_storage() || now.unsafe_storage().unsafeGetStorageImpl() != saved_[i].memory || now.numel() != numel_of(*was)) continue;
            flat[i] = alias_of(flat[i].unsafeGetTensorImpl());
            flat[i].unsafeGetTensorImpl()->set_sizes_and_strides(was->size, was->stride);
        }
    }

    static int64_t numel_of(const TangentGeometry& g) {
        int64_t count = 1;
        for (int64_t n : g.size) count *= n;
        return count;
    }

    void watch(const Inputs& inputs, const Tensors& outputs) {
        for (const Watch& watch : region_->contract.marks.watches) {
            c10::TensorImpl* impl = watch.is_input ? inputs.impls[watch.index] : outputs[watch.index].unsafeGetTensorImpl();
            if (!impl || impl->is_inference()) continue;
            c10::weak_intrusive_ptr<c10::TensorImpl> computed(c10::intrusive_ptr<c10::TensorImpl>{});
            if (at::Tensor tensor = tensor_of(impl); watch.is_input && tensor.requires_grad() && !tensor.is_leaf()) computed = tensor.getIntrusivePtr();
            watched_.push_back({impl->version_counter(), impl->version_counter().current_version(), &watch, std::move(computed)});
        }
    }

    // Makes room for the gradients that stages above give to this one, after those of outputs.
    void take_hidden(const int64_t* numbers) {
        if (region_->hidden.empty()) return;
        auto all = std::make_shared<std::vector<TangentGeometry>>(*geometry_);
        for (const Hidden& hidden : region_->hidden) {
            std::vector<int64_t> size, stride;
            for (const Extent& extent : hidden.size) size.push_back(extent.value(numbers));
            for (const Extent& extent : hidden.stride) stride.push_back(extent.value(numbers));
            add_input_metadata(at::_ops::as_strided::call(hidden.example, c10::fromIntArrayRefSlow(size),
                                                          c10::fromIntArrayRefSlow(std::vector<int64_t>(size.size(), 0)), std::nullopt));
            all->push_back({std::move(size), std::move(stride), hidden.example.scalar_type(), hidden.example.device()});
        }
        geometry_ = std::move(all);
    }

    void keep_output(const at::Tensor& output) { primals_.keep(output); }

    void remember_primals(const Inputs& inputs, Generators generators) {
        if (region_->again) primals_.remember(*region_->again, inputs, std::move(generators));
    }

    variable_list apply(variable_list&& tangents) override {
        const FunctionModesOff off;  // as where torch runs a function of Python's in a backward pass
        check_state(tangents);
        const bool twice = c10::GradMode::is_enabled();
        Tensors flat;
        Written written;
        bool frees = false;  // all that is saved, while the program runs
        {
            std::lock_guard<std::mutex> lock(mutex_);
            written = unpack_saved(flat, tangents);
            frees = note_shapes(flat) && !twice && !torch::autograd::get_current_graph_task_keep_graph();
        }
        if (!written.lost.empty()) recompute(flat, written);
        const bool dual = std::any_of(tangents.begin(), tangents.end(), is_dual), batched = std::any_of(tangents.begin(), tangents.end(), is_batched);
        std::string reason;
        if (twice || dual || batched) reason = stand_ins_.empty() ? "nothing was kept for it" : "an earlier backward pass has freed a part of what it needs";
        if (region_->again && (batched || twice || dual) && (stand_ins_.empty() || !(twice || dual))) {
            variable_list grads;
            if (by_python(flat, tangents, twice || dual ? Replayed::differentiate : Replayed::batch, grads, reason)) {
                for (at::Tensor& grad : grads)
                    if (dual && !twice && grad.defined()) grad = without_history(grad);
                if (dual && !twice) own_memory(grads, *this);
                return hand_out(std::move(grads));
            }
            if (dual || batched) fail(no_double_backward, reason, ". ", advice);
        }
        torch::autograd::edge_list above;
        if (twice) {
            for (const at::Tensor& tensor : flat) add_edge(above, tensor);
            for (const at::Tensor& tensor : tangents) add_edge(above, tensor);
            // A saved value that lies inside of the graph has no history here, and in eager one that leads to what the graph's gradients go to.
            auto is_inner = [](const at::Tensor& t) { return t.defined() && !t.requires_grad() && (t.is_floating_point() || t.is_complex()); };
            if (std::any_of(flat.begin() + std::ptrdiff_t(region_->contract.saved_inputs.size()), flat.end(), is_inner))
                for (size_t i = 0; i < ways(); ++i) above.push_back(way(i));
        }
        lay_again(flat);
        LetGo giving;
        if (frees) giving = [this](size_t place) { let_go(place); };
        auto rest = begin(flat, std::move(tangents), written.any);
        if (!chain_.nodes.empty() && !twice) rest->run = region_->begin_backward(symbols_, flat, giving);
        if (rest->run) {
            go_on(*rest, chain_.first_stop);
            own_all(rest->grads);
            return hand_out(std::move(rest));
        }
        run(*rest, std::move(flat), giving);
        own_all(rest->grads);
        if (twice) refuse_more(rest->grads, std::move(above), std::move(reason));
        return chain_.nodes.empty() ? std::move(rest->grads) : hand_out(std::move(rest));
    }

    void go_on(Rest& rest, size_t stop) override {
        BelowAutograd below;
        const auto pass = std::make_unique<Pass>(rest.arrived, rest.wanted);
        Tensors made(rest.run->outputs());
        rest.run->go_on(stop, made.data());
        take(rest, made);
        if (stop >= region_->gives.size()) rest.run.reset();
    }

    void release_variables() override {
        std::lock_guard<std::mutex> lock(mutex_);
        const std::vector<Part>& parts = region_->contract.marks.parts;
        bool frees = false;
        for (size_t i = 0; i < parts.size(); ++i) {
            if (i >= runs_.size() || !runs_[i]) continue;
            frees = frees || !freed_[i];
            freed_[i] = true;
        }
        for (Viewed& viewed : viewed_) viewed.freed = viewed.freed || viewed.runs;
        if (frees) free_saved();  // what let_go has left
    }

private:
    static bool is_batched(const at::Tensor& tangent) {
        if (!tangent.defined()) return false;
        const c10::DispatchKeySet keys = tangent.unsafeGetTensorImpl()->key_set();
        return keys.has(c10::DispatchKey::Batched) || keys.has(c10::DispatchKey::FuncTorchBatched);
    }

    // It has a derivative of its own, in forward mode.
    static bool is_dual(const at::Tensor& tangent) { return tangent.defined() && tangent._fw_grad(0).defined(); }

    // The tensor, and its derivative in forward mode, as they are where no graph was asked for.
    static at::Tensor without_history(const at::Tensor& tensor) {
        at::Tensor plain = at::_ops::detach::call(tensor);
        const at::Tensor& derivative = tensor._fw_grad(0);
        if (derivative.defined() && !plain._fw_grad(0).defined()) plain._set_fw_grad(at::_ops::detach::call(derivative), 0, false);
        return plain;
    }

    static PyRef tuple_of(const Tensors& tensors) {
        PyRef found = PyRef::take(checked(PyTuple_New(Py_ssize_t(tensors.size()))));
        for (size_t i = 0; i < tensors.size(); ++i) PyTuple_SET_ITEM(found.get(), Py_ssize_t(i), wrap(tensors[i]));
        return found;
    }

    // Puts results of a further run of the forward graph in the place of those that were written. Where that can't be: torch's error.
    void recompute(Tensors& flat, const Written& written) {
        if (!region_->again || !stand_ins_.empty()) std::rethrow_exception(written.error);
        WithGil gil;
        try {
            PyRef saved = tuple_of(flat), primals = primals_.unpack(getptr(), region_->again->outputs.size());
            PyRef made = PyRef::take(checked(PyObject_CallMethod(region_->again->call.get(), "recompute", "OO", saved.get(), primals.get())));
            if (PyUnicode_Check(made.get())) std::rethrow_exception(written.error);
            const size_t inputs = region_->contract.saved_inputs.size();
            if (!PyTuple_Check(made.get()) || size_t(PyTuple_GET_SIZE(made.get())) != flat.size() - inputs)
                raise(PyExc_TypeError, "a forward graph that runs again must give a tuple of what is saved of its results");
            for (size_t i : written.lost) flat[i] = tensor_of(impl_of(PyTuple_GET_ITEM(made.get(), Py_ssize_t(i - inputs))));
        } catch (const PythonErrorSet&) {
            throw_python_error();
        }
    }

    // Gradients as replay.py makes them. False, and why, where it can't.
    bool by_python(const Tensors& flat, const variable_list& tangents, Replayed how, variable_list& grads, std::string& reason) {
        WithGil gil;
        c10::impl::ExcludeDispatchKeyGuard unmapped(c10::DispatchKey::VmapMode);  // it refuses random numbers, which samples draw one by one
        try {
            PyRef wanted = PyRef::take(checked(PyTuple_New(Py_ssize_t(ways()))));
            for (size_t i = 0; i < ways(); ++i) PyTuple_SET_ITEM(wanted.get(), Py_ssize_t(i), PyBool_FromLong(is_wanted(i)));
            PyRef given = PyRef::take(checked(PyTuple_New(Py_ssize_t(geometry_->size()))));
            for (size_t i = 0; i < geometry_->size(); ++i)
                PyTuple_SET_ITEM(given.get(), Py_ssize_t(i), wrap(i < tangents.size() ? tangents[i] : at::Tensor()));
            PyRef saved = tuple_of(flat);
            for (auto [place, edge] : region_->again->copies) {
                const c10::TensorImpl* impl = flat[place].unsafeGetTensorImpl();
                at::Tensor before(impl->shallow_copy_and_detach(impl->version_counter(), true));
                if (way(edge).is_valid()) torch::autograd::impl::set_gradient_edge(before, way(edge));
                if (PyTuple_SetItem(saved.get(), Py_ssize_t(place), wrap(before)) < 0) throw PythonErrorSet();
            }
            PyRef made;
            if (how != Replayed::batch) {
                PyRef primals = primals_.unpack(getptr());
                made = PyRef::take(checked(PyObject_CallMethod(region_->again->call.get(), "differentiate", "OOOO", wanted.get(), given.get(), saved.get(),
                                                               primals.get())));
            } else {
                PyRef strides = PyRef::take(checked(PyTuple_New(Py_ssize_t(geometry_->size()))));
                for (size_t i = 0; i < geometry_->size(); ++i) {
                    at::Tensor like = empty_like((*geometry_)[i]);
                    PyTuple_SET_ITEM(strides.get(), Py_ssize_t(i), wrap(like));
                }
                std::vector<bool> arrived, asked;
                for (const at::Tensor& tangent : tangents) arrived.push_back(tangent.defined());
                for (size_t i = 0; i < ways(); ++i) asked.push_back(is_wanted(i));
                const auto pass = std::make_unique<Pass>(std::move(arrived), std::move(asked));
                made = PyRef::take(checked(PyObject_CallMethod(region_->again->call.get(), "batch", "OOOOO", region_->backward_callable(), given.get(),
                                                               symbols().get(), saved.get(), strides.get())));
            }
            if (PyUnicode_Check(made.get())) {
                reason = to_string(made.get());
                return false;
            }
            if (!PyTuple_Check(made.get()) || size_t(PyTuple_GET_SIZE(made.get())) != ways())
                raise(PyExc_TypeError, "a replayed backward must give a tuple of gradients");
            for (size_t i = 0; i < ways(); ++i) {
                PyObject* grad = PyTuple_GET_ITEM(made.get(), Py_ssize_t(i));
                grads.push_back(grad != Py_None && is_wanted(i) ? tensor_of(impl_of(grad)) : at::Tensor());
            }
            return true;
        } catch (const PythonErrorSet&) {
            throw_python_error();
        }
    }

    PyRef symbols() const {
        PyRef found = PyRef::take(checked(PyTuple_New(Py_ssize_t(symbols_.size()))));
        for (size_t i = 0; i < symbols_.size(); ++i) {
            const bool is_real = region_->contract.symbols[i].second == real_number;
            PyTuple_SET_ITEM(found.get(), Py_ssize_t(i), checked(is_real ? PyFloat_FromDouble(real_of(symbols_[i])) : PyLong_FromLongLong(symbols_[i])));
        }
        return found;
    }

    // The program has read what is saved at `place` of what it was given for the last time, in a pass after which nothing is kept. There is no second pass from
    // then on, however this one ends.
    void let_go(size_t place) {
        std::lock_guard<std::mutex> lock(mutex_);
        if (!is_given_up_) primals_.release();
        is_given_up_ = true;
        if (place < saved_.size()) saved_[place].variable.reset_data();
    }

    // A pass whose program has not run. Puts tangents and flags behind what is saved. selective: gives no gradients beside those that eager's autograd would compute.
    std::unique_ptr<Rest> begin(Tensors& flat, variable_list tangents, bool selective) {
        BelowAutograd below;
        auto rest = std::make_unique<Rest>();
        for (const at::Tensor& tangent : tangents) rest->arrived.push_back(tangent.defined());
        for (size_t i = 0; i < geometry_->size(); ++i) {
            flat.push_back(fit_tangent(i < tangents.size() ? tangents[i] : at::Tensor(), (*geometry_)[i]));
            if (i < tangents.size()) tangents[i].reset();
        }
        for (const std::vector<int64_t>& flag : region_->contract.marks.flags) {
            const bool came = std::any_of(flag.begin(), flag.end(), [&](int64_t tangent) { return rest->arrived[tangent]; });
            flat.push_back(region_->flag(came, (*geometry_)[flag[0]].device));
        }
        for (size_t i = 0; i < ways(); ++i) rest->wanted.push_back(selective ? is_asked(*this, i) : is_wanted(i));
        rest->grads.resize(ways());
        return rest;
    }

    void run(Rest& rest, Tensors flat, const LetGo& giving) {
        BelowAutograd below;
        const auto pass = std::make_unique<Pass>(rest.arrived, rest.wanted);
        Tensors made = region_->backward(symbols_, std::move(flat), giving);
        take(rest, made);
    }

    void take(Rest& rest, Tensors& made) const {
        for (size_t i = 0; i < region_->contract.grads.size(); ++i)
            if (made[i].defined() && rest.wanted[i] && flows(i, rest.arrived)) rest.grads[i] = std::move(made[i]);
        made.clear();
    }

    void own_all(variable_list& grads) const {
        BelowAutograd below;
        own_memory(grads, *this);
    }

    c10::Device device() const { return (*geometry_)[0].device; }

    // What this node gives itself of gradients that are all there. The rest goes to the nodes behind it.
    variable_list hand_out(variable_list grads) {
        if (chain_.nodes.empty()) return grads;
        auto rest = std::make_unique<Rest>();
        rest->grads = std::move(grads);
        return hand_out(std::move(rest));
    }

    variable_list hand_out(std::unique_ptr<Rest> rest) {
        variable_list own(num_outputs());
        for (size_t i = 0; i < chain_.places.size(); ++i)
            if (!chain_.places[i].after) own[i] = std::move(rest->grads[i]);
        rest->node = getptr();
        rest->head = this;
        if (task_should_compute_output(num_outputs() - 1)) own.back() = make_token(std::move(rest), device());
        return own;
    }

    // Whether some tangent has arrived that gradient i comes from. Without any there is none, and not zeros.
    bool flows(size_t i, const std::vector<bool>& arrived) const {
        const auto& sources = region_->contract.sources;
        if (sources.empty() || sources[i].empty()) return true;
        return std::any_of(sources[i].begin(), sources[i].end(), [&](int64_t tangent) { return arrived[tangent]; });
    }

    // What is saved. Zeros stand for what was written since the call, where this pass comes through no node of eager's that keeps it. Where the program
    // reads an input of these nevertheless: torch's error.
    Written unpack_saved(Tensors& flat, const variable_list& tangents) {
        const Marks& marks = region_->contract.marks;
        Written written;
        std::exception_ptr unread;  // the error of an input that the program does not read
        for (size_t i = 0; i < saved_.size(); ++i) {
            if (i < stand_ins_.size() && stand_ins_[i]) {
                flat.push_back(zeros(*stand_ins_[i]));
                continue;
            }
            try {
                flat.push_back(saved_[i].variable.unpack(getptr()));
                if (saved_[i].packed && saved_[i].variable.has_hooks()) flat.back() = fit_unpacked(flat.back(), *saved_[i].packed);
            } catch (const c10::Error& error) {
                const bool is_read = has_part(marks.needs[i], tangents), is_input = i < region_->contract.saved_inputs.size();
                if (!is_write(error) || has_part(marks.keeps[i], tangents) || (is_read && is_input)) throw;
                if (is_read) {
                    written.lost.push_back(i);
                    written.error = std::current_exception();
                }
                if (is_input) unread = std::current_exception();
                flat.push_back(zeros(geometry_of(i)));
                written.any = true;
            }
        }
        if (!written.lost.empty() && unread) std::rethrow_exception(unread);  // the graph can't run again
        return written;
    }

    static bool is_write(const c10::Error& error) { return error.msg().find("modified by an inplace operation") != std::string::npos; }

    TangentGeometry geometry_of(size_t i) const {
        const Contract& contract = region_->contract;
        if (saved_[i].packed) return *saved_[i].packed;
        if (const c10::TensorImpl* impl = saved_[i].impl) return {impl->sizes().vec(), impl->strides().vec(), c10::typeMetaToScalarType(impl->dtype()), impl->device()};
        const auto& tangents = contract.tangents;
        return (*geometry_)[std::find(tangents.begin(), tangents.end(), contract.saved_positions[i - contract.saved_inputs.size()]) - tangents.begin()];
    }

    // Raises what eager's nodes would raise, of those that this backward pass comes through.
    void check_state(const variable_list& tangents) {
        std::lock_guard<std::mutex> lock(mutex_);
        const std::vector<Part>& parts = region_->contract.marks.parts;
        freed_.resize(parts.size());
        runs_.resize(parts.size());
        for (size_t i = 0; i < parts.size(); ++i) {
            runs_[i] = is_run(parts[i], tangents);
            if (runs_[i] && (freed_[i] || is_given_up_))
                C10_THROW_ERROR(Error, torch::autograd::ERR_BACKWARD_TWICE);
        }
        for (Viewed& viewed : viewed_) {
            viewed.runs = is_run(*viewed.part, tangents) && viewed.is_written(this);
            if (viewed.runs && viewed.freed) C10_THROW_ERROR(Error, torch::autograd::ERR_BACKWARD_TWICE);
        }
        for (const Watched& w : watched_) {
            if (w.is_detached() && has_part(w.watch->refusing, tangents)) fail(was_detached);
            if (w.counter.current_version() != w.version && has_part(w.watch->parts, tangents))
                refuse_write(w.watch->is_input ? "input " : "output ", w.watch->index, w.counter.current_version(), w.version);
        }
    }

    [[noreturn]] static void refuse_write(const char* what, int64_t index, uint32_t version, uint32_t expected) {
        fail("one of the variables needed for gradient computation has been modified by an inplace operation: ", what, index,
             " of a compiled graph is at version ", version, "; expected version ", expected, " instead.");
    }

    // Whether eager's backward pass would come through nodes.
    bool is_run(const Part& part, const variable_list& tangents) {
        auto came = [&](int64_t tangent) { return size_t(tangent) < tangents.size() && tangents[tangent].defined(); };
        auto asked = [&](int64_t grad) { return is_wanted(size_t(grad)); };
        return std::any_of(part.first.begin(), part.first.end(), came) && std::any_of(part.second.begin(), part.second.end(), asked);
    }

    // The same, where it matters whether the gradients that the node gives to others lead to some that are asked for.
    bool has_part(const std::vector<Part>& parts, const variable_list& tangents) {
        auto asked = [&](int64_t grad) { return is_asked(*this, size_t(grad)); };
        return std::any_of(parts.begin(), parts.end(),
                           [&](const Part& part) { return is_run(part, tangents) && std::any_of(part.second.begin(), part.second.end(), asked); });
    }

    // Of each tangent and each gradient, whether a freed part lies between them: then no backward pass that is allowed computes one from the other.
    std::vector<bool> dead_pairs(const std::vector<bool>& freed) const {
        const size_t grads = ways();
        std::vector<bool> dead(geometry_->size() * grads);
        const std::vector<Part>& parts = region_->contract.marks.parts;
        for (size_t i = 0; i < parts.size(); ++i) {
            if (!freed[i]) continue;
            for (int64_t tangent : parts[i].first)
                for (int64_t grad : parts[i].second) dead[tangent * grads + grad] = true;
        }
        return dead;
    }

    bool is_dead(const std::vector<bool>& dead, size_t tangent, size_t grad) const {
        return dead[tangent * ways() + grad] || !way(grad).is_valid();
    }

    // Whether no backward pass is left that computes anything.
    bool is_over(const std::vector<bool>& dead) const {
        for (size_t i = 0; i < region_->contract.grads.size(); ++i) {
            for (size_t tangent = 0; tangent < geometry_->size(); ++tangent) {
                if (flows(uint32_t(tangent), i) && !is_dead(dead, tangent, i)) return false;
            }
        }
        return true;
    }

    // Keeps the shapes of what is saved where some of it will be freed after this pass and some will not. They can't be asked later, when it may be written.
    // Whether all would be freed.
    bool note_shapes(const Tensors& saved) {
        if (!shapes_.empty()) return false;
        std::vector<bool> freed = freed_;
        for (size_t i = 0; i < freed.size(); ++i) freed[i] = freed[i] || runs_[i];
        if (is_over(dead_pairs(freed))) return true;
        for (const at::Tensor& tensor : saved) shapes_.push_back({tensor.sizes().vec(), tensor.strides().vec(), tensor.scalar_type(), tensor.device()});
        return false;
    }

    // Frees what no backward pass that is allowed still comes to.
    void free_saved() {
        const std::vector<bool> dead = dead_pairs(freed_);
        if (is_over(dead) || is_dying(*this)) {
            for (Saved& saved : saved_) saved.variable.reset_data();
            primals_.release();
            return;
        }
        for (size_t i = 0; i < saved_.size(); ++i) {
            const auto& needs = region_->contract.marks.needs[i];
            const bool is_needed = std::any_of(needs.begin(), needs.end(), [&](const Part& part) {
                return std::any_of(part.first.begin(), part.first.end(), [&](int64_t tangent) {
                    return std::any_of(part.second.begin(), part.second.end(), [&](int64_t grad) { return !is_dead(dead, tangent, grad); });
                });
            });
            if (is_needed || (i < stand_ins_.size() && stand_ins_[i])) continue;
            if (shapes_.empty()) return;  // no pass has run
            stand_ins_.resize(saved_.size());
            stand_ins_[i] = shapes_[i];
            saved_[i].variable.reset_data();
        }
        if (!stand_ins_.empty()) primals_.release();  // a replay would compute with what is freed
    }

    static void refuse_more(variable_list& grads, torch::autograd::edge_list above, std::string reason) {
        auto refusal = make_node<DoubleBackward>(std::move(above), std::move(reason));
        for (at::Tensor& grad : grads) {
            if (!grad.defined()) continue;
            c10::TensorImpl* impl = grad.unsafeGetTensorImpl();
            grad = at::Tensor(impl->shallow_copy_and_detach(impl->version_counter(), true));
            set_history(grad, refusal);
        }
    }

    std::shared_ptr<Region> region_;
    Chain chain_;  // of nodes behind this one
    std::shared_ptr<const std::vector<TangentGeometry>> geometry_;
    std::vector<Saved> saved_;
    std::vector<TangentGeometry> shapes_;  // of saved tensors
    std::vector<std::optional<TangentGeometry>> stand_ins_;  // of saved tensors that are freed, while others are not
    std::vector<Watched> watched_;
    std::vector<Viewed> viewed_;
    bool is_given_up_ = false;  // a backward pass has let go of something that is saved
    std::vector<bool> runs_, freed_;  // of the parts: those of the latest backward pass, and those that one has freed
    std::vector<int64_t> symbols_;
    Primals primals_;
};

}  // namespace

void attach_node(const std::shared_ptr<Region>& region, const Inputs& inputs, Tensors& outputs, Generators generators) {
    const auto& impls = inputs.impls;
    const Contract& contract = region->contract;
    torch::autograd::edge_list edges;
    edges.reserve(contract.grads.size());
    for (int64_t input : contract.grads) add_edge(edges, impls[input] ? tensor_of(impls[input]) : at::Tensor());
    auto node = make_node<RegionBackward>(region, std::move(edges));
    for (int64_t position : contract.tangents) set_history(outputs[position], node);
    node->remember(inputs, outputs);
    node->remember_primals(inputs, std::move(generators));
    node->split();
}

void watch_writes(const Region& region, const Inputs& inputs, const Tensors& outputs) {
    if (!region.contract.marks.watches.empty()) static_cast<RegionBackward*>(outputs[region.contract.tangents[0]].grad_fn().get())->watch(inputs, outputs);
}

void attach_stages(const Region& region, const Inputs& inputs, Tensors& outputs, const Generators& generators, const int64_t* numbers,
                   const std::function<at::Tensor(int32_t)>& output, const std::function<void(size_t)>& finish) {
    const auto& impls = inputs.impls;
    torch::autograd::edge_list given;  // as they are before any input is written
    for (c10::TensorImpl* impl : impls) add_edge(given, impl ? tensor_of(impl) : at::Tensor());
    std::vector<bool> later(outputs.size());
    for (int64_t position : region.contract.tangents) later[position] = true;
    std::vector<NodePtr> nodes;
    for (size_t k = 0; k < region.stages.size(); ++k) {
        const std::shared_ptr<Region>& stage = region.stages[k];
        torch::autograd::edge_list edges;
        for (const Target& target : stage->edges) {
            switch (target.to) {
                case To::input:
                    edges.push_back(given[target.index]);
                    break;
                case To::output:
                    add_edge(edges, output(target.index));
                    break;
                case To::written:
                    add_edge(edges, tensor_of(impls[target.index]));
                    break;
                case To::hidden:
                    edges.emplace_back(nodes[target.index], uint32_t(region.stages[target.index]->contract.tangents.size() + target.slot));
                    break;
            }
        }
        auto node = make_node<RegionBackward>(stage, std::move(edges));
        for (int64_t position : stage->contract.tangents) {
            set_history(outputs[position], node);
            later[position] = false;
        }
        node->remember(inputs, outputs, later);
        node->take_hidden(numbers);
        node->remember_primals(inputs, generators);
        node->split();
        if (stage->again)
            for (int64_t index : stage->again->outputs) node->keep_output(output(int32_t(index)));
        nodes.push_back(node);
        finish(k);
    }
}

namespace {

PyObject* tuple_of(const std::vector<bool>& flags) {
    PyObject* found = PyTuple_New(Py_ssize_t(flags.size()));
    for (size_t i = 0; found && i < flags.size(); ++i) PyTuple_SET_ITEM(found, Py_ssize_t(i), PyBool_FromLong(flags[i]));
    return found;
}

}  // namespace

PyObject* backward_pass(PyObject*, PyObject*) {
    if (!Pass::current) Py_RETURN_NONE;
    PyObject* arrived = tuple_of(Pass::current->arrived);
    PyObject* wanted = arrived ? tuple_of(Pass::current->wanted) : nullptr;
    PyObject* found = wanted ? PyTuple_Pack(2, arrived, wanted) : nullptr;
    Py_XDECREF(arrived);
    Py_XDECREF(wanted);
    return found;
}

void refuse_writes(const at::Tensor& view, Made made) {
    using torch::autograd::CreationMeta;
    auto* meta = torch::autograd::impl::get_view_autograd_meta(view);
    const CreationMeta mark = made == Made::part ? CreationMeta::MULTI_OUTPUT_NODE : CreationMeta::IN_CUSTOM_FUNCTION;
    if (meta && meta->has_bw_view()) meta->set_creation_meta(propagate_creation_meta(meta->get_creation_meta(), mark));
}

bool init_node() {
    static PyTypeObject backward_type, going_on_type, double_backward_type;  // torch keeps them for the life of the process
    torch::autograd::registerCppFunction(typeid(RegionBackward),
                                         torch::autograd::_initFunctionPyTypeObject(backward_type, "DynacompileBackward", nullptr, nullptr));
    torch::autograd::registerCppFunction(typeid(Continuation),
                                         torch::autograd::_initFunctionPyTypeObject(going_on_type, "DynacompileBackwardGoingOn", nullptr, nullptr));
    torch::autograd::registerCppFunction(typeid(DoubleBackward),
                                         torch::autograd::_initFunctionPyTypeObject(double_backward_type, "DynacompileDoubleBackward", nullptr, nullptr));
    return !PyErr_Occurred();
}

}  // namespace dynacompile::runtime
