// The Python type of a linked program, made from the tuples of link.py.
#include "runtime/cpu_memory.h"
#include "runtime/draws.h"
#include "runtime/externs.h"
#include "runtime/program.h"
#include "runtime/step_clock.h"

#include <structmember.h>
#include <torch/csrc/Device.h>
#include <torch/csrc/Dtype.h>

#include <cstddef>

bool init_differentiable(PyObject* module);
bool init_graph_memory(PyObject* module);
bool init_wrapped(PyObject* module);
bool init_draws(PyObject* module);

namespace dynacompile::runtime {
namespace {

struct ProgramObject {
    PyObject_HEAD vectorcallfunc vectorcall;
    Program* program;
    PyObject* schedule;
    PyObject* told;
    PyObject* weakrefs;
};

PyTypeObject* program_type = nullptr;

// The inputs that are numbers.
c10::SmallVector<int64_t, 16> integers_of(const Program& program, PyObject* const* args) {
    c10::SmallVector<int64_t, 16> integers(program.sizes.read.size(), 0);
    for (size_t i = 0; i < integers.size(); ++i)
        if (program.sizes.read[i]) integers[i] = to_number(args[i]);
    return integers;
}

ProgramObject* self_of(PyObject* object) { return reinterpret_cast<ProgramObject*>(object); }

PyObject* call_program(PyObject* self, PyObject* const* args, size_t flags, PyObject* keywords) {
    const Program& program = *self_of(self)->program;
    size_t count = PyVectorcall_NARGS(flags);
    try {
        if (keywords && PyTuple_GET_SIZE(keywords)) raise(PyExc_TypeError, "a program takes no keyword arguments");
        if (count != program.inputs.size())
            raise(PyExc_TypeError, "the program takes " + std::to_string(program.inputs.size()) + " inputs, not " + std::to_string(count));
        c10::SmallVector<c10::TensorImpl*, 16> impls(count, static_cast<c10::TensorImpl*>(nullptr));
        CallSizes call;
        if (program.varies()) {
            for (size_t i = 0; i < count; ++i) impls[i] = is_tensor(args[i]) ? impl_of(args[i]) : nullptr;
            call = program.measure(impls.data(), integers_of(program, args).data());
        }
        for (size_t i = 0; i < count; ++i) {
            if (program.inputs[i] < 0) continue;
            program.check_input(i, args[i], call);
            impls[i] = impl_of(args[i]);
        }
        c10::SmallVector<at::Tensor, 8> outputs(program.outputs.size());
        program.run(impls.data(), outputs.data(), call);
        PyRef result = PyRef::take(checked(PyTuple_New(outputs.size())));
        for (size_t i = 0; i < outputs.size(); ++i) PyTuple_SET_ITEM(result.get(), i, wrap(outputs[i]));
        return result.release();
    } catch (...) {
        set_python_error();
        return nullptr;
    }
}

Buffer read_buffer(PyObject* row) {
    Buffer b;
    b.name = to_string(item(row, 0));
    PyObject *dtype = item(row, 1), *device = item(row, 2);
    if (!THPDtype_Check(dtype) || !THPDevice_Check(device)) raise(PyExc_TypeError, "a buffer needs a torch.dtype and a torch.device");
    b.dtype = reinterpret_cast<THPDtype*>(dtype)->scalar_type;
    b.meta = c10::scalarTypeToTypeMeta(b.dtype);
    b.device = reinterpret_cast<THPDevice*>(device)->device;
    b.size = to_ints(item(row, 3));
    b.stride = to_ints(item(row, 4));
    b.offset = to_int(item(row, 5));
    b.memory = Memory(to_int(item(row, 6)));
    b.root = int32_t(to_int(item(row, 7)));
    b.written = to_int(item(row, 8)) != 0;
    b.launched = to_int(item(row, 9)) != 0;
    if (b.size.size() != b.stride.size()) raise(PyExc_ValueError, b.name + " has as many sizes as strides");
    if (!b.device.is_cpu() && !b.device.is_cuda()) raise(PyExc_ValueError, b.name + " is on " + b.device.str() + "; programs run on cpu and cuda");
    b.numel = 1;
    int64_t last = b.offset;
    for (size_t i = 0; i < b.size.size(); ++i) {
        b.numel *= b.size[i];
        last += (b.size[i] - 1) * b.stride[i];
    }
    b.extent = b.numel == 0 ? 0 : size_t(last + 1) * b.meta.itemsize();
    return b;
}

// The steps that link.py writes: (code, ...); the codes are in read_step's cases.
class Reader {
public:
    explicit Reader(Program& program) : program_(program) {}

