#include "runtime/externs.h"

#include "runtime/packed.h"

#include <ATen/ScalarOps.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/Device.h>
#include <torch/csrc/Dtype.h>
#include <torch/csrc/Layout.h>
#include <torch/csrc/MemoryFormat.h>

#include <algorithm>
#include <iterator>

namespace dynacompile::runtime {
namespace {

using c10::IValue;
using c10::TypeKind;
using c10::TypePtr;

[[noreturn]] void cannot_convert(PyObject* value, const c10::Type& type) {
    raise(PyExc_TypeError, std::string("an extern call's argument of type ") + Py_TYPE(value)->tp_name + " can't be passed as " + type.str());
}

double to_double(PyObject* value) {
    double number = PyFloat_AsDouble(value);
    if (number == -1.0 && PyErr_Occurred()) throw PythonErrorSet();
    return number;
}

IValue convert_number(PyObject* value, const c10::Type& type) {
    if (PyBool_Check(value)) return IValue(value == Py_True);
    if (PyLong_Check(value)) return IValue(to_int(value));
    if (PyFloat_Check(value)) return IValue(to_double(value));
    if (PyComplex_Check(value)) return IValue(c10::complex<double>(PyComplex_RealAsDouble(value), PyComplex_ImagAsDouble(value)));
    cannot_convert(value, type);
}

// Dtypes, layouts and memory formats are ints to the dispatcher.
IValue convert_int(PyObject* value, const c10::Type& type) {
    if (PyLong_Check(value)) return IValue(to_int(value));
    if (THPDtype_Check(value)) return IValue(int64_t(reinterpret_cast<THPDtype*>(value)->scalar_type));
    if (THPLayout_Check(value)) return IValue(int64_t(reinterpret_cast<THPLayout*>(value)->layout));
    if (THPMemoryFormat_Check(value)) return IValue(int64_t(reinterpret_cast<THPMemoryFormat*>(value)->memory_format));
    cannot_convert(value, type);
}

template <typename Element, typename Convert>
IValue convert_list(PyObject* sequence, Convert convert) {
    c10::List<Element> list;
    PyRef fast = PyRef::take(checked(PySequence_Fast(sequence, "an extern call's list argument is no sequence")));
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(fast.get()); ++i)
        list.push_back(convert(PyRef::share(PySequence_Fast_GET_ITEM(fast.get(), i)).get()));  // __index__ may change a list
    return IValue(std::move(list));
}

IValue convert_value(PyObject* value, const c10::Type& type);

IValue convert_list_value(PyObject* value, const c10::Type& list_type) {
    const c10::Type& element = *list_type.containedType(0);
    switch (element.kind()) {
        case TypeKind::IntType:
        case TypeKind::SymIntType:
            if (PyLong_Check(value)) {  // int[2] arguments take one int for all
                c10::List<int64_t> list;
                list.push_back(to_int(value));
                return IValue(std::move(list));
            }
            return convert_list<int64_t>(value, to_int);
        case TypeKind::FloatType:
            return convert_list<double>(value, to_double);
        case TypeKind::BoolType:
            return convert_list<bool>(value, [](PyObject* o) { return o == Py_True; });
        case TypeKind::StringType:
            return convert_list<std::string>(value, to_string);
        case TypeKind::NumberType: {
            c10::List<at::Scalar> list;
            for (Py_ssize_t i = 0; i < PyTuple_Size(value); ++i) list.push_back(convert_number(item(value, i), element).toScalar());
            return IValue(std::move(list));
        }
        case TypeKind::OptionalType: {  // of numbers: lists of tensors are buffers
            c10::impl::GenericList list(list_type.containedType(0));
            for (Py_ssize_t i = 0; i < PyTuple_Size(value); ++i) list.push_back(convert_value(item(value, i), element));
            return IValue(std::move(list));
        }
        default:
            cannot_convert(value, list_type);
    }
}

IValue convert_value(PyObject* value, const c10::Type& type) {
    switch (type.kind()) {
        case TypeKind::OptionalType:
            return value == Py_None ? IValue() : convert_value(value, *type.containedType(0));
        case TypeKind::IntType:
        case TypeKind::SymIntType:
        case TypeKind::ScalarTypeType:
        case TypeKind::LayoutType:
        case TypeKind::MemoryFormatType:
            return convert_int(value, type);
        case TypeKind::FloatType:
        case TypeKind::SymFloatType:
            return IValue(to_double(value));
        case TypeKind::BoolType:
        case TypeKind::SymBoolType:
            if (!PyBool_Check(value)) cannot_convert(value, type);
            return IValue(value == Py_True);
        case TypeKind::NumberType:
            return convert_number(value, type);
        case TypeKind::StringType:
            return IValue(to_string(value));
        case TypeKind::AnyType:  // names of process groups
            return PyUnicode_Check(value) ? IValue(to_string(value)) : convert_number(value, type);
        case TypeKind::DeviceObjType:
            if (!THPDevice_Check(value)) cannot_convert(value, type);
            return IValue(reinterpret_cast<THPDevice*>(value)->device);
        case TypeKind::ListType:
            return convert_list_value(value, type);
        default:
            cannot_convert(value, type);
    }
}

enum class Tensors : uint8_t { one, list, optional_list, number, real, wrapped, numbers, given, wrapped_given };

// Argument `index` of the call takes these buffers' tensors, or these of the call's numbers.
struct Patch {
    size_t index;
    Tensors shape;
    std::vector<int32_t> slots;
    std::vector<Extent> extents = {};
};

bool takes_tensor(const c10::Type& type) {
    return type.kind() == TypeKind::TensorType || (type.kind() == TypeKind::OptionalType && type.containedType(0)->kind() == TypeKind::TensorType);
}

int32_t to_slot(PyObject* value) { return value == Py_None ? -1 : int32_t(to_int(value)); }

at::Tensor tensor_at(Frame& frame, int32_t slot) { return slot < 0 ? at::Tensor() : at::Tensor(frame.tensor(slot)); }

Tensors shape_of_number(const c10::Type& type) {
    const c10::Type& inner = type.kind() == TypeKind::OptionalType ? *type.containedType(0) : type;
    switch (inner.kind()) {
        case TypeKind::IntType:
        case TypeKind::SymIntType:
        case TypeKind::NumberType:
            return Tensors::number;
        case TypeKind::FloatType:
        case TypeKind::SymFloatType:
            return Tensors::real;
        case TypeKind::ListType:
            return Tensors::numbers;
        default:
            raise(PyExc_TypeError, "an extern call's argument of type " + type.str() + " can't be a size");
    }
}

// The place of a float, as link.py marks it.
bool is_real_place(PyObject* value) { return PyFloat_Check(value) && !PyFloat_CheckExact(value); }

Extent real_extent(PyObject* value) { return {0, int32_t(PyFloat_AS_DOUBLE(value))}; }

bool has_places(PyObject* value) {
    if (!PyTuple_Check(value)) return false;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(value); ++i)
        if (is_place(PyTuple_GET_ITEM(value, i))) return true;
    return false;
}

