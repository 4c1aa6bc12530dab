// batch_stats [x0:x<48 r0:r<70]
// batch_stats  /users/model.py:7 in forward
extern "C" void kernel_batch_stats(void* const* params) {
  const f32* x = (const f32*)params[0];
  f32* running = (f32*)params[1];
  f32* out = (f32*)params[2];
  constexpr int W = lanes_of(4);
  struct Part0 {
    alignas(64) f32 sum_1[48];
    void clear() {
      each<W>(0, 48, [&](i64 t, auto) BODY {
        put(sum_1 + t, all<W>(0.0f));
      });
    }
    void merge(const Part0& other) {
      each<W>(0, 48, [&](i64 t, auto) BODY {
        put(sum_1 + t, get<W>(sum_1 + t) + get<W>(other.sum_1 + t));
      });
    }
  };
  struct Total0 : Part0 {
    alignas(64) f32 sum_1_lost[48];
    void clear() {
      Part0::clear();
      each<W>(0, 48, [&](i64 t, auto) BODY {
        put(sum_1_lost + t, all<W>(0.0f));
      });
    }
    void take(const Part0& other) {
      each<W>(0, 48, [&](i64 t, auto) BODY {
        auto sum_1_exact = exact(get<W>(sum_1 + t), get<W>(sum_1_lost + t));
        sum_1_exact.add(get<W>(other.sum_1 + t));
        put(sum_1 + t, sum_1_exact.sum);
        put(sum_1_lost + t, sum_1_exact.lost);
      });
    }
    void settle() {
      each<W>(0, 48, [&](i64 t, auto) BODY {
        put(sum_1 + t, exact(get<W>(sum_1 + t), get<W>(sum_1_lost + t)).value());
      });
    }
  };
  {
    alignas(64) f32 truediv_3_x[48];
    constexpr i64 t0 = 0, t1 = 48;
    Part0 part0;
    part0.clear();
    {
      i64 s = 0;
      for (; s + 4 <= 70; s += 4) {
        each<W>(t0, t1, [&](i64 x0, auto on) BODY {
          auto sum_1_sum = get<W>(part0.sum_1 + (x0 - t0));
          decltype(sum_1_sum) sum_1_pair[2];
          {
            const i64 r0 = s + 0;
            const auto load_0 = load<W>(x + r0 * 48 + x0, on);
            sum_1_pair[0] = load_0;
          }
          {
            const i64 r0 = s + 1;
            const auto load_0 = load<W>(x + r0 * 48 + x0, on);
            sum_1_pair[0] = sum_1_pair[0] + load_0;
          }
          {
            const i64 r0 = s + 2;
            const auto load_0 = load<W>(x + r0 * 48 + x0, on);
            sum_1_pair[1] = load_0;
          }
          {
            const i64 r0 = s + 3;
            const auto load_0 = load<W>(x + r0 * 48 + x0, on);
            sum_1_pair[1] = sum_1_pair[1] + load_0;
          }
          put(part0.sum_1 + (x0 - t0), sum_1_sum + (sum_1_pair[0] + sum_1_pair[1]));
        });
      }
      for (; s < 70; ++s) {
        const i64 r0 = s;
        each<W>(t0, t1, [&](i64 x0, auto on) BODY {
          const auto load_0 = load<W>(x + r0 * 48 + x0, on);
          put(part0.sum_1 + (x0 - t0), get<W>(part0.sum_1 + (x0 - t0)) + load_0);
        });
      }
    }
    each<W>(t0, t1, [&](i64 x0, auto on) BODY {
      const auto sum_1 = get<W>(part0.sum_1 + (x0 - t0));
      const auto truediv_3 = sum_1 / 70.0f;
      put(truediv_3_x + (x0 - t0), truediv_3);
    });
    for (i64 s = 0; s < 70; ++s) {
      const i64 r0 = s;
      each<W>(t0, t1, [&](i64 x0, auto on) BODY {
        const auto load_0 = load<W>(x + r0 * 48 + x0, on);
        const auto truediv_3 = get<W>(truediv_3_x + (x0 - t0));
        const auto sub_11 = load_0 - truediv_3;
        store(out + r0 * 48 + x0, sub_11, on);
      });
    }
    each<W>(t0, t1, [&](i64 x0, auto on) BODY {
      const auto truediv_3 = get<W>(truediv_3_x + (x0 - t0));
      const auto load_4 = load<W>(running + x0, on);
      const auto mul_6 = load_4 * 0.9f;
      const auto mul_8 = truediv_3 * 0.1f;
      const auto add_9 = mul_6 + mul_8;
      store(running + x0, add_9, on);
    });
  }
}