    void read_step(PyObject* row, int32_t number) {
        std::string code = to_string(item(row, 0));
        Step step{};
        if (code == "place") {
            const int32_t placed = slot(item(row, 1));
            auto& places = program_.on_cuda() && program_.buffers[placed].device.is_cpu() ? program_.host_places : program_.places;
            places.emplace_back(placed, size_t(to_int(item(row, 2))));
            return;
        }
        if (code == "allocate") {
            step = {Act::allocate, 0, 0, slot(item(row, 1))};
        } else if (code == "reuse") {
            step = {Act::reuse, 0, 0, slot(item(row, 1))};
            add_operands(step, item(row, 2));
            if (!step.count) raise(PyExc_ValueError, "memory is taken from no buffer");
        } else if (code == "free") {
            step.act = Act::free;
            add_operands(step, item(row, 1));
            if (step.count && program_.input_of[program_.operands[step.first]] >= 0) step.act = Act::let_go;
        } else if (code == "give") {
            step = {Act::give, 0, 0, int32_t(program_.gives.size())};
            std::vector<int32_t> given;
            for (int64_t position : to_ints(item(row, 1))) {
                if (position < 0 || size_t(position) >= program_.outputs.size() || program_.outputs[position] < 0)
                    raise(PyExc_IndexError, "a step gives no output");
                given.push_back(int32_t(position));
            }
            program_.gives.push_back(std::move(given));
            add_operands(step, item(row, 2));
        } else if (code == "launch" || code == "launch on the CPU") {
            step.act = code == "launch" ? Act::cuda : Act::cpu;
            const size_t kernels = read_kernel_number(step, item(row, 1), step.act == Act::cuda);
            add_operands(step, item(row, 2));
            add_numbers(step, item(row, 3));
            if (step.act == Act::cuda) count_given(step);
            if (step.given) need_pointer_writer();
            PyObject *grid = item(row, 4), *chosen = item(row, 5);
            if (PyTuple_Size(chosen) == 2) {
                step.form = int32_t(to_int(item(chosen, 0)));
                if (size_t(step.which + to_int(item(chosen, 1))) > kernels) raise(PyExc_IndexError, "a launch lacks a form of its kernel");
            }
            if (PyTuple_Size(grid) == 3) {
                step.grid = int32_t(program_.grids.size());
                program_.grids.push_back({read_extent(item(grid, 0)), read_extent(item(grid, 1)), read_extent(item(grid, 2))});
            }
        } else if (code == "list" || code == "list on the CPU") {
            read_list(step, row, code == "list");
        } else if (code == "reference") {
            step = {Act::reference, 0, 0, int32_t(program_.references.size())};
            add_operands(step, item(row, 2));
            add_numbers(step, item(row, 5));
            program_.references.push_back(read_reference(row));
            program_.dispatches = true;
        } else if (code == "extern") {
            step = {Act::external, 0, 0, int32_t(program_.externs.size())};
            const std::string name = to_string(item(row, 1));
            std::vector<int64_t> results = to_ints(item(row, 4));
            program_.externs.push_back(name == draw_name ? make_draw(item(row, 3), results.at(0), program_.device)
                                                         : make_extern(name, to_string(item(row, 2)), item(row, 3), std::move(results), PyObject_IsTrue(item(row, 5)) == 1));
            program_.dispatches = true;
        } else {
            raise(PyExc_ValueError, "unknown step " + code);
        }
        step.row = number;
        program_.steps.push_back(step);
    }

private:
    int32_t slot(PyObject* number) {
        int64_t value = to_int(number);
        if (value < 0 || size_t(value) >= program_.buffers.size()) raise(PyExc_IndexError, "a step names no buffer");
        return int32_t(value);
    }

    void add_operands(Step& step, PyObject* slots) {
        step.first = int32_t(program_.operands.size());
        step.count = int32_t(PyTuple_Size(slots));
        for (int32_t i = 0; i < step.count; ++i) program_.operands.push_back(slot(item(slots, i)));
    }

    // Places of numbers, behind the slots.
    void add_numbers(Step& step, PyObject* places) {
        step.numbers = int32_t(PyTuple_Size(places));
        for (int32_t i = 0; i < step.numbers; ++i) program_.operands.push_back(int32_t(to_int(item(places, i))));
    }

