// Products of float32 matrices with many rows and a second operand that fits a core's cache. That is copied into panels of columns first, in the order
// in which it is read (Goto and van de Geijn 2008); the rows of the first operand stay where they are. A block of results stays in registers until its
// sums are whole. Who computes a block changes no result.
//
// Included by kernels that have a product alone.
#pragma once
#include "vecmath.h"

namespace {

// N x K: of the second operand. A_APART: from one row of the first operand to the next. Turned: the second operand's columns are consecutive, not its rows.
template <int N_, int K_, int A_APART_, bool Turned_> struct Sizes {
  static constexpr bool Turned = Turned_;
  static constexpr int W = lanes_of(4), N = N_, K = K_, A_APART = A_APART_, V = 2, R = W == 16 ? 14 : 6, Panel = V * W, Panels = (N + Panel - 1) / Panel;
};

template <class S> struct RowsProduct {
  const f32 *a, *b, *added;  // added: one row for all, or rows, or nullptr
  f32* out;
  i64 rows, b_apart, added_apart, out_apart;

  static constexpr int W = S::W, V = S::V, Panel = S::Panel, Part = 256;
  using vector = vec<f32, W>;

  // Panel p: for each k, the columns p * Panel ..., with zeros behind the last.
  INLINE void pack(f32* to, i64 p) const {
    const i64 first = p * Panel, count = S::N - first < Panel ? S::N - first : Panel;
    if (count < Panel)
      for (i64 i = 0; i < (i64)S::K * Panel; i += W) write(to + i, vector{});
    if constexpr (S::Turned) transposed<W>(to, Panel, b + first * b_apart, b_apart, S::K, count);
    else
      for (i64 k = 0; k < S::K; ++k)
        for (i64 c = 0; c < count; c += W) {
          const f32* const from = b + k * b_apart + first + c;
          write(to + k * Panel + c, count - c >= W ? load<W>(from, All{}) : load<W>(from, First{(int)(count - c)}));
        }
  }
  // R rows from `row` on of the columns from `column` on. Sums of Part products are added to those before, which keeps their rounding small.
  template <int R> INLINE void block(const f32* packed, i64 row, i64 column) const {
    for (i64 first = 0; first < S::K; first += Part) {
      vector sums[R][V] = {};
      sum<R>(sums, a + row * S::A_APART + first, packed + first * Panel, S::K - first < Part ? S::K - first : Part);
#pragma GCC unroll 2
      for (int v = 0; v < V; ++v) {
        const i64 from = column + v * W, left = S::N - from;
        if (S::N % Panel == 0 || left >= W) add<R>(sums, v, row, from, first, All{});
        else if (left > 0) add<R>(sums, v, row, from, first, First{(int)left});
      }
    }
  }
  template <int R> INLINE void sum(vector (&sums)[R][V], const f32* from, const f32* packed, i64 count) const {
#pragma GCC unroll 2
    for (i64 k = 0; k < count; ++k) {
      vector right[V];
#pragma GCC unroll 2
      for (int v = 0; v < V; ++v) right[v] = read<W>(packed + k * Panel + v * W);
#pragma GCC unroll 14
      for (int r = 0; r < R; ++r) {
        const auto left = all<W>(from[r * S::A_APART + k]);
#pragma GCC unroll 2
        for (int v = 0; v < V; ++v) sums[r][v] = fma(left, right[v], sums[r][v]);
      }
    }
  }
  template <int R, class On> INLINE void add(const vector (&sums)[R][V], int v, i64 row, i64 column, i64 first, On on) const {
#pragma GCC unroll 14
    for (int r = 0; r < R; ++r) {
      f32* const to = out + (row + r) * out_apart + column;
      if (first) store(to, load<W>((const f32*)to, on) + sums[r][v], on);
      else if (added) store(to, sums[r][v] + load<W>(added + (row + r) * added_apart + column, on), on);
      else store(to, sums[r][v], on);
    }
  }
  template <int R> OUTLINED void rows_of(const f32* packed, i64 row) const {
    for (i64 p = 0; p < S::Panels; ++p) block<R>(packed + p * S::K * Panel, row, p * Panel);
  }
  void run() const {
    const Scratch<f32> memory((i64)S::Panels * S::K * Panel);
    f32* const packed = memory.data;
    parallel<true>(S::Panels, [*this, packed](i64 begin, i64 end) {
      for (i64 p = begin; p < end; ++p) pack(packed + p * S::K * Panel, p);
    });
    parallel<true>((rows + S::R - 1) / S::R, [*this, packed](i64 begin, i64 end) {
      i64 row = begin * S::R;
      const i64 last = end * S::R < rows ? end * S::R : rows;
      for (; row + S::R <= last; row += S::R) rows_of<S::R>(packed, row);
      for (; row + 4 <= last; row += 4) rows_of<4>(packed, row);
      for (; row < last; ++row) rows_of<1>(packed, row);
    });
  }
};

}  // namespace
