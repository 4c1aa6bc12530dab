// What a replay of a recorded CUDA graph needs around it: fixed addresses checked, inputs copied in, outputs handed out.
//
// A graph writes its outputs to the same memory at every replay. Each replay hands that memory out in fresh storages and remembers them
// weakly; before the next one, a storage that is still alive moves out: its contents are copied and the storage is pointed to the copy, so
// that every tensor, view and saved variable over it stays right.
#include "runtime/program.h"

#include <ATen/ops/copy_ops.h>
#include <c10/core/DeviceGuard.h>

#include <structmember.h>

#include <cstddef>

namespace dynacompile::runtime {
namespace {

using StorageRef = c10::intrusive_ptr<c10::StorageImpl>;
using WeakStorage = c10::weak_intrusive_ptr<c10::StorageImpl>;

// The deleter marks graph memory; its context keeps the graph's block alive.
void release_block(void* block) { delete static_cast<StorageRef*>(block); }

bool is_graph_memory(const c10::TensorImpl& tensor) { return tensor.has_storage() && tensor.storage().data_ptr().get_deleter() == release_block; }

StorageRef hand_out(const StorageRef& block) {
    c10::DataPtr pointer(block->mutable_data(), new StorageRef(block), release_block, block->device());
    return c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), block->nbytes(), std::move(pointer), block->allocator(), false);
}

void move_out(StorageRef storage) {
    c10::OptionalDeviceGuard guard;
    if (storage->device().is_cuda()) guard.reset_device(storage->device());
    Buffer bytes;
    bytes.meta = caffe2::TypeMeta::Make<uint8_t>();
    bytes.device = storage->device();
    bytes.size = {int64_t(storage->nbytes())};
    bytes.stride = {1};
    c10::Storage fresh = make_storage(storage->nbytes(), storage->device(), true);
    at::Tensor to{make_tensor(bytes, fresh, 0)};
    at::_ops::copy_::call(to, at::Tensor(make_tensor(bytes, c10::Storage(storage), 0)), false);
    storage->set_data_ptr(fresh.set_data_ptr(c10::DataPtr(nullptr, storage->device())));
}

struct Copied {
    int32_t input;
    bool back;  // the graph writes to it
    TensorPtr buffer;
};

struct Fixed {
    int32_t input;
    const void* address;
};

// block: index of its memory, with `sample` for the geometry; or -1 and an input that it is (sample undefined) or a view of.
struct Handed {
    int32_t block = -1;
    int32_t input = -1;
    TensorPtr sample;
    std::vector<int64_t> size, stride;
    int64_t offset = 0;
    caffe2::TypeMeta meta;
    bool whole = false;
};

struct Replay {
    std::vector<Copied> copied;
    std::vector<Fixed> fixed;
    std::vector<Handed> outputs;
    std::vector<StorageRef> blocks;
    std::vector<WeakStorage> out;
    size_t inputs = 0;

    // The first input that is not where the graph reads it, or -1: then the inputs are in place and the graph may run.
    int64_t prepare(PyObject* const* args) {
        for (const Fixed& f : fixed)
            if (impl_of(args[f.input])->data() != f.address) return f.input;
        BelowAutograd below;
        for (const WeakStorage& weak : out)
            if (StorageRef alive = weak.lock()) move_out(std::move(alive));
        out.clear();
        for (const Copied& c : copied) {
            at::Tensor buffer(c.buffer);
            at::_ops::copy_::call(buffer, tensor_of(impl_of(args[c.input])), true);
        }
        return -1;
    }