    // How many kernels there are of the sort that the launch has.
    size_t read_kernel_number(Step& step, PyObject* number, bool on_device) {
        if (on_device && !program_.on_cuda()) raise(PyExc_ValueError, "a launch on a GPU in a program for " + program_.device.str());
        const size_t kernels = on_device ? program_.cuda_kernels.size() : program_.cpu_kernels.size();
        step.which = int32_t(to_int(number));
        if (size_t(step.which) >= kernels) raise(PyExc_IndexError, "a launch names no kernel");
        return kernels;
    }

    // Counts the operands of a launch on a device that are numbers of the CPU, which go there with the launch.
    void count_given(Step& step) {
        for (int32_t i = 0; i < step.count; ++i) {
            const Buffer& b = program_.buffers[program_.operands[step.first + i]];
            if (!b.device.is_cpu()) continue;
            if (b.numel != 1 || b.offset != 0 || b.meta.itemsize() > sizeof(uint64_t)) raise(PyExc_ValueError, b.name + " is no number, and a kernel of a GPU reads it");
            ++step.given;
        }
    }

    void need_pointer_writer() {
        if (!program_.pointer_writer) program_.pointer_writer = std::make_unique<cuda::PointerWriter>(program_.device);
    }

    void read_list(Step& step, PyObject* row, bool on_device) {
        step.act = on_device ? Act::cuda_list : Act::cpu_list;
        read_kernel_number(step, item(row, 1), on_device);
        add_operands(step, item(row, 2));
        if (on_device) count_given(step);
        add_numbers(step, item(row, 3));
        step.list = int32_t(program_.lists.size());
        List list;
        list.members = to_int(item(row, 4));
        list.numbers = to_ints(item(row, 5));
        list.programs = to_int(item(row, 6));
        if (list.members < 1 || step.count % list.members || int64_t(list.numbers.size()) % list.members)
            raise(PyExc_ValueError, "a list has members of different kinds");
        if (on_device) {
            PyObject* tensors = item(row, 7);
            for (Py_ssize_t i = 0; i < 2; ++i)
                if (!is_tensor(item(tensors, i))) raise(PyExc_TypeError, "a list's tables are no tensors");
            list.blocks = TensorPtr::reclaim_copy(impl_of(item(tensors, 0)));
            list.device_numbers = TensorPtr::reclaim_copy(impl_of(item(tensors, 1)));
            need_pointer_writer();
        }
        program_.lists.push_back(std::move(list));
    }

    ReferenceCall read_reference(PyObject* row) {
        ReferenceCall call{PyRef::share(item(row, 1)), {}, {}};
        for (Py_ssize_t i = 0; i < PyTuple_Size(item(row, 3)); ++i) call.elements.push_back(read_extent(item(item(row, 3), i)));
        PyObject* dtypes = item(row, 4);
        for (Py_ssize_t i = 0; i < PyTuple_Size(dtypes); ++i) {
            if (!THPDtype_Check(item(dtypes, i))) raise(PyExc_TypeError, "a reference kernel's params need dtypes");
            call.dtypes.push_back(c10::scalarTypeToTypeMeta(reinterpret_cast<THPDtype*>(item(dtypes, i))->scalar_type));
        }
        return call;
    }

