// Sizes that differ from call to call: symbols that a call's inputs show, and what is computed of them, once per call.
#pragma once

#include "runtime/messages.h"

#include <c10/core/TensorImpl.h>
#include <c10/util/SmallVector.h>

#include <algorithm>
#include <cstdint>
#include <vector>

namespace dynacompile::runtime {

// A number that is the same in every call, or the place of one of a call's numbers.
struct Extent {
    int64_t number = 0;
    int32_t place = -1;

    int64_t value(const int64_t* numbers) const { return place < 0 ? number : numbers[place]; }
};

// Where a call shows a symbol: an input that is the number (dimension -1; a float as its bits), or an input's size or stride along a dimension.
struct Source {
    int32_t input = 0;
    int32_t dimension = -1;
    bool stride = false;
    int64_t low = 0, high = 0;
    std::string name;
};

// Steps over a stack, as sizes.py writes them: (operation, operand), ...
enum class Operation : int64_t { number, symbol, add, mul, floordiv, mod, min, max };

struct Geometry {
    c10::IntArrayRef size, stride;
    int64_t offset = 0;
    int64_t numel = 0;
    size_t extent = 0;  // bytes from element 0 of the root's memory to behind the last element of this geometry
};

// The numbers of one call: the symbols' values, what is computed of them, and the geometry of each buffer that depends on them.
struct CallSizes {
    c10::SmallVector<int64_t, 24> numbers;
    c10::SmallVector<int64_t, 96> geometry;
    int64_t largest = 0;  // elements of the largest of those buffers
};

// What a program knows of its sizes; empty where none differs.
struct Sizes {
    std::vector<Source> sources;
    std::vector<std::vector<int64_t>> codes;  // of the numbers behind the symbols: the n-th may use all before it
    std::vector<std::pair<int32_t, Extent>> checks;  // integer inputs, and what they must be
    std::vector<Extent> longest;  // what kernels count with 32 bits
    std::vector<bool> read;  // inputs that sources and checks need: as numbers

    bool wants_integers() const { return std::find(read.begin(), read.end(), true) != read.end(); }
    bool any() const { return !sources.empty() || !checks.empty(); }
    // Appends a call's numbers. inputs: tensors, null for what is none; integers: by input, read where an input is a number.
    void measure(c10::TensorImpl* const* inputs, const int64_t* integers, CallSizes& into) const;
};

}  // namespace dynacompile::runtime
