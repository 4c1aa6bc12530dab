// Expressions over sizes, strides, ints and floats in postfix form, on a stack of numbers: conditions of guards, and numbers that graphs take.
#include "guards/program.h"

#include <cmath>
#include <cstring>

namespace dynacompile {
namespace {

// As INSTRUCTIONS of guards/shapes.py.
enum Count : int64_t {
    constant, size, stride, value, real, given, add, mul, floordiv, mod, max, min, eq, ne, lt, le, gt, ge, both, either, same, sub, truediv, power, decimals, negated,
    neg, absolute, finite, tofloat, trunc, floor, ceil, round, sqrt, exp, log, log2, sin, cos, tan, tanh, count
};
constexpr int deepest = 32;
constexpr double farthest = 4611686018427387904.0;  // of floats that become ints
constexpr int64_t exact = INT64_C(1) << 53;         // ints up to which doubles know each

int arguments(int64_t code) { return code == size || code == stride ? 2 : code <= given ? 1 : 0; }
bool is_unary(int64_t code) { return code >= negated; }

// A 64-bit int, or a double.
struct Number {
    bool is_real = false;
    int64_t whole = 0;
    double part = 0;

    double as_real() const { return is_real ? part : static_cast<double>(whole); }
    bool is_exact_real() const { return is_real || (whole <= exact && whole >= -exact); }
    void become(int64_t number) { is_real = false, whole = number; }
    void become(double number) { is_real = true, part = number; }
    void become(bool truth) { become(static_cast<int64_t>(truth)); }
};

int64_t floor_div(int64_t a, int64_t b) { return a / b - (a % b != 0 && (a < 0) != (b < 0)); }

double bits_of(int64_t bits) {
    double number;
    std::memcpy(&number, &bits, sizeof number);
    return number;
}

bool number_of(PyObject* object, bool is_real, Number& into) {
    if (is_real) {
        if (!PyFloat_CheckExact(object)) return false;
        into.become(PyFloat_AS_DOUBLE(object));
        return true;
    }
    if (!PyLong_CheckExact(object)) return false;
    int overflow;
    into.become(static_cast<int64_t>(PyLong_AsLongLongAndOverflow(object, &overflow)));
    return !overflow;
}

template <class T>
bool compare(int64_t code, T a, T b) {
    switch (code) {
        case eq: return a == b;
        case ne: return a != b;
        case lt: return a < b;
        case le: return a <= b;
        case gt: return a > b;
        default: return a >= b;
    }
}

// a = a <code> b on ints; false where the result is no 64-bit number.
bool apply_whole(int64_t code, Number& result, int64_t b) {
    int64_t& a = result.whole;
    switch (code) {
        case add: return !__builtin_add_overflow(a, b, &a);
        case sub: return !__builtin_sub_overflow(a, b, &a);
        case mul: return !__builtin_mul_overflow(a, b, &a);
        case floordiv:
        case mod:
            if (b == 0 || (b == -1 && a == INT64_MIN)) return false;
            a = code == floordiv ? floor_div(a, b) : a - floor_div(a, b) * b;
            return true;
        case max: return a = a > b ? a : b, true;
        case min: return a = a < b ? a : b, true;
        case both: return a = a && b, true;
        case either: return a = a || b, true;
        case same: return a = a == b, true;
    }
    return a = compare(code, a, b), true;
}

// round(x, digits) as Python rounds: the number whose text is the nearest to x that has so many digits behind the point.
bool round_decimals(double x, int64_t digits, double& result) {
    if (!std::isfinite(x)) return result = x, true;
    char* text = PyOS_double_to_string(x, 'f', static_cast<int>(digits), 0, nullptr);
    if (!text) return PyErr_Clear(), false;
    result = PyOS_string_to_double(text, nullptr, nullptr);
    PyMem_Free(text);
    return !PyErr_Occurred() || (PyErr_Clear(), false);
}

// a = a <code> b; false where there is no such number.
bool apply(int64_t code, Number& a, const Number& b) {
    if (!a.is_real && !b.is_real && code != truediv && code != power) return apply_whole(code, a, b.whole);
    if (code == decimals) {
        double rounded;
        return a.is_real && !b.is_real && round_decimals(a.part, b.whole, rounded) && (a.become(rounded), true);
    }
    if (!a.is_exact_real() || !b.is_exact_real()) return false;  // Python computes with all digits of an int
    const double x = a.as_real(), y = b.as_real();
    switch (code) {
        case add: return a.become(x + y), true;
        case sub: return a.become(x - y), true;
        case mul: return a.become(x * y), true;
        case truediv: return a.become(x / y), true;
        case power: return a.become(std::pow(x, y)), true;
        case max: return a.become(y > x ? y : x), true;
        case min: return a.become(y < x ? y : x), true;
        case same: return a.become(a.is_real == b.is_real && std::memcmp(&x, &y, sizeof x) == 0), true;
        case floordiv:
        case mod:
        case both:
        case either: return false;
    }
    return a.become(compare(code, x, y)), true;
}

bool to_whole(Number& a, double rounded) {
    if (!(std::fabs(rounded) < farthest)) return false;
    a.become(static_cast<int64_t>(rounded));
    return true;
}

bool apply(int64_t code, Number& a) {
    const double x = a.as_real();
    switch (code) {
        case negated: return a.become(!(a.is_real ? a.part != 0 : a.whole != 0)), true;
        case neg:
            if (a.is_real) return a.become(-x), true;
            return !__builtin_sub_overflow(INT64_C(0), a.whole, &a.whole);
        case absolute:
            if (a.is_real) return a.become(std::fabs(x)), true;
            return a.whole >= 0 || !__builtin_sub_overflow(INT64_C(0), a.whole, &a.whole);
        case finite: return a.become(std::isfinite(x)), true;
        case tofloat: return a.become(x), true;
        case trunc: return to_whole(a, std::trunc(x));
        case floor: return to_whole(a, std::floor(x));
        case ceil: return to_whole(a, std::ceil(x));
        case round: return to_whole(a, std::nearbyint(x));
        case sqrt: return a.become(std::sqrt(x)), true;
        case exp: return a.become(std::exp(x)), true;
        case log: return a.become(std::log(x)), true;
        case log2: return a.become(std::log2(x)), true;
        case sin: return a.become(std::sin(x)), true;
        case cos: return a.become(std::cos(x)), true;
        case tan: return a.become(std::tan(x)), true;
        case tanh: return a.become(std::tanh(x)), true;
    }
    return false;
}

// The value of an expression. at: the object of a place. False where an object is not of the kind, or a result is no number.
template <class At>
bool evaluate(const std::vector<int64_t>& program, const At& at, Number& result) {
    Number stack[deepest];
    int top = 0;
    for (size_t i = 0; i < program.size(); i++) {
        const int64_t code = program[i];
        if (code == constant) {
            stack[top++].become(program[++i]);
        } else if (code == given) {
            stack[top++].become(bits_of(program[++i]));
        } else if (code == size || code == stride) {
            int64_t extent;
            if (!extent_of(at(program[i + 1]), code == stride, program[i + 2], extent)) return false;
            stack[top++].become(extent);
            i += 2;
        } else if (code == value || code == real) {
            if (!number_of(at(program[++i]), code == real, stack[top++])) return false;
        } else if (is_unary(code)) {
            if (!apply(code, stack[top - 1])) return false;
        } else {
            top--;
            if (!apply(code, stack[top - 1], stack[top])) return false;
        }
    }
    result = stack[0];
    return true;
}

}  // namespace

bool shape_holds(const std::vector<int64_t>& program, const std::vector<int>& places, PyObject* const* registers) {
    Number result;
    return evaluate(program, [&](int64_t place) { return registers[places[place]]; }, result) && (result.is_real ? result.part != 0 : result.whole != 0);
}

PyObject* number_from(const std::vector<int64_t>& program, PyObject* const* objects) {
    Number result;
    if (!evaluate(program, [&](int64_t place) { return objects[place]; }, result)) return nullptr;
    return result.is_real ? PyFloat_FromDouble(result.part) : PyLong_FromLongLong(result.whole);
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
        if (right && code != constant && code != given && arguments(code)) {
            const int64_t* first = &into[into.size() - arguments(code)];
            right = first[0] >= 0 && first[0] < static_cast<int64_t>(places) && (arguments(code) == 1 || first[1] >= 0);
        }
        depth += arguments(code) ? 1 : is_unary(code) ? 0 : -1;
        right = right && depth >= 1 && depth <= deepest;
    }
    if (right && depth == 1) return true;
    if (!PyErr_Occurred()) PyErr_SetString(PyExc_ValueError, "a shape relation takes an expression in postfix form that leaves one number");
    return false;
}

}  // namespace dynacompile