    Program& program_;
};

// rows: those of the CPU, and those of the device.
void read_kernels(Program& program, PyObject* both) {
    PyObject* host = item(both, 0);
    for (Py_ssize_t i = 0; i < PyTuple_Size(host); ++i) program.cpu_kernels.push_back(reinterpret_cast<CpuFunction>(to_int(item(item(host, i), 0))));
    PyObject* rows = item(both, 1);
    for (Py_ssize_t i = 0; i < PyTuple_Size(rows); ++i) {
        PyObject* row = item(rows, i);
        if (PyTuple_Size(row) == 1)
            program.cuda_kernels.push_back(std::make_unique<CudaKernel>(PyRef::share(item(row, 0))));
        else
            program.cuda_kernels.push_back(std::make_unique<CudaKernel>(read_kernel(row, program.device)));
    }
}

void read_ends(Program& program, PyObject* inputs, PyObject* outputs, PyObject* constants) {
    for (int64_t slot : to_ints(inputs)) program.inputs.push_back(int32_t(slot));
    for (int64_t slot : to_ints(outputs)) program.outputs.push_back(int32_t(slot));
    int64_t count = int64_t(program.buffers.size());
    for (const auto& list : {program.inputs, program.outputs})
        for (int32_t slot : list)
            if (slot >= count) raise(PyExc_IndexError, "an input or output names no buffer");
    program.input_of.assign(program.buffers.size(), -1);
    for (size_t i = 0; i < program.inputs.size(); ++i)
        if (program.inputs[i] >= 0) program.input_of[program.inputs[i]] = int32_t(i);
    for (Py_ssize_t i = 0; i < PyTuple_Size(constants); ++i) {
        PyObject* tensor = item(item(constants, i), 1);
        if (!is_tensor(tensor)) raise(PyExc_TypeError, "a constant is no tensor");
        program.constants.emplace_back(int32_t(to_int(item(item(constants, i), 0))), TensorPtr::reclaim_copy(impl_of(tensor)));
    }
}

// sizes: (sources, codes, checks, buffers, longest): rows (input, dimension, stride, low, high, name) of symbols; codes of numbers; (input, extent); and
// (slots, extents) of the buffers whose geometry differs; extents of loops.
void read_sizes(Program& program, PyObject* row) {
    program.sizes = read_numbers(row, program.inputs.size());
    PyObject* buffers = item(row, 3);
    for (Py_ssize_t i = 0; i < PyTuple_Size(item(row, 4)); ++i) program.sizes.longest.push_back(read_extent(item(item(row, 4), i)));
    int32_t place = 0;
    for (Py_ssize_t i = 0; i < PyTuple_Size(buffers); ++i) {
        std::vector<int64_t> slots = to_ints(item(item(buffers, i), 0));
        PyObject* extents = item(item(buffers, i), 1);
        const size_t rank = program.buffers.at(slots.at(0)).size.size();
        for (int64_t slot : slots) {
            Buffer& b = program.buffers.at(slot);
            if (size_t(PyTuple_Size(extents)) != 2 * rank + 1 || b.size.size() != rank) raise(PyExc_ValueError, b.name + " has other sizes");
            b.place = place;
        }
        place += int32_t(2 * rank + 3);
        program.symbolic.push_back(int32_t(slots[0]));
        for (Py_ssize_t k = 0; k < PyTuple_Size(extents); ++k) program.extents.push_back(read_extent(item(extents, k)));
    }
}

// make_program(schedule, buffers, inputs, outputs, constants, kernels, steps, arenas, device, reference, sizes, work). work: of fixed sizes, per element.
PyObject* make_program(PyObject*, PyObject* args) {
    PyObject *schedule, *buffers, *inputs, *outputs, *constants, *kernels, *steps, *device, *reference, *sizes;
    Py_ssize_t arena = 0, host_arena = 0;
    long long work, symbolic_work;
    if (!PyArg_ParseTuple(args, "OO!O!O!O!O!O!(nn)OOO!(LL)", &schedule, &PyTuple_Type, &buffers, &PyTuple_Type, &inputs, &PyTuple_Type, &outputs, &PyTuple_Type,
                          &constants, &PyTuple_Type, &kernels, &PyTuple_Type, &steps, &arena, &host_arena, &device, &reference, &PyTuple_Type, &sizes, &work, &symbolic_work))
        return nullptr;
    try {
        auto program = std::make_unique<Program>();
        program->work = work;
        program->symbolic_work = symbolic_work;
        if (!THPDevice_Check(device)) raise(PyExc_TypeError, "a program needs a torch.device");
        program->device = reinterpret_cast<THPDevice*>(device)->device;
        program->arena = size_t(arena);
        program->host_arena = size_t(host_arena);
        program->reference = PyRef::share(reference);
        for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(buffers); ++i) program->buffers.push_back(read_buffer(PyTuple_GET_ITEM(buffers, i)));
        read_ends(*program, inputs, outputs, constants);
        read_sizes(*program, sizes);
        read_kernels(*program, kernels);
        Reader reader(*program);
        for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(steps); ++i) reader.read_step(PyTuple_GET_ITEM(steps, i), int32_t(i));
        program->settle();
        PyObject* self = checked(program_type->tp_alloc(program_type, 0));
        self_of(self)->vectorcall = call_program;
        program->self = self;
        self_of(self)->program = program.release();
        self_of(self)->schedule = Py_NewRef(schedule);
        return self;
    } catch (...) {
        set_python_error();
        return nullptr;
    }
}

int traverse_program(PyObject* self, visitproc visit, void* arg) noexcept {
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self_of(self)->schedule);
    Py_VISIT(self_of(self)->told);
    if (const Program* program = self_of(self)->program) {
        Py_VISIT(program->reference.get());
        for (const auto& kernel : program->cuda_kernels) Py_VISIT(kernel->maker());
    }
    return 0;
}