// It gives what it has waited for, which the schedule leaves alone.
bool is_wait(const std::string& name) { return name == "_c10d_functional::wait_tensor" || name == "c10d_functional::wait_tensor"; }

class BoxedCall : public ExternCall {
public:
    BoxedCall(c10::OperatorHandle op, PyObject* args, std::vector<int64_t> outputs, bool in_place)
        : op_(std::move(op)), outputs_(outputs.begin(), outputs.end()), in_place_(in_place) {
        const std::vector<c10::Argument>& schema = op_.schema().arguments();
        if (size_t(PyTuple_Size(args)) != schema.size()) raise(PyExc_TypeError, op_.schema().name() + " takes " + std::to_string(schema.size()) + " arguments");
        for (size_t i = 0; i < schema.size(); ++i) add(i, schema[i], item(args, i));
        for (const c10::Argument& result : op_.schema().returns()) says_new_.push_back(result.alias_info() == nullptr && !is_wait(op_.schema().name()));
        for (const Patch& patch : patches_) std::copy_if(patch.slots.begin(), patch.slots.end(), std::back_inserter(operands_), [](int32_t slot) { return slot >= 0; });
    }

    void call(Frame& frame) const override {
        torch::jit::Stack stack;
        stack.reserve(std::max(template_.size(), outputs_.size()));
        stack.assign(template_.begin(), template_.end());
        for (const Patch& patch : patches_) fill(stack[patch.index], patch, frame);
        op_.callBoxed(stack);
        if (in_place_) return check_written(frame);
        size_t next = 0;
        for (size_t i = 0; i < stack.size(); ++i) {
            IValue& value = stack[i];
            if (value.isTensorList()) {
                for (at::Tensor tensor : value.toTensorVector()) take(frame, next++, std::move(tensor), says_new_[i]);
            } else {
                take(frame, next++, value.isTensor() ? std::move(value).toTensor() : at::Tensor(), says_new_[i]);
            }
        }
        if (next < outputs_.size()) fail(op_.schema().name(), " returned ", next, " values, the schedule takes ", outputs_.size());
    }

