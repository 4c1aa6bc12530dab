// What a region knows of the stages of its backward.
#include "runtime/region.h"

namespace dynacompile::runtime {
namespace {

std::vector<Extent> read_extents(PyObject* row) {
    std::vector<Extent> found;
    for (Py_ssize_t i = 0; i < PyTuple_Size(row); ++i) found.push_back(read_extent(item(row, i)));
    return found;
}

}  // namespace

// set_stages(differentiable, ((stage, ((to, index, slot), ...), ((size, stride, example), ...)), ...)), as stages.py writes it.
PyObject* set_stages(PyObject*, PyObject* args) {
    PyObject *differentiable, *rows;
    if (!PyArg_ParseTuple(args, "OO!", &differentiable, &PyTuple_Type, &rows)) return nullptr;
    try {
        std::vector<std::shared_ptr<Region>> stages;
        for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(rows); ++i) {
            PyObject* row = PyTuple_GET_ITEM(rows, i);
            std::shared_ptr<Region> stage = region_of(item(row, 0));
            PyObject *edges = item(row, 1), *hidden = item(row, 2);
            for (Py_ssize_t j = 0; j < PyTuple_Size(edges); ++j) {
                PyObject* edge = item(edges, j);
                stage->edges.push_back({To(to_int(item(edge, 0))), int32_t(to_int(item(edge, 1))), int32_t(to_int(item(edge, 2)))});
            }
            for (Py_ssize_t j = 0; j < PyTuple_Size(hidden); ++j) {
                PyObject* gradient = item(hidden, j);
                if (!is_tensor(item(gradient, 2))) raise(PyExc_TypeError, "the example of a hidden gradient must be a tensor");
                stage->hidden.push_back({read_extents(item(gradient, 0)), read_extents(item(gradient, 1)), tensor_of(impl_of(item(gradient, 2)))});
            }
            stages.push_back(std::move(stage));
        }
        region_of(differentiable)->stages = std::move(stages);
        Py_RETURN_NONE;
    } catch (...) {
        set_python_error();
        return nullptr;
    }
}

// set_gives(differentiable, ((gradient, ...), ...)): those that are final at each stop of its backward program.
PyObject* set_gives(PyObject*, PyObject* args) {
    PyObject *differentiable, *rows;
    if (!PyArg_ParseTuple(args, "OO!", &differentiable, &PyTuple_Type, &rows)) return nullptr;
    try {
        const std::shared_ptr<Region> region = region_of(differentiable);
        std::vector<std::vector<int64_t>> gives;
        for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(rows); ++i) {
            gives.push_back(to_ints(PyTuple_GET_ITEM(rows, i)));
            for (int64_t gradient : gives.back())
                if (gradient < 0 || size_t(gradient) >= region->contract.grads.size()) raise(PyExc_IndexError, "a stop gives no gradient");
        }
        region->gives = std::move(gives);
        Py_RETURN_NONE;
    } catch (...) {
        set_python_error();
        return nullptr;
    }
}

}  // namespace dynacompile::runtime