int clear_program(PyObject* self) noexcept {
    Py_CLEAR(self_of(self)->schedule);
    Py_CLEAR(self_of(self)->told);
    return 0;
}

void free_program(PyObject* self) noexcept {
    PyObject_GC_UnTrack(self);
    if (self_of(self)->program) forget_times(*self_of(self)->program);
    if (self_of(self)->weakrefs) PyObject_ClearWeakRefs(self);
    PyTypeObject* type = Py_TYPE(self);
    clear_program(self);
    delete self_of(self)->program;
    type->tp_free(self);
    Py_DECREF(type);
}

PyObject* program_facts(PyObject* self, void*) {
    return self_of(self)->schedule ? PyObject_CallMethod(self_of(self)->schedule, "facts", nullptr) : PyDict_New();
}

PyObject* program_text(PyObject* self, void*) {
    return self_of(self)->schedule ? PyObject_CallMethod(self_of(self)->schedule, "text", nullptr) : PyUnicode_FromString("");
}

PyObject* program_schedule(PyObject* self, void*) { return Py_NewRef(self_of(self)->schedule ? self_of(self)->schedule : Py_None); }

PyObject* show_program(PyObject* self) {
    const Program& p = *self_of(self)->program;
    return PyUnicode_FromFormat("<program on %s: %zd inputs, %zd steps, %zd outputs>", p.device.str().c_str(), Py_ssize_t(p.inputs.size()),
                                Py_ssize_t(p.steps.size()), Py_ssize_t(p.outputs.size()));
}

PyGetSetDef getters[] = {
    {"facts", boundary<program_facts>, nullptr, "Counts: launches, kernels, externs, bytes that kernels move, arena bytes.", nullptr},
    {"text", boundary<program_text>, nullptr, "The schedule as text.", nullptr},
    {"schedule", boundary<program_schedule>, nullptr, "The ir.schedule.Schedule that it runs.", nullptr},
    {nullptr},
};

PyMemberDef members[] = {
    {"told", T_OBJECT, offsetof(ProgramObject, told), 0, "What its maker tells of it: of which region it is, and which of its steps are which of the schedule's."},
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(ProgramObject, vectorcall), READONLY, nullptr},
    {"__weaklistoffset__", T_PYSSIZET, offsetof(ProgramObject, weakrefs), READONLY, nullptr},
    {nullptr},
};

PyType_Slot slots[] = {
    {Py_tp_doc, const_cast<char*>("A linked schedule: called with its flat inputs it returns the tuple of its output tensors, without autograd.")},
    {Py_tp_call, reinterpret_cast<void*>(PyVectorcall_Call)},
    {Py_tp_dealloc, reinterpret_cast<void*>(free_program)},
    {Py_tp_traverse, reinterpret_cast<void*>(traverse_program)},
    {Py_tp_clear, reinterpret_cast<void*>(clear_program)},
    {Py_tp_repr, as_slot<show_program>()},
    {Py_tp_getset, getters},
    {Py_tp_members, members},
    {0, nullptr},
};

PyType_Spec spec = {"dynacompile_native.Program", sizeof(ProgramObject), 0,
                    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_DISALLOW_INSTANTIATION, slots};

PyObject* release_memory(PyObject*, PyObject* args) {
    long long idle = 0;
    if (!PyArg_ParseTuple(args, "|L:release_memory", &idle)) return nullptr;
    if (idle > 0) release_idle_blocks(idle);
    else release_blocks();
    Py_RETURN_NONE;
}

PyObject* memory(PyObject*, PyObject*) {
    const BlockBytes bytes = block_bytes();
    return Py_BuildValue("nn", Py_ssize_t(bytes.kept), Py_ssize_t(bytes.in_use));
}

PyMethodDef functions[] = {{"release_memory", boundary<release_memory>, METH_VARARGS,
                            "release_memory(idle=0): frees the memory that CPU programs keep for their next call; that which was kept for so many seconds."},
                           {"memory", boundary<memory>, METH_NOARGS, "memory() -> (bytes that CPU programs keep for their next call, bytes of theirs in use)."},
                           {"make_program", boundary<make_program>, METH_VARARGS,
                            "make_program(schedule, buffers, inputs, outputs, constants, kernels, steps, arena, device, reference, sizes, work) -> Program"},
                           {nullptr}};

}  // namespace

