#include "product.h"
// addmm []
// addmm
extern "C" void kernel_addmm(void* const* params) {
  const BlockedProduct<Sizes<f32, 40, false, 30, true>> product = {
    (const f32*)params[1] + (0),
    (const f32*)params[2] + (0),
    (const f32*)params[0] + (0),
    (f32*)params[3] + (0),
    20,
    30,
    1,
    30,
    0,
    40,
  };
  product.run();
}

#include "product.h"
// mm []
// mm
extern "C" void kernel_mm(void* const* params) {
  const BlockedProduct<Sizes<f32, 30, false, 40, false>> product = {
    (const f32*)params[0] + (0),
    (const f32*)params[1] + (0),
    nullptr,
    (f32*)params[2] + (0),
    20,
    40,
    1,
    30,
    0,
    30,
  };
  product.run();
}
