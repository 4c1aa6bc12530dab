// add_pow_sub_sqrt []
// add, pow, sub, sqrt, copy_
extern "C" void kernel_add_pow_sub_sqrt(void* const* params) {
  const i64 members = (i64)params[0];
  const i64* const numbers = (const i64*)params[1];
  void* const* const pointers = params + 2;
  const auto member = [=](void* const* params, const i64* own, i64 task0, i64 task1) {
    f32* p0 = (f32*)params[0];
    f32* p1 = (f32*)params[1];
    f32* p2 = (f32*)params[2];
    constexpr int W = lanes_of(4);
    {
      const f32 load_2 = value(p0[0]);
      const f32 add_3 = load_2 + 1.0f;
      const f32 pow_4 = pow(0.9f, add_3);
      const f32 sub_5 = 1.0f - pow_4;
      const f32 pow_7 = pow(0.999f, add_3);
      const f32 sub_8 = 1.0f - pow_7;
      const f32 sqrt_9 = sqrt(sub_8);
      p1[0] = memory<f32>(sub_5);
      p2[0] = memory<f32>(sqrt_9);
      p0[0] = memory<f32>(add_3);
    }
  };
  const auto tasks_of = [=](const i64* own) -> i64 {
    return 1;
  };
  const auto size_of = [=](const i64* own) -> i64 {
    return 1 + 64;
  };
  i64 total = 0;
  for (i64 m = 0; m < members; ++m) total += tasks_of(numbers + m * 0) * size_of(numbers + m * 0);
  parallel_when(total >= 2604, total, [=](i64 first, i64 last) {
    i64 start = 0;
    for (i64 m = 0; m < members && start < last; ++m) {
      const i64* own = numbers + m * 0;
      const i64 tasks = tasks_of(own), size = size_of(own), end = start + tasks * size;
      const i64 task0 = start < first ? (first - start + size - 1) / size : 0, task1 = end > last ? (last - start + size - 1) / size : tasks;
      if (task0 < task1) member(pointers + m * 3, own, task0, task1);
      start = end;
    }
  });
}

// sub_mul_add_div_sqrt [x0:x<n0]
// sub, mul, add, div, sqrt, copy_
extern "C" void kernel_sub_mul_add_div_sqrt(void* const* params) {
  const i64 members = (i64)params[0];
  const i64* const numbers = (const i64*)params[1];
  void* const* const pointers = params + 2;
  const auto member = [=](void* const* params, const i64* own, i64 task0, i64 task1) {
    const i64 n0 = own[0];
    f32* p0 = (f32*)params[0];
    f32* p1 = (f32*)params[1];
    const f32* p2 = (const f32*)params[2];
    const f32* p3 = (const f32*)params[3];
    f32* p4 = (f32*)params[4];
    const f32* p5 = (const f32*)params[5];
    constexpr int W = lanes_of(4);
    const i64 tiles = (n0 + 8191) / 8192;
    {
      i64 tile = task0;
      for (i64 task = task0; task < task1; ++task) {
        const i64 t0 = tile * 8192, t1 = t0 + 8192 < n0 ? t0 + 8192 : n0;
        const f32 load_9 = value(p3[0]);
        const f32 load_18 = value(p5[0]);
        each<W>(t0, t1, [&](i64 x0, auto on) BODY {
          const auto load_0 = load<W>(p0 + x0, on);
          const auto load_1 = load<W>(p1 + x0, on);
          const auto load_2 = load<W>(p2 + x0, on);
          const auto sub_3 = load_2 - load_1;
          const auto mul_5 = sub_3 * 0.1f;
          const auto add_6 = load_1 + mul_5;
          const auto mul_8 = add_6 * 0.001f;
          const auto truediv_10 = mul_8 / load_9;
          const auto load_11 = load<W>(p4 + x0, on);
          const auto mul_13 = load_11 * 0.999f;
          const auto mul_14 = load_2 * load_2;
          const auto mul_15 = mul_14 * 0.001f;
          const auto add_16 = mul_13 + mul_15;
          const auto sqrt_17 = sqrt(add_16);
          const auto truediv_19 = sqrt_17 / load_18;
          const auto add_21 = truediv_19 + 1e-08f;
          const auto truediv_22 = truediv_10 / add_21;
          const auto sub_23 = load_0 - truediv_22;
          store(p0 + x0, sub_23, on);
          store(p1 + x0, add_6, on);
          store(p4 + x0, add_16, on);
        });
        ++tile;
      }
    }
  };
  const auto tasks_of = [=](const i64* own) -> i64 {
    const i64 n0 = own[0];
    const i64 tiles = (n0 + 8191) / 8192;
    return tiles;
  };
  const auto size_of = [=](const i64* own) -> i64 {
    const i64 n0 = own[0];
    const i64 tiles = (n0 + 8191) / 8192;
    return (n0 < 8192 ? n0 : 8192) + 64;
  };
  i64 total = 0;
  for (i64 m = 0; m < members; ++m) total += tasks_of(numbers + m * 1) * size_of(numbers + m * 1);
  parallel_when(total >= 7281, total, [=](i64 first, i64 last) {
    i64 start = 0;
    for (i64 m = 0; m < members && start < last; ++m) {
      const i64* own = numbers + m * 1;
      const i64 tasks = tasks_of(own), size = size_of(own), end = start + tasks * size;
      const i64 task0 = start < first ? (first - start + size - 1) / size : 0, task1 = end > last ? (last - start + size - 1) / size : tasks;
      if (task0 < task1) member(pointers + m * 6, own, task0, task1);
      start = end;
    }
  });
}
