// A program that tries the installed C++ compiler on what kernels are made of: vectors of constants that loops are unrolled into, comparisons
// turned to masks, selections, conversions between widths, ends of rows, results across lanes. Each result is compared with a scalar one whose
// operands the compiler cannot see. The exit status is the number of the first pattern that went wrong, 0 where all are right.
#pragma once
#include "vecmath.h"

// What is tried is optimized as kernels are; what only checks results is not worth the compiler's time, which a first call may have to wait for.
#define TRIED __attribute__((hot)) OUTLINED
#define CHECKING __attribute__((cold))

namespace {

volatile i64 opaque_zero = 0;

template <class T> INLINE auto scalar(T x) {
  if constexpr (same<T, bool>) return (i32)x;
  else return value(x);
}
template <class T> CHECKING OUTLINED bool differs(const T* out, f64 expected) { return scalar(*out) != scalar((T)memory<T>((value_type<T>)expected)); }
// Lanes in which `out` differs from expected(column), all of them small whole numbers.
template <class T, class F> CHECKING int differing(const T* out, i64 n, F expected) {
  int wrong = 0;
  for (i64 j = 0; j < n; ++j) wrong += differs(out + j, (f64)expected(j + opaque_zero));
  return wrong;
}
template <class T> constexpr int width = lanes_of(sizeof(T) < 4 ? 4 : sizeof(T));
template <class T> using arithmetic = value_type<T>;
template <class T> using counter = typename Signed<sizeof(T) == 8 ? 8 : 4>::type;

// Rows of a triangle of constants: every comparison of a counter with a row's number, as a kernel over N x N writes it.
template <class T, int N, int How> TRIED void triangle(T* out) {
  constexpr int W = width<T>;
  for (i64 row = 0; row < N; ++row)
    each<W>(0, N, [=](i64 j, auto on) BODY {
      using Place = counter<T>;
      const auto at = iota<W>((Place)j, (Place)1);
      const auto edge = all<W>((Place)row);
      const auto mask = How == 0 ? le(at, edge) : How == 1 ? lt(edge, at) : How == 2 ? eq(at, edge) : ne(at, edge);
      if constexpr (same<T, bool>) store(out + row * N + j, mask, on);
      else store(out + row * N + j, where(mask, all<W>((arithmetic<T>)1), all<W>((arithmetic<T>)0)), on);
    });
}
// One row of it, whose number is a constant.
template <class T, int Edge> TRIED void step(T* out) {
  constexpr int W = width<T>;
  using Place = counter<T>;
  store(out, where(lt(iota<W>((Place)0, (Place)1), all<W>((Place)Edge)), all<W>((arithmetic<T>)1), all<W>((arithmetic<T>)0)), All{});
}
// The same between two edges, the selected values being loaded.
template <class T, int N> TRIED void band(T* out, const T* x) {
  constexpr int W = width<T>;
  for (i32 row = 0; row < N; ++row)
    each<W>(0, N, [=](i64 j, auto on) BODY {
      const auto at = iota<W>((i32)j, 1);
      const auto mask = le(at, all<W>(row)) & lt(all<W>(row - 3), at);
      store(out + row * N + j, where(mask, load<W>(x + j, on), all<W>((arithmetic<T>)0)), on);
    });
}
// Sums over masks, and positions of the greatest.
template <int N> TRIED void counts(f32* sums, i64* places, const f32* x) {
  constexpr int W = lanes_of(4);
  for (i64 row = 0; row < N; ++row) {
    vec<f32, W> total = {};
    Best<true, vec<f32, W>, vec<i32, W>> best = {all<W>(-__builtin_inff()), all<W>(0x7fffffff)};
    each<W>(0, N, [&](i64 j, auto on) BODY {
      const auto at = iota<W>((i32)j, 1);
      const auto v = where(le(at, all<W>((i32)row)), load<W>(x + j, on), all<W>(0.0f));
      total = on.pick(total + v, total);
      best.take(on.pick(v, best.value), on.pick(at, best.at));
    });
    sums[row] = across_sum(total);
    places[row] = across_best(best).at;
  }
}
// Loads and stores under a mask, and conversions.
template <class T, int N> TRIED void masked(T* out, const f32* x) {
  constexpr int W = lanes_of(4);
  for (i64 row = 0; row < N; ++row)
    each<W>(0, N, [=](i64 j, auto on) BODY {
      const auto mask = lt(iota<W>((i32)j, 1), all<W>((i32)row));
      store_if(mask, out + row * N + j, convert<arithmetic<T>>(load_if<W>(mask, x + j, 7.0f, on)), on);
    });
}

// Short rows of two tensors one after the other, of which a row's number chooses one. GCC 12's loop vectorizer loses a row, without masked loads.
template <class T, int Rows, int Columns> TRIED void joined(T* out, const T* x) {
  constexpr int W = width<T>;
  for (i64 row = 0; row < 2 * Rows; ++row) {
    const i32 at = row;
    const bool first = lt(at, Rows), second = le(Rows, at);
    each<W>(0, Columns, [&](i64 j, auto on) BODY {
      const auto a = (first ? load<W>(x + row * Columns + j, on) : all<W>((arithmetic<T>)0));
      const auto b = (second ? load<W>(x + row * Columns + j + -(Rows * Columns), on) : all<W>((arithmetic<T>)0));
      store(out + row * Columns + j, first ? a : b, on);
    });
  }
}

// Blocks that are transposed: squares of whole vectors, and their rests.
template <class T, int Rows, int Columns> TRIED void turned(T* out, const T* x) { transposed<width<T>>(out, Columns, x, Rows, Rows + opaque_zero, Columns); }

template <class T, int N> CHECKING OUTLINED int wrong_triangles() {
  static T out[N * N];
  int wrong = 0;
  const auto row = [&](auto relation) {
    for (i64 i = 0; i < N; ++i) wrong += differing(out + i * N, N, [=](i64 j) { return (arithmetic<T>)relation(j, i + opaque_zero); });
  };
  triangle<T, N, 0>(out);
  row([](i64 j, i64 i) { return j <= i; });
  triangle<T, N, 1>(out);
  row([](i64 j, i64 i) { return j > i; });
  triangle<T, N, 2>(out);
  row([](i64 j, i64 i) { return j == i; });
  triangle<T, N, 3>(out);
  row([](i64 j, i64 i) { return j != i; });
  return wrong;
}
template <class T> CHECKING OUTLINED int wrong_steps() {
  static T out[width<T>];
  step<T, width<T> / 4>(out);
  const int wrong = differing(out, width<T>, [](i64 j) { return (arithmetic<T>)(j < width<T> / 4); });
  step<T, width<T> / 2>(out);
  return wrong + differing(out, width<T>, [](i64 j) { return (arithmetic<T>)(j < width<T> / 2); });
}
template <class T, int N> CHECKING OUTLINED int wrong_bands() {
  static T out[N * N], x[N];
  for (i64 j = 0; j < N; ++j) x[j] = memory<T>((arithmetic<T>)(j + 1 + opaque_zero));
  band<T, N>(out, x);
  int wrong = 0;
  for (i64 i = 0; i < N; ++i)
    wrong += differing(out + i * N, N, [=](i64 j) { return (arithmetic<T>)(j <= i && j > i - 3 ? j + 1 : 0); });
  return wrong;
}
template <int N> CHECKING OUTLINED int wrong_counts() {
  static f32 sums[N], x[N];
  static i64 places[N];
  for (i64 j = 0; j < N; ++j) x[j] = (f32)(j + 1 + opaque_zero);
  counts<N>(sums, places, x);
  return differing(sums, N, [](i64 i) { return (f32)((i + 1) * (i + 2) / 2); }) + differing(places, N, [](i64 i) { return i; });
}
template <class T, int N> CHECKING OUTLINED int wrong_masked() {
  static T out[N * N];
  static f32 x[N];
  for (i64 j = 0; j < N; ++j) x[j] = (f32)(j + 1 + opaque_zero);
  masked<T, N>(out, x);
  int wrong = 0;
  for (i64 i = 0; i < N; ++i) wrong += differing(out + i * N, N, [=](i64 j) { return (arithmetic<T>)(j < i ? j + 1 : 0); });
  return wrong;
}
template <class T, int Rows, int Columns> CHECKING OUTLINED int wrong_joined() {
  static T out[2 * Rows * Columns], x[Rows * Columns];
  for (i64 j = 0; j < Rows * Columns; ++j) x[j] = memory<T>((arithmetic<T>)(j + 1 + opaque_zero));
  joined<T, Rows, Columns>(out, x);
  return differing(out, 2 * Rows * Columns, [](i64 j) { return (arithmetic<T>)(j % (Rows * Columns) + 1); });
}
template <class T, int Rows, int Columns> CHECKING OUTLINED int wrong_turned() {
  static T out[Rows * Columns], x[Rows * Columns];
  for (i64 j = 0; j < Rows * Columns; ++j) x[j] = memory<T>((arithmetic<T>)((j + opaque_zero) % 127));
  turned<T, Rows, Columns>(out, x);
  int wrong = 0;
  for (i64 r = 0; r < Rows; ++r) wrong += differing(out + r * Columns, Columns, [=](i64 c) { return (arithmetic<T>)((c * Rows + r) % 127); });
  return wrong;
}

}  // namespace