    PyObject* finish(PyObject* const* args) {
        {
            BelowAutograd below;
            for (const Copied& c : copied) {
                if (!c.back) continue;
                at::Tensor live = tensor_of(impl_of(args[c.input]));
                at::_ops::copy_::call(live, at::Tensor(c.buffer), true);
            }
        }
        std::vector<StorageRef> fresh;
        for (const StorageRef& block : blocks) {
            fresh.push_back(hand_out(block));
            out.emplace_back(fresh.back());
        }
        PyRef result = PyRef::take(checked(PyTuple_New(outputs.size())));
        for (size_t i = 0; i < outputs.size(); ++i) PyTuple_SET_ITEM(result.get(), i, output(outputs[i], args, fresh));
        return result.release();
    }

    PyObject* output(const Handed& h, PyObject* const* args, const std::vector<StorageRef>& fresh) const {
        if (h.whole) return Py_NewRef(args[h.input]);
        if (h.input >= 0) return wrap(at::Tensor(make_alias(impl_of(args[h.input]), h.size, h.stride, h.offset, h.meta)));
        if (h.block < 0) return wrap(h.sample ? at::Tensor(h.sample) : at::Tensor());
        const c10::TensorImpl& s = *h.sample;
        Buffer b;
        b.meta = s.dtype();
        b.device = s.device();
        b.size = s.sizes().vec();
        b.stride = s.strides().vec();
        return wrap(at::Tensor(make_tensor(b, c10::Storage(fresh[h.block]), s.storage_offset())));
    }
};

struct ReplayObject {
    PyObject_HEAD Replay* replay;
};

PyTypeObject* replay_type = nullptr;

Replay& replay_of(PyObject* self) { return *reinterpret_cast<ReplayObject*>(self)->replay; }

void check_args(const Replay& replay, PyObject* const* args, Py_ssize_t count) {
    if (size_t(count) != replay.inputs)
        raise(PyExc_TypeError, "the recorded graph takes " + std::to_string(replay.inputs) + " inputs, not " + std::to_string(count));
    auto tensor_at = [&](int32_t input) {
        if (input >= 0 && !is_tensor(args[input])) raise(PyExc_TypeError, "input " + std::to_string(input) + " of a recorded graph must be a tensor");
    };
    for (const Fixed& f : replay.fixed) tensor_at(f.input);
    for (const Copied& c : replay.copied) tensor_at(c.input);
    for (const Handed& h : replay.outputs) tensor_at(h.input);
}

PyObject* prepare(PyObject* self, PyObject* const* args, Py_ssize_t count) {
    try {
        check_args(replay_of(self), args, count);
        return PyLong_FromLongLong(replay_of(self).prepare(args));
    } catch (...) {
        set_python_error();
        return nullptr;
    }
}

PyObject* finish(PyObject* self, PyObject* const* args, Py_ssize_t count) {
    try {
        check_args(replay_of(self), args, count);
        return replay_of(self).finish(args);
    } catch (...) {
        set_python_error();
        return nullptr;
    }
}

TensorPtr tensor_item(PyObject* object) {
    if (!is_tensor(object)) raise(PyExc_TypeError, std::string("expected a tensor, got ") + Py_TYPE(object)->tp_name);
    return TensorPtr::reclaim_copy(impl_of(object));
}

// Rows of an output: None; a tensor of the graph's own memory; ("held", tensor); ("input", i); ("view", i, size, stride, offset, tensor of the dtype).
Handed read_handed(PyObject* row, std::vector<StorageRef>& blocks) {
    Handed h;
    if (row == Py_None) return h;
    if (is_tensor(row)) {
        h.sample = tensor_item(row);
        StorageRef block = h.sample->storage().getWeakStorageImpl().lock();
        while (size_t(++h.block) < blocks.size() && blocks[h.block] != block) {
        }
        if (size_t(h.block) == blocks.size()) blocks.push_back(std::move(block));
        return h;
    }
    std::string kind = to_string(item(row, 0));
    if (kind == "held") {
        h.sample = tensor_item(item(row, 1));
        return h;
    }
    h.input = int32_t(to_int(item(row, 1)));
    h.whole = kind == "input";
    if (!h.whole) {
        h.size = to_ints(item(row, 2));
        h.stride = to_ints(item(row, 3));
        h.offset = to_int(item(row, 4));
        h.meta = tensor_item(item(row, 5))->dtype();
    }
    return h;
}