Sizes read_numbers(PyObject* row, size_t inputs) {
    Sizes sizes;
    PyObject *sources = item(row, 0), *codes = item(row, 1), *checks = item(row, 2);
    sizes.read.assign(inputs, false);
    for (Py_ssize_t i = 0; i < PyTuple_Size(sources); ++i) {
        PyObject* s = item(sources, i);
        sizes.sources.push_back({int32_t(to_int(item(s, 0))), int32_t(to_int(item(s, 1))), to_int(item(s, 2)) != 0, to_int(item(s, 3)), to_int(item(s, 4)),
                                 to_string(item(s, 5))});
        if (size_t(sizes.sources.back().input) >= inputs) raise(PyExc_IndexError, "a size is shown by no input");
        if (sizes.sources.back().dimension < 0) sizes.read[sizes.sources.back().input] = true;
    }
    for (Py_ssize_t i = 0; i < PyTuple_Size(codes); ++i) sizes.codes.push_back(to_ints(item(codes, i)));
    for (Py_ssize_t i = 0; i < PyTuple_Size(checks); ++i) {
        sizes.checks.emplace_back(int32_t(to_int(item(item(checks, i), 0))), read_extent(item(item(checks, i), 1)));
        sizes.read.at(sizes.checks.back().first) = true;
    }
    return sizes;
}

cuda::Kernel read_kernel(PyObject* row, c10::Device device) {
    char* image = nullptr;
    Py_ssize_t size = 0;
    if (PyBytes_AsStringAndSize(item(row, 0), &image, &size)) throw PythonErrorSet();
    cuda::Geometry geometry;
    std::vector<int64_t> grid = to_ints(item(row, 2));
    for (size_t k = 0; k < 3 && k < grid.size(); ++k) geometry.grid[k] = uint32_t(grid[k]);
    geometry.threads = uint32_t(to_int(item(row, 3)));
    geometry.shared = uint32_t(to_int(item(row, 4)));
    geometry.extra = int32_t(to_int(item(row, 5)));
    return cuda::Kernel(std::string(image, size), to_string(item(row, 1)), geometry, device);
}

Extent read_extent(PyObject* object) {
    int64_t value = to_int(object);
    return is_place(object) ? Extent{0, int32_t(value)} : Extent{value, -1};
}

void Program::check_input(size_t index, PyObject* object, const CallSizes& call) const {
    const Buffer& b = buffers[inputs[index]];
    const Geometry g = geometry(inputs[index], call);
    if (is_tensor(object)) {
        const c10::TensorImpl& t = *impl_of(object);
        if (t.dtype() == b.meta && (t.device().type() == b.device.type() || !b.launched) && !t.is_python_dispatch() && t.has_storage() && same_geometry(t, g.size, g.stride))
            return;
    }
    refuse_input(index, object, g);
}

void Program::refuse_input(size_t index, PyObject* object, const Geometry& wanted) const {
    const Buffer& b = buffers[inputs[index]];
    std::string where = "input " + std::to_string(index) + " (" + b.name + ") must be ";
    if (!is_tensor(object)) raise(PyExc_TypeError, where + "a tensor, not " + Py_TYPE(object)->tp_name);
    const c10::TensorImpl& tensor = *impl_of(object);
    if (tensor.is_python_dispatch() || !tensor.has_storage()) raise(PyExc_TypeError, where + "a plain tensor with memory, not a " + Py_TYPE(object)->tp_name);
    if (tensor.dtype() != b.meta) raise(PyExc_TypeError, where + concat(b.dtype, ", not ", tensor.dtype().name()));
    if (b.launched && tensor.device().type() != b.device.type()) raise(PyExc_ValueError, where + "on " + b.device.str() + ", not " + tensor.device().str());
    raise(PyExc_ValueError, where + concat("of sizes ", wanted.size, " and strides ", wanted.stride, ", not ", tensor.sizes(),
                                           " and ", tensor.strides()));
}

Program* program_of(PyObject* object) { return Py_TYPE(object) == program_type ? self_of(object)->program : nullptr; }

bool init_program(PyObject* module) {
    program_type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&spec));
    if (!program_type || PyModule_AddFunctions(module, functions)) return false;
    return PyModule_AddObjectRef(module, "Program", reinterpret_cast<PyObject*>(program_type)) == 0;
}

}  // namespace dynacompile::runtime

bool init_runtime(PyObject* module) {
    return dynacompile::runtime::probe_tensor_layout() && dynacompile::runtime::init_program(module) && dynacompile::runtime::init_step_clock(module) && init_differentiable(module) &&
           init_graph_memory(module) && init_wrapped(module) && init_draws(module);
}
