// Conditions on sizes, strides and ints: expressions in postfix form, on a stack of 64-bit numbers.
#include "guards/program.h"

namespace dynacompile {
namespace {

// As INSTRUCTIONS of guards/kinds.py.
enum Count : int64_t { constant, size, stride, value, add, mul, floordiv, mod, max, min, eq, ne, lt, le, gt, ge, both, either, negated, count };
constexpr int deepest = 32;

int arguments(int64_t code) { return code == size || code == stride ? 2 : code == constant || code == value ? 1 : 0; }

int64_t floor_div(int64_t a, int64_t b) { return a / b - (a % b != 0 && (a < 0) != (b < 0)); }

bool int_of(PyObject* object, int64_t& into) {
    if (!PyLong_CheckExact(object)) return false;
    int overflow;
    into = PyLong_AsLongLongAndOverflow(object, &overflow);
    return !overflow;
}

// a = a <code> b; false where the result is no 64-bit number.
bool apply(int64_t code, int64_t& a, int64_t b) {
    switch (code) {
        case add: return !__builtin_add_overflow(a, b, &a);
        case mul: return !__builtin_mul_overflow(a, b, &a);
        case floordiv:
        case mod:
            if (b == 0 || (b == -1 && a == INT64_MIN)) return false;
            a = code == floordiv ? floor_div(a, b) : a - floor_div(a, b) * b;
            return true;
        case max: return a = a > b ? a : b, true;
        case min: return a = a < b ? a : b, true;
        case eq: return a = a == b, true;
        case ne: return a = a != b, true;
        case lt: return a = a < b, true;
        case le: return a = a <= b, true;
        case gt: return a = a > b, true;
        case ge: return a = a >= b, true;
        case both: return a = a && b, true;
        case either: return a = a || b, true;
    }
    return false;
}

}  // namespace

bool shape_holds(const std::vector<int64_t>& program, const std::vector<int>& places, PyObject* const* registers) {
    int64_t stack[deepest];
    int top = 0;
    for (size_t at = 0; at < program.size(); at++) {
        const int64_t code = program[at];
        if (code == constant) {
            stack[top++] = program[++at];
        } else if (code == size || code == stride) {
            PyObject* tensor = registers[places[program[at + 1]]];
            if (!extent_of(tensor, code == stride, program[at + 2], stack[top++])) return false;
            at += 2;
        } else if (code == value) {
            if (!int_of(registers[places[program[++at]]], stack[top++])) return false;
        } else if (code == negated) {
            stack[top - 1] = !stack[top - 1];
        } else {
            top--;
            if (!apply(code, stack[top - 1], stack[top])) return false;
        }
    }
    return stack[0] != 0;
}

bool parse_shape(PyObject* tuple, size_t places, std::vector<int64_t>& into) {
    int depth = 0;
    bool right = tuple != nullptr;
    for (Py_ssize_t i = 0; right && i < PyTuple_GET_SIZE(tuple); i++) {
        const int64_t code = PyLong_AsLongLong(PyTuple_GET_ITEM(tuple, i));
        right = !PyErr_Occurred() && code >= 0 && code < count && i + arguments(code) < PyTuple_GET_SIZE(tuple);
        into.push_back(code);
        for (int n = 0; right && n < arguments(code); n++) into.push_back(PyLong_AsLongLong(PyTuple_GET_ITEM(tuple, ++i)));
        if (PyErr_Occurred()) return false;
        if (right && code != constant && arguments(code)) {
            const int64_t* given = &into[into.size() - arguments(code)];
            right = given[0] >= 0 && given[0] < static_cast<int64_t>(places) && (arguments(code) == 1 || given[1] >= 0);
        }
        depth += arguments(code) ? 1 : code == negated ? 0 : -1;
        right = right && depth >= 1 && depth <= deepest;
    }
    if (right && depth == 1) return true;
    if (!PyErr_Occurred()) PyErr_SetString(PyExc_ValueError, "a shape relation takes an expression in postfix form that leaves one number");
    return false;
}

}  // namespace dynacompile
