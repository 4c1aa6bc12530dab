// What a differentiable callable and its autograd nodes share: the contract, the two graphs' callables, and how to run them (differentiable.cpp).
#pragma once

#include "runtime/paused.h"

#include <ATen/core/Generator.h>
#include <pthread.h>
#include <sys/types.h>

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>

namespace dynacompile::runtime {

enum class From : uint8_t { fresh, input, input_view, output_view, constant };

// How autograd knows a view: as ir.graphs.Made.
enum class Made : uint8_t { grad, part, no_grad, detached, custom };

// How one user output is made. index: a forward output, or an input. detached: it is a view of a detached alias of that; counted: with its version.
// leaf: it is told to require gradients. through: the user output that it is a view of, which is one of that, too; -1 for none.
struct Output {
    From from;
    int32_t index = -1, through = -1;
    Made made = Made::grad;
    bool detached = false, counted = true, leaf = false;
    std::vector<Extent> size, stride;  // of a view
    Extent offset;
    PyRef value;
};

struct Mutation {
    int32_t input, position;
};

// Some of eager's autograd nodes: the tangents that they are reached from, and the gradients that they lead to.
using Part = std::pair<std::vector<int64_t>, std::vector<int64_t>>;

// A tensor that eager's autograd would keep: writes after the call are an error. refusing: of the parts, those that refuse it without its history.
struct Watch {
    bool is_input;
    int32_t index;
    std::vector<Part> parts, refusing;
};

// As ir.graphs.Marks.
struct Marks {
    std::vector<int64_t> inference;
    std::vector<Watch> watches;
    std::vector<std::vector<int64_t>> flags;
    std::vector<Part> parts;
    std::vector<std::vector<Part>> needs, keeps;  // by saved tensor
    std::vector<bool> aliased;                    // by saved input; shorter where the rest are not
    std::vector<Part> makers;                     // by tangent; empty where all run with the node
    std::vector<Part> views;
    std::vector<std::pair<int32_t, int32_t>> input_writes, output_writes;  // (input or forward output, how often it is written)

    // Whether calls that autograd does not record have something to mark.
    bool has_effects() const { return !inference.empty() || !input_writes.empty() || !output_writes.empty(); }
};

constexpr int32_t real_number = -2;  // of a symbol's dimension: the input is a float

struct Contract {
    int32_t inputs = 0, positions = 0;
    std::vector<Output> outputs;
    std::vector<Mutation> mutations;
    std::vector<int64_t> mutated_in_graph, saved_inputs, saved_positions, tangents, grads;
    std::vector<std::vector<int64_t>> sources;  // for each of grads, the tangents that it comes from; empty: all
    Sizes sizes;  // that the views among the outputs depend on
    Marks marks;
    bool has_effects = false;  // a call does more than to make outputs, even where autograd does not record it
    std::vector<std::pair<int32_t, int32_t>> symbols;  // numbers that backward takes first: (input, dimension), or (input, -1) for an int, or real_number
};

// A graph's callable: a native program, run directly, or any Python callable over the flat inputs.
struct Graph {
    PyRef callable;
    Program* program = nullptr;

    Graph() = default;
    explicit Graph(PyRef made) : callable(std::move(made)), program(program_of(callable.get())) {}
};

// The geometry of a forward output, which its tangent must have.
struct TangentGeometry {
    std::vector<int64_t> size, stride;
    c10::ScalarType dtype;
    c10::Device device;
};

using Generators = std::vector<at::Generator>;

// How a region is differentiated more than once. call: an object of replay.py. kept: inputs that a call keeps beside those that backward reads; measured:
// tensor inputs of which it keeps sizes and strides alone; accumulated: inputs that get a gradient, of which a leaf is found by its AccumulateGrad;
// copies: (which of what backward reads is an input as it was before the graph wrote it, its gradient); has_numbers: some inputs are numbers; draws: devices whose random numbers reach a gradient.
struct Again {
    PyRef call;
    std::vector<int64_t> kept, measured, accumulated;
    std::vector<std::pair<int64_t, int64_t>> copies;
    std::vector<int64_t> outputs;  // user outputs that are kept: those that others are computed from
    bool has_numbers = false;
    std::vector<c10::Device> draws;

    // Copies of the default generators as they are before the graph runs.
    Generators generators() const;
};

// The thread that builds a backward; process 0: none does. A forked process has none of its parent's threads but one.
struct Builder {
    pid_t process = 0;
    pthread_t thread{};
};

// As Target and Hidden of ir.graphs: where a stage's gradient goes, and a gradient that one stage gives to another. example: one element.
enum class To : uint8_t { input, output, written, hidden };
struct Target {
    To to;
    int32_t index, slot;
};
struct Hidden {
    std::vector<Extent> size, stride;
    at::Tensor example;
};

class Region {
public:
    // Needs the GIL, and takes it where a node drops the last reference.
    static std::shared_ptr<Region> make(Contract contract, PyRef forward, PyRef make_backward);