    std::vector<int32_t> operands() const override { return operands_; }

private:
    void add(size_t i, const c10::Argument& argument, PyObject* value) {
        const c10::Type& type = *argument.real_type();
        template_.emplace_back();
        if (value == Py_Ellipsis) {
            if (!argument.default_value()) raise(PyExc_TypeError, op_.schema().name() + " needs argument " + argument.name());
            template_.back() = *argument.default_value();
        } else if (takes_tensor(type)) {
            if (PyTuple_Check(value) && is_place(item(value, 0)))
                patches_.push_back({i, Tensors::wrapped, {}, {read_extent(item(value, 0))}});
            else if (PyTuple_Check(value) && is_real_place(item(value, 0)))
                patches_.push_back({i, Tensors::wrapped_given, {}, {real_extent(item(value, 0))}});
            else if (PyTuple_Check(value))
                template_.back() = at::native::wrapped_scalar_tensor(convert_number(item(value, 0), type).toScalar());
            else if (value != Py_None)
                patches_.push_back({i, Tensors::one, {to_slot(value)}});
            else if (type.kind() == TypeKind::TensorType)
                template_.back() = at::Tensor();  // what ATen passes for "no tensor" where the schema has no optional
        } else if (type.kind() == TypeKind::OptionalType && value == Py_None) {
            return;
        } else {
            const c10::Type& list = type.kind() == TypeKind::OptionalType ? *type.containedType(0) : type;
            if (list.kind() == TypeKind::ListType && takes_tensor(*list.containedType(0))) {
                bool optional = list.containedType(0)->kind() == TypeKind::OptionalType;
                Patch patch{i, optional ? Tensors::optional_list : Tensors::list, {}};
                for (Py_ssize_t k = 0; k < PyTuple_Size(value); ++k) patch.slots.push_back(to_slot(item(value, k)));
                patches_.push_back(std::move(patch));
            } else if (is_real_place(value)) {
                patches_.push_back({i, Tensors::given, {}, {real_extent(value)}});
            } else if (is_place(value)) {
                patches_.push_back({i, shape_of_number(type), {}, {read_extent(value)}});
            } else if (has_places(value)) {
                Patch patch{i, Tensors::numbers, {}};
                for (Py_ssize_t k = 0; k < PyTuple_Size(value); ++k) patch.extents.push_back(read_extent(item(value, k)));
                patches_.push_back(std::move(patch));
            } else {
                template_.back() = convert_value(value, type);
            }
        }
    }

