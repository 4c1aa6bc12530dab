// softmax [x0:x<600 r0:r<1000]
// softmax  /users/model.py:7 in forward
extern "C" void kernel_softmax(void* const* params) {
  const f32* x = (const f32*)params[0];
  f32* out = (f32*)params[1];
  constexpr int W = lanes_of(4);
  struct Part0 {
    f32 max_1;
    INLINE void merge(const Part0& other) {
      max_1 = max(max_1, other.max_1);
    }
  };
  struct Lanes0 {
    decltype(all<W>(-__builtin_inff())) max_1 = all<W>(-__builtin_inff());
    INLINE void merge(const Lanes0& other) {
      max_1 = max(max_1, other.max_1);
    }
    INLINE Part0 part() const { return {across_max(max_1)}; }
  };
  struct Part1 {
    f32 sum_4;
    INLINE void merge(const Part1& other) {
      sum_4 = sum_4 + other.sum_4;
    }
  };
  struct Lanes1 {
    decltype(all<W>(0.0f)) sum_4 = all<W>(0.0f);
    INLINE void merge(const Lanes1& other) {
      sum_4 = sum_4 + other.sum_4;
    }
    INLINE Part1 part() const { return {across_sum(sum_4)}; }
  };
  struct Total1 : Lanes1 {
    decltype(all<W>(0.0f)) sum_4_lost = all<W>(0.0f);
    INLINE void take(const Lanes1& other) {
      auto sum_4_exact = exact(sum_4, sum_4_lost);
      sum_4_exact.add(other.sum_4);
      sum_4 = sum_4_exact.sum, sum_4_lost = sum_4_exact.lost;
    }
    INLINE Part1 part() {
      sum_4 = exact(sum_4, sum_4_lost).value();
      return Lanes1::part();
    }
  };
  parallel<true>(600, [=](i64 task0, i64 task1) {
    alignas(64) f32 exp_3_row[1008];
    for (i64 task = task0; task < task1; ++task) {
      const i64 x0 = task;
      const Part0 part0 = unbroken<Lanes0, 4, W, Ahead>(0, 1000, [&](i64 r0, auto on, auto& a) BODY {
        const auto load_0 = load<W>(x + r0 + x0 * 1000, on);
        a.max_1 = on.pick(max(a.max_1, load_0), a.max_1);
      });
      const f32 max_1 = part0.max_1;
      const Part1 part1 = blocks<Total1, Lanes1, 4, W, Ahead, 16, 1000, true>(0, 1000, [&](i64 r0, auto on, auto& a) BODY {
        const auto load_0 = load<W>(x + r0 + x0 * 1000, on);
        const auto sub_2 = load_0 - max_1;
        const auto exp_3 = exp(sub_2);
        put(exp_3_row + r0, exp_3);
        a.sum_4 = on.pick(a.sum_4 + exp_3, a.sum_4);
      });
      const f32 sum_4 = part1.sum_4;
      each<W>(0, 1000, [&](i64 r0, auto on) BODY {
        const auto exp_3 = get<W>(exp_3_row + r0);
        const auto truediv_5 = exp_3 / sum_4;
        store(out + r0 + x0 * 1000, truediv_5, on);
      });
    }
  });
}