int main() {
  if (wrong_triangles<f32, width<f32>>()) return 1;
  if (wrong_triangles<f64, width<f64>>()) return 2;
  if (wrong_triangles<i64, width<i64> + 3>()) return 3;
  if (wrong_triangles<u8, width<u8>>()) return 4;
  if (wrong_triangles<bool, width<bool>>()) return 5;
  if (wrong_bands<i32, width<i32> + 3>()) return 6;
  if (wrong_bands<bf16, width<bf16>>() || wrong_bands<f16, width<f16>>()) return 7;
  if (wrong_counts<19>()) return 8;
  if (wrong_masked<f32, width<f32>>() || wrong_masked<i16, width<i16>>() || wrong_masked<i32, width<i32> + 3>()) return 9;
  if (wrong_steps<f32>() || wrong_steps<f64>() || wrong_steps<i32>() || wrong_steps<i64>() || wrong_steps<f16>()) return 10;
  if (wrong_turned<f32, 19, 33>() || wrong_turned<f64, 9, 16>() || wrong_turned<bf16, 32, 18>() || wrong_turned<i8, 33, 17>()) return 11;
  if (wrong_joined<f32, 3, 3>() || wrong_joined<f64, 3, 3>() || wrong_joined<i32, 5, 2>() || wrong_joined<u8, 3, 3>() || wrong_joined<bf16, 4, 5>()) return 12;
  return 0;
}
