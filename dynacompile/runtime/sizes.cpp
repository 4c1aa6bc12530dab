#include "runtime/sizes.h"

#include <algorithm>

namespace dynacompile::runtime {

namespace {

constexpr int64_t longest_loop = (INT64_C(1) << 31) - (1 << 17);  // LONGEST of index.py

int64_t floor_div(int64_t a, int64_t b) { return a / b - (a % b != 0 && (a < 0) != (b < 0)); }

[[noreturn]] void too_large() { fail("the sizes and ints of this call give a number of more than 64 bits. Compile it with dynamic=False"); }

int64_t apply(Operation operation, int64_t a, int64_t b) {
    int64_t result;
    switch (operation) {
        case Operation::add:
            if (__builtin_add_overflow(a, b, &result)) too_large();
            return result;
        case Operation::mul:
            if (__builtin_mul_overflow(a, b, &result)) too_large();
            return result;
        case Operation::floordiv:
        case Operation::mod:
            if (b == 0) fail("a size is divided by zero");
            if (b == -1 && a == INT64_MIN) too_large();
            return operation == Operation::floordiv ? floor_div(a, b) : a - b * floor_div(a, b);
        case Operation::min:
            return std::min(a, b);
        case Operation::max:
            return std::max(a, b);
        default:
            fail("unknown operation on sizes");
    }
}

int64_t evaluate(const std::vector<int64_t>& code, const int64_t* numbers) {
    c10::SmallVector<int64_t, 16> stack;
    for (size_t i = 0; i + 1 < code.size(); i += 2) {
        Operation operation = Operation(code[i]);
        if (operation == Operation::number) {
            stack.push_back(code[i + 1]);
        } else if (operation == Operation::symbol) {
            stack.push_back(numbers[code[i + 1]]);
        } else {
            int64_t b = stack.pop_back_val(), a = stack.pop_back_val();
            stack.push_back(apply(operation, a, b));
        }
    }
    return stack.back();
}

}  // namespace

void Sizes::measure(c10::TensorImpl* const* inputs, const int64_t* integers, CallSizes& into) const {
    for (const Source& s : sources) {
        int64_t value;
        if (s.dimension < 0) {
            if (!integers) fail("input ", s.input, " of a compiled program must be a number");
            value = integers[s.input];
        } else {
            const c10::TensorImpl* tensor = inputs[s.input];
            if (!tensor) fail("input ", s.input, " of a compiled program must be a tensor");
            c10::IntArrayRef shown = s.stride ? tensor->strides() : tensor->sizes();
            if (size_t(s.dimension) >= shown.size()) fail("input ", s.input, " of a compiled program has ", shown.size(), " dimensions");
            value = shown[s.dimension];
        }
        if (value < s.low || value > s.high)
            fail("the size ", s.name, " is ", value, " in input ", s.input, ", compiled for ", s.low, " to ", s.high);
        into.numbers.push_back(value);
    }
    for (const std::vector<int64_t>& code : codes) into.numbers.push_back(evaluate(code, into.numbers.data()));
    for (const Extent& extent : longest)
        if (extent.value(into.numbers.data()) > longest_loop)
            fail("the sizes of this call make a loop over ", extent.value(into.numbers.data()), " elements, where a program for changing sizes counts to ",
                 longest_loop, ". Compile it with dynamic=False");
    for (const auto& [input, wanted] : checks)
        if (!integers || integers[input] != wanted.value(into.numbers.data()))
            fail("input ", input, " of a compiled program must be ", wanted.value(into.numbers.data()));
}

}  // namespace dynacompile::runtime