    static void fill(IValue& into, const Patch& patch, Frame& frame) {
        switch (patch.shape) {
            case Tensors::one:
                into = IValue(tensor_at(frame, patch.slots[0]));
                break;
            case Tensors::number:
                into = IValue(patch.extents[0].value(frame.sizes.numbers.data()));
                break;
            case Tensors::real:
                into = IValue(double(patch.extents[0].value(frame.sizes.numbers.data())));
                break;
            case Tensors::wrapped:
                into = at::native::wrapped_scalar_tensor(at::Scalar(patch.extents[0].value(frame.sizes.numbers.data())));
                break;
            case Tensors::given:
                into = IValue(real_of(patch.extents[0].value(frame.sizes.numbers.data())));
                break;
            case Tensors::wrapped_given:
                into = at::native::wrapped_scalar_tensor(at::Scalar(real_of(patch.extents[0].value(frame.sizes.numbers.data()))));
                break;
            case Tensors::numbers: {
                c10::List<int64_t> list;
                list.reserve(patch.extents.size());
                for (const Extent& extent : patch.extents) list.push_back(extent.value(frame.sizes.numbers.data()));
                into = IValue(std::move(list));
                break;
            }
            case Tensors::list: {
                c10::List<at::Tensor> list;
                list.reserve(patch.slots.size());
                for (int32_t slot : patch.slots) list.push_back(tensor_at(frame, slot));
                into = IValue(std::move(list));
                break;
            }
            case Tensors::optional_list: {
                c10::List<std::optional<at::Tensor>> list;
                list.reserve(patch.slots.size());
                for (int32_t slot : patch.slots) list.push_back(slot < 0 ? std::nullopt : std::optional<at::Tensor>(tensor_at(frame, slot)));
                into = IValue(std::move(list));
                break;
            }
        }
    }

    void take(Frame& frame, size_t position, at::Tensor tensor, bool says_new) const {
        if (position >= outputs_.size() || outputs_[position] < 0) return;
        if (says_new && is_operand(frame, tensor)) tensor = tensor.clone();
        frame.adopt(outputs_[position], std::move(tensor));
    }

    // Whether what the schema calls new is memory of an operand, as channel_shuffle of one group gives on GPUs: the schedule gives up that memory.
    bool is_operand(Frame& frame, const at::Tensor& tensor) const {
        if (!tensor.defined() || !tensor.has_storage()) return false;
        return std::any_of(operands_.begin(), operands_.end(), [&](int32_t slot) {
            const TensorPtr& operand = frame.tensor(slot);
            return operand && operand->has_storage() && operand->storage().is_alias_of(tensor.storage());
        });
    }

    // An out= overload resizes what does not fit; then its result is not where the schedule looks for it.
    void check_written(Frame& frame) const {
        for (int32_t slot : outputs_) {
            if (slot < 0) continue;
            const Geometry g = frame.geometry(slot);
            if (!same_geometry(*frame.tensor(slot), g.size, g.stride))
                fail(op_.schema().name(), " resized its out= tensor ", frame.program.buffers[slot].name, " to ", frame.tensor(slot)->sizes());
        }
    }

    c10::OperatorHandle op_;
    std::vector<IValue> template_;
    std::vector<Patch> patches_;
    std::vector<int32_t> outputs_, operands_;
    std::vector<bool> says_new_;
    bool in_place_;
};

}  // namespace

std::unique_ptr<ExternCall> make_extern(const std::string& name, const std::string& overload, PyObject* args, std::vector<int64_t> outputs, bool in_place) {
    if (name == packed_name) return make_packed(args, outputs.empty() ? -1 : outputs[0]);
    c10::OperatorHandle op = c10::Dispatcher::singleton().findSchemaOrThrow(name.c_str(), overload.c_str());
    return std::make_unique<BoxedCall>(std::move(op), args, std::move(outputs), in_place);
}

}  // namespace dynacompile::runtime