    bool trains() const { return !stages.empty() || bool(make_backward_) || bool(backward_.callable); }
    // Forward outputs, without autograd history. args: the flat inputs. Holds the GIL.
    Tensors forward(PyObject* const* args, const Inputs& inputs) const;
    // Gradients of contract.grads from the ints of contract.symbols, saved inputs, saved outputs and tangents. Takes the GIL only where it must.
    // let_go: where the graph is freed, what lets go of an element of `flat` that is not read any more.
    Tensors backward(const std::vector<int64_t>& symbols, Tensors flat, const LetGo& let_go);
    // The same as a run that has not begun, and stops where gradients are final; null where the backward is no program that does.
    std::unique_ptr<PausedRun> begin_backward(const std::vector<int64_t>& symbols, Tensors& flat, LetGo let_go);
    std::shared_ptr<const std::vector<TangentGeometry>> tangent_geometry(const Tensors& outputs);
    // A tensor of one truth value.
    at::Tensor flag(bool value, c10::Device device);

    // How it draws random numbers that gradients depend on; null where nothing is kept. All stages draw alike.
    const Again* draws() const { return again ? again.get() : stages.empty() ? nullptr : stages[0]->again.get(); }
    // The callable of the backward graph, built where it is not yet. Holds the GIL.
    PyObject* backward_callable() { return built_backward().callable.get(); }

    const Contract contract;
    // What follows is set before the first call, if at all.
    std::unique_ptr<const Again> again;
    std::vector<std::shared_ptr<Region>> stages;  // of the backward, the lowest outputs' first; each has, beside its contract, the next two
    std::vector<Target> edges;  // at least those of contract.grads; the graph gives nothing to the others, a replay does
    std::vector<Hidden> hidden;
    std::vector<std::vector<int64_t>> gives;  // of contract.grads, those that are final at each stop of the backward program; the others are at its end

private:
    Region(Contract c, PyRef forward, PyRef make_backward) : contract(std::move(c)), forward_(std::move(forward)), make_backward_(std::move(make_backward)) {}
    const Graph& built_backward();
    bool begin_building();
    void build_backward();

    Graph forward_, backward_;
    PyRef make_backward_;
    std::atomic<bool> built_{false};
    Builder builder_;  // under the GIL
    std::mutex remembering_;
    at::Tensor flags_[2];
    std::shared_ptr<const std::vector<TangentGeometry>> remembered_;
};

// From now on, writes to what eager's autograd would keep are noticed by the node of the outputs.
void watch_writes(const Region& region, const Inputs& inputs, const Tensors& outputs);
// The same memory as an inference tensor, and as one that is none.
at::Tensor inference_alias(const at::Tensor& tensor);
at::Tensor plain_alias(const at::Tensor& tensor);
// Versions of inputs are counted from those at the begin of the call.
struct Versions {
    Versions(const Contract& contract, const Inputs& inputs);
    void count(const Inputs& inputs) const;
    // Of the inputs that the graph has written itself. A view gets a new node where its version is another one than when it was last asked for its node: it has
    // its last version before autograd is told of the call.
    void count_in_graph(const Inputs& inputs) const;

    const Contract& contract;
    c10::SmallVector<uint32_t, 4> before;

private:
    void count_input(const Inputs& inputs, size_t i) const;
};
void count_writes(const Contract& contract, const Tensors& outputs);
// (inference, watches, flags, (input, writes)..., (output, writes)..., parts, needs, keeps, aliased, makers, views), as differentiable.py writes it.
Marks read_marks(PyObject* row);
// Gives the outputs at contract.tangents one autograd node. generators: as they were before the graph ran.
void attach_node(const std::shared_ptr<Region>& region, const Inputs& inputs, Tensors& outputs, Generators generators);
// Gives each stage of the region's backward a node. numbers: of contract.sizes. output: makes a user output where it is not made yet; finish: called when a
// stage's outputs have their history.
void attach_stages(const Region& region, const Inputs& inputs, Tensors& outputs, const Generators& generators, const int64_t* numbers,
                   const std::function<at::Tensor(int32_t)>& output, const std::function<void(size_t)>& finish);
// The region of a differentiable callable.
std::shared_ptr<Region> region_of(PyObject* differentiable);
PyObject* set_stages(PyObject*, PyObject* args);
PyObject* set_gives(PyObject*, PyObject* args);
PyObject* node_behind(PyObject*, PyObject* way);
PyObject* set_again(PyObject*, PyObject* args);
PyObject* unbatched(PyObject*, PyObject* tensor);
PyObject* stand_above_node(PyObject*, PyObject* tensors);
PyObject* lead_to_ends(PyObject*, PyObject* args);
PyObject* lead_to_node(PyObject*, PyObject* args);
// Has autograd refuse writes to a view, as to one of several that an operation gives, or to one that a custom function gives.
void refuse_writes(const at::Tensor& view, Made made);
bool init_node();
PyObject* backward_pass(PyObject*, PyObject*);
PyObject* view_writes(PyObject*, PyObject* tensors);
// Gives a view that is to be written the history of its base, where it lags behind.
void renew_history(const at::Tensor& tensor);

}  // namespace dynacompile::runtime
