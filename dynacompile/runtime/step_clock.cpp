#include "runtime/step_clock.h"

#include <mutex>
#include <unordered_map>

namespace dynacompile::runtime {
namespace {

struct Taken {
    int64_t runs = 0;
    std::vector<int64_t> nanoseconds;  // by step, of all runs together
    std::vector<int64_t> numbers;      // of the last call
};

std::atomic<bool> timing{false};
std::mutex guard;
// Never destroyed: threads may run programs while the process ends.
auto& taken = *new std::unordered_map<const Program*, Taken>;

// A launch takes the CPU some microseconds. The device is given that much to wait beforehand, so that its steps follow each other without gaps.
constexpr int64_t ahead_ns = 8'000, most_ahead_ns = 20'000'000;

}  // namespace

bool is_timing() { return timing.load(std::memory_order_relaxed); }

bool StepClock::is_on_device(size_t step) const {
    if (!program_.on_cuda()) return false;
    const Act act = program_.steps[step].act;
    return act == Act::cuda || act == Act::cuda_list || act == Act::external;
}

StepClock::StepClock(const Program& program, const CallSizes& sizes, bool from_start)
    : program_(program), sizes_(sizes), from_start_(from_start) {
    laps_.reserve(program.steps.size());
    if (!program.on_cuda()) return;
    stream_ = cuda::enter(program.device);
    cuda::wait_on_device(program.device, stream_, std::min(most_ahead_ns, ahead_ns * int64_t(program.steps.size())));
}

StepClock::~StepClock() = default;

void StepClock::begin(size_t step) {
    laps_.push_back({step, 0, nullptr, nullptr});
    if (is_on_device(step)) {
        Lap& lap = laps_.back();
        lap.from = std::make_unique<cuda::Event>();
        lap.to = std::make_unique<cuda::Event>();
        lap.from->record(stream_);
    }
    began_ = std::chrono::steady_clock::now();
}

void StepClock::end(size_t step) {
    const auto now = std::chrono::steady_clock::now();
    Lap& lap = laps_.back();
    if (lap.to)
        lap.to->record(stream_);
    else
        lap.nanoseconds = std::chrono::duration_cast<std::chrono::nanoseconds>(now - began_).count();
}

void StepClock::finish() {
    for (auto lap = laps_.rbegin(); lap != laps_.rend(); ++lap)
        if (lap->to) {
            lap->to->wait();  // and so for all before it
            break;
        }
    for (Lap& lap : laps_)
        if (lap.to) lap.nanoseconds = lap.to->nanoseconds_since(*lap.from);
    const std::lock_guard<std::mutex> locked(guard);
    Taken& own = taken[&program_];
    own.nanoseconds.resize(program_.steps.size(), 0);
    own.runs += from_start_;
    own.numbers.assign(sizes_.numbers.begin(), sizes_.numbers.end());
    for (const Lap& lap : laps_) own.nanoseconds[lap.step] += lap.nanoseconds;
}

void forget_times(const Program& program) {
    const std::lock_guard<std::mutex> locked(guard);
    taken.erase(&program);
}

namespace {

PyObject* time_steps(PyObject*, PyObject* on) {
    const int wanted = PyObject_IsTrue(on);
    if (wanted < 0) return nullptr;
    {
        const std::lock_guard<std::mutex> locked(guard);
        if (wanted) taken.clear();
    }
    timing.store(wanted == 1, std::memory_order_relaxed);
    Py_RETURN_NONE;
}

PyObject* times_steps(PyObject*, PyObject*) { return PyBool_FromLong(is_timing()); }

// The times are copied first: what Python does while the list is made may end programs.
PyObject* timed_programs(PyObject*, PyObject*) {
    std::vector<std::pair<PyRef, Taken>> found;
    {
        const std::lock_guard<std::mutex> locked(guard);
        for (const auto& [program, times] : taken) found.emplace_back(PyRef::share(program->self), times);
    }
    PyRef list = PyRef::take(checked(PyList_New(0)));
    for (const auto& [self, times] : found) {
        const Program& program = *program_of(self.get());
        PyRef rows = PyRef::take(checked(PyTuple_New(Py_ssize_t(times.nanoseconds.size()))));
        for (size_t i = 0; i < times.nanoseconds.size(); ++i)
            PyTuple_SET_ITEM(rows.get(), i, checked(Py_BuildValue("iL", program.steps[i].row, (long long)(times.nanoseconds[i]))));
        PyRef numbers = PyRef::take(checked(PyTuple_New(Py_ssize_t(times.numbers.size()))));
        for (size_t i = 0; i < times.numbers.size(); ++i) PyTuple_SET_ITEM(numbers.get(), i, checked(PyLong_FromLongLong(times.numbers[i])));
        PyRef row = PyRef::take(checked(Py_BuildValue("OLOO", self.get(), (long long)(times.runs), rows.get(), numbers.get())));
        if (PyList_Append(list.get(), row.get())) throw PythonErrorSet();
    }
    return list.release();
}

PyMethodDef functions[] = {
    {"time_steps", boundary<time_steps>, METH_O, "time_steps(on): from now on runs of programs are timed step by step, and times of before are dropped; or are not."},
    {"times_steps", boundary<times_steps>, METH_NOARGS, "times_steps() -> whether runs are timed."},
    {"timed_programs", boundary<timed_programs>, METH_NOARGS,
     "timed_programs() -> [(program, runs, ((row of make_program's steps, nanoseconds of all runs), ...), numbers of the last call), ...] since time_steps(True)."},
    {nullptr},
};

}  // namespace

bool init_step_clock(PyObject* module) { return PyModule_AddFunctions(module, functions) == 0; }

}  // namespace dynacompile::runtime
