// What torch exports about autocast. Its own header, <ATen/autocast_mode.h>, takes ten seconds to compile.
#pragma once
#include <c10/core/DeviceType.h>
#include <c10/core/ScalarType.h>

namespace at::autocast {
at::ScalarType get_autocast_dtype(at::DeviceType device_type);
void set_autocast_dtype(at::DeviceType device_type, at::ScalarType dtype);
bool is_autocast_cache_enabled();
void set_autocast_cache_enabled(bool enabled);
int increment_nesting();
int decrement_nesting();
}  // namespace at::autocast
