#include "attention.h"
// scaled_dot_product_flash_attention_for_cpu []
// _scaled_dot_product_flash_attention_for_cpu
extern "C" void kernel_scaled_dot_product_flash_attention_for_cpu(void* const* params) {
  const AttentionForward<Heads<16, true, false>> attention = {
    {(const f32*)params[0] + (0), {7680, 16, 192}},
    {(const f32*)params[0] + (64), {7680, 16, 192}},
    {(const f32*)params[0] + (128), {7680, 16, 192}},
    {nullptr, {0, 0, 0}},
    {(f32*)params[1] + (0), {2560, 16, 64}},
    {(f32*)params[2] + (0), {160, 1, 4}},
    2,
    4,
    40,
    40,
    (f32)0.25,
  };
  attention.run();
}

#include "attention.h"
// scaled_dot_product_flash_attention_for_cpu_backward []
// _scaled_dot_product_flash_attention_for_cpu_backward
extern "C" void kernel_scaled_dot_product_flash_attention_for_cpu_backward(void* const* params) {
  const AttentionBackward<Heads<16, true, false>> attention = {
    {(const f32*)params[0] + (0), {2560, 640, 16}},
    {(const f32*)params[1] + (0), {7680, 16, 192}},
    {(const f32*)params[1] + (64), {7680, 16, 192}},
    {(const f32*)params[1] + (128), {7680, 16, 192}},
    {(const f32*)params[2] + (0), {2560, 16, 64}},
    {(const f32*)params[3] + (0), {160, 1, 4}},
    {nullptr, {0, 0, 0}},
    {(f32*)params[4] + (0), {2560, 16, 64}},
    {(f32*)params[5] + (0), {2560, 16, 64}},
    {(f32*)params[6] + (0), {2560, 16, 64}},
    2,
    4,
    40,
    40,
    (f32)0.25,
  };
  attention.run();
}
