// Errors with text made of parts. No streams: where a toolchain links a libstdc++ of its own into an extension, iostreams crash in it.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>
#include <c10/util/ArrayRef.h>
#include <c10/util/Exception.h>

#include <concepts>
#include <string>
#include <string_view>

namespace dynacompile::runtime {

inline std::string text_of(std::string_view text) { return std::string(text); }
inline std::string text_of(std::integral auto number) { return std::to_string(number); }
inline std::string text_of(const std::same_as<c10::Device> auto& device) { return device.str(); }  // no conversion: a Device can be made of a string
inline std::string text_of(c10::ScalarType dtype) { return c10::toString(dtype); }
inline std::string text_of(c10::IntArrayRef numbers) {
    std::string text = "[";
    for (size_t i = 0; i < numbers.size(); ++i) text += (i ? ", " : "") + std::to_string(numbers[i]);
    return text + "]";
}

template <typename... Parts>
std::string concat(const Parts&... parts) {
    return (std::string() + ... + text_of(parts));
}

// Throws torch's error (a RuntimeError in Python); dynacompile's name goes first.
template <typename... Parts>
[[noreturn]] void fail(const Parts&... parts) {
    std::string message = concat("dynacompile: ", parts...);
    C10_THROW_ERROR(Error, message);
}

}  // namespace dynacompile::runtime