// make_replay(inputs, copied: ((input, buffer, written), ...), fixed: ((input, tensor), ...), outputs) -> Replay
PyObject* make_replay(PyObject*, PyObject* args) {
    Py_ssize_t inputs;
    PyObject *copied, *fixed, *outputs;
    if (!PyArg_ParseTuple(args, "nO!O!O!", &inputs, &PyTuple_Type, &copied, &PyTuple_Type, &fixed, &PyTuple_Type, &outputs)) return nullptr;
    try {
        auto replay = std::make_unique<Replay>();
        replay->inputs = size_t(inputs);
        auto input_at = [&](PyObject* number) {
            int64_t input = to_int(number);
            if (input < 0 || input >= inputs) raise(PyExc_IndexError, "a recorded graph has no such input");
            return int32_t(input);
        };
        for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(copied); ++i) {
            PyObject* row = PyTuple_GET_ITEM(copied, i);
            replay->copied.push_back({input_at(item(row, 0)), PyObject_IsTrue(item(row, 2)) == 1, tensor_item(item(row, 1))});
        }
        for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(fixed); ++i) {
            PyObject* row = PyTuple_GET_ITEM(fixed, i);
            replay->fixed.push_back({input_at(item(row, 0)), tensor_item(item(row, 1))->data()});
        }
        for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(outputs); ++i) {
            replay->outputs.push_back(read_handed(PyTuple_GET_ITEM(outputs, i), replay->blocks));
            if (replay->outputs.back().input >= int32_t(inputs)) raise(PyExc_IndexError, "a recorded graph has no such input");
        }
        PyObject* self = checked(replay_type->tp_alloc(replay_type, 0));
        reinterpret_cast<ReplayObject*>(self)->replay = replay.release();
        return self;
    } catch (...) {
        set_python_error();
        return nullptr;
    }
}

PyObject* graph_memory(PyObject*, PyObject* tensor) {
    if (!is_tensor(tensor)) Py_RETURN_FALSE;
    return PyBool_FromLong(is_graph_memory(*impl_of(tensor)));
}

void free_replay(PyObject* self) noexcept {
    PyTypeObject* type = Py_TYPE(self);
    delete reinterpret_cast<ReplayObject*>(self)->replay;
    type->tp_free(self);
    Py_DECREF(type);
}

PyMethodDef methods[] = {
    {"prepare", as_method<prepare>(), METH_FASTCALL,
     "Puts the inputs where the graph reads them; -1, or the number of an input whose address is not the recorded one."},
    {"finish", as_method<finish>(), METH_FASTCALL, "Copies mutated inputs back and returns the outputs."},
    {nullptr},
};

PyType_Slot slots[] = {
    {Py_tp_doc, const_cast<char*>("The memory around a recorded graph: prepare(*inputs), run the graph, finish(*inputs).")},
    {Py_tp_dealloc, reinterpret_cast<void*>(free_replay)},
    {Py_tp_methods, methods},
    {0, nullptr},
};

PyType_Spec spec = {"dynacompile_native.Replay", sizeof(ReplayObject), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, slots};

PyMethodDef functions[] = {
    {"make_replay", boundary<make_replay>, METH_VARARGS, "make_replay(inputs, copied, fixed, outputs) -> Replay"},
    {"is_graph_memory", boundary<graph_memory>, METH_O, "Whether a tensor's memory belongs to a recorded graph, so that its address is the same at every replay."},
    {nullptr},
};

}  // namespace
}  // namespace dynacompile::runtime

bool init_graph_memory(PyObject* module) {
    using namespace dynacompile::runtime;
    replay_type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&spec));
    return replay_type && !PyModule_AddFunctions(module, functions);
}
