// Products of matrices of floats in blocks (Goto and van de Geijn 2008). The second operand is copied into panels of columns, in the order in which it is
// read, as float32. The first operand stays where it is where its rows are consecutive float32 numbers, else blocks of its rows are copied. A block of results
// stays in registers until its sums are whole, so that results of 16 bits are rounded once. Who computes a block changes no result.
//
// Included by kernels that have a product alone.
#pragma once
#include "vecmath.h"

namespace {

// T: of all matrices. N: columns. Columns, Turned: those of the first operand, and of the second, are consecutive, not the rows.
// A_APART: from one row of the first operand to the next, where its rows are consecutive.
template <class T_, int N_, bool Columns_, int A_APART_, bool Turned_> struct Sizes {
  using T = T_;
  static constexpr bool Turned = Turned_, Columns = Columns_, Copied = Columns || !same<T, f32>;
  static constexpr int W = lanes_of(4), N = N_, A_APART = A_APART_, V = 2, R = W == 16 ? 14 : 6, Panel = V * W, Panels = (N + Panel - 1) / Panel;
};

template <class S> struct BlockedProduct {
  using T = typename S::T;
  const T *a, *b, *added;  // added: one row for all, or rows, or nullptr
  T* out;
  i64 rows, depth, a_apart, b_apart, added_apart, out_apart;  // a_apart: between its columns, where these are consecutive

  static constexpr int W = S::W, V = S::V, R = S::R, Panel = S::Panel;
  static constexpr i64 Part = 256;                      // products that are summed before they are added to the sum of those before, which keeps its rounding small
  static constexpr i64 Chunk = W == 16 ? 1 << 18 : 1 << 17;  // elements of the second operand that stay in a core's cache while the rows go by
  static constexpr i64 Few = 1 << 16;                   // elements of the first operand that stay there while the panels go by
  static constexpr i64 Wide = 1 << 17;                  // multiplications that are worth several threads
  using vector = vec<f32, W>;

  // Panel p: for each k, the columns p * Panel ..., with zeros behind the last.
  OUTLINED void pack(f32* to, i64 p) const {
    const i64 first = p * Panel, count = S::N - first < Panel ? S::N - first : Panel;
    if (count < Panel)
      for (i64 i = 0; i < depth * Panel; i += W) write(to + i, vector{});
    if constexpr (S::Turned && same<T, f32>) transposed<W>(to, Panel, b + first * b_apart, b_apart, depth, count);
    else if constexpr (S::Turned) {
      alignas(64) T turned[Part * Panel];
      for (i64 k = 0; k < depth; k += Part) {
        const i64 steps = depth - k < Part ? depth - k : Part;
        transposed<W>(turned, Panel, b + first * b_apart + k, b_apart, steps, count);
        for (i64 s = 0; s < steps; ++s) copy(to + (k + s) * Panel, turned + s * Panel, count);
      }
    } else
      for (i64 k = 0; k < depth; ++k) copy(to + k * Panel, b + k * b_apart + first, count);
  }
  INLINE void copy(f32* to, const T* from, i64 count) const {
    for (i64 c = 0; c < count; c += W) write(to + c, count - c >= W ? load<W>(from + c, All{}) : load<W>(from + c, First{(int)(count - c)}));
  }

  // Rows of the first operand as blocks read them: Count rows in parts of Part products, row by row, or, where its columns are consecutive, column by column.
  template <int Count> static constexpr i64 Apart = S::Columns ? 1 : S::Copied ? Part : S::A_APART;
  template <int Count> static constexpr i64 Step = S::Columns ? Count : 1;
  template <int Count> OUTLINED void copy_rows(f32* to, i64 row) const {
    if constexpr (S::Columns)
      for (i64 k = 0; k < depth; ++k, to += Count)
        for (int r = 0; r < Count; r += W) {
          const T* const from = a + k * a_apart + row + r;
          if (Count - r >= W || row + r + W <= rows) write(to + r, load<W>(from, All{}));
          else write(to + r, load<W>(from, First{Count - r}));
        }
    else
      for (i64 first = 0; first < depth; first += Part)
        for (int r = 0; r < Count; ++r) {
          const i64 count = depth - first < Part ? depth - first : Part;
          copy(to + first * Count + r * Part, a + (row + r) * S::A_APART + first, count);
        }
  }
  static constexpr i64 copied(i64 count, i64 depth) { return S::Copied ? count * ((depth + Part - 1) / Part * Part) + 2 * W : 0; }
  template <int Count> INLINE const f32* left_of(const f32* copies, i64 row) const {
    if constexpr (S::Copied) return copies;
    else return a + row * S::A_APART;
  }

  // Count rows from `row` on of the columns from `column` on. A function for each Count, with one loop over k in it: copies for both orders of the walk, or for
  // depths of a single part, would double the time of the build, and are not faster.
  template <int Count> OUTLINED void block(const f32* left, const f32* panel, i64 row, i64 column) const {
    vector sums[Count][V];
    for (i64 first = 0;;) {
      vector part[Count][V] = {};
      sum<Count>(part, left + first * (S::Copied ? Count : 1), panel + first * Panel, depth - first < Part ? depth - first : Part);
#pragma GCC unroll 14
      for (int r = 0; r < Count; ++r)
#pragma GCC unroll 2
        for (int v = 0; v < V; ++v) sums[r][v] = first == 0 ? part[r][v] : sums[r][v] + part[r][v];
      if ((first += Part) >= depth) break;
    }
#pragma GCC unroll 2
    for (int v = 0; v < V; ++v) {
      const i64 from = column + v * W, count = S::N - from;
      if (S::N % Panel == 0 || count >= W) give<Count>(sums, v, row, from, All{});
      else if (count > 0) give<Count>(sums, v, row, from, First{(int)count});
    }
  }
  template <int Count> INLINE void sum(vector (&sums)[Count][V], const f32* left, const f32* panel, i64 count) const {
#pragma GCC unroll 2
    for (i64 k = 0; k < count; ++k) {
      vector right[V];
#pragma GCC unroll 2
      for (int v = 0; v < V; ++v) right[v] = read<W>(panel + k * Panel + v * W);
#pragma GCC unroll 14
      for (int r = 0; r < Count; ++r) {
        const auto one = all<W>(left[r * Apart<Count> + k * Step<Count>]);
#pragma GCC unroll 2
        for (int v = 0; v < V; ++v) sums[r][v] = fma(one, right[v], sums[r][v]);
      }
    }
  }
  template <int Count, class On> INLINE void give(const vector (&sums)[Count][V], int v, i64 row, i64 column, On on) const {
#pragma GCC unroll 14
    for (int r = 0; r < Count; ++r) {
      T* const to = out + (row + r) * out_apart + column;
      if (added) store(to, sums[r][v] + load<W>(added + (row + r) * added_apart + column, on), on);
      else store(to, sums[r][v], on);
    }
  }

  // f(Length<n>, row) for blocks of n rows of begin..end.
  template <class F> INLINE static void each_block(i64 begin, i64 end, F f) {
    i64 row = begin;
    for (; row + R <= end; row += R) f(Length<R>(), row);
    for (; row + 4 <= end; row += 4) f(Length<4>(), row);
    for (; row < end; ++row) f(Length<1>(), row);
  }
  template <int Count> INLINE void rows_of(f32* copies, const f32* panels, i64 row, i64 begin, i64 end) const {
    if constexpr (S::Copied) copy_rows<Count>(copies, row);
    for (i64 p = begin; p < end; ++p) block<Count>(left_of<Count>(copies, row), panels + (p - begin) * depth * Panel, row, p * Panel);
  }
  template <int Count> INLINE void panel_of(const f32* copies, const f32* panel, i64 row, i64 p) const {
    block<Count>(left_of<Count>(copies, row), panel, row, p * Panel);
  }

  // The rows go by chunks of panels.
  void by_rows() const {
    const i64 fitting = Chunk / (depth * Panel), chunk = fitting < 1 ? 1 : fitting < S::Panels ? fitting : S::Panels;
    const Scratch<f32> memory(chunk * depth * Panel);
    f32* const panels = memory.data;
    for (i64 p0 = 0; p0 < S::Panels; p0 += chunk) {
      const i64 p1 = p0 + chunk < S::Panels ? p0 + chunk : S::Panels;
      parallel<true>(p1 - p0, [*this, panels, p0](i64 begin, i64 end) {
        for (i64 p = begin; p < end; ++p) pack(panels + p * depth * Panel, p0 + p);
      });
      parallel<true>((rows + R - 1) / R, [*this, panels, p0, p1](i64 begin, i64 end) {
        const Scratch<f32> copies(copied(R, depth));
        each_block(begin * R, end * R < rows ? end * R : rows, [&](auto count, i64 row) BODY { rows_of<count>(copies.data, panels, row, p0, p1); });
      });
    }
  }
  // The panels go by all rows.
  void by_panels() const {
    const Scratch<f32> memory(copied(rows, depth));
    f32* const copies = memory.data;
    const i64 whole = (depth + Part - 1) / Part * Part;
    if constexpr (S::Copied) each_block(0, rows, [&](auto count, i64 row) BODY { copy_rows<count>(copies + row * whole, row); });
    parallel_when(rows * depth * S::N >= Wide, S::Panels, [*this, copies, whole](i64 begin, i64 end) {
      const Scratch<f32> panel(depth * Panel);
      for (i64 p = begin; p < end; ++p) {
        pack(panel.data, p);
        each_block(0, rows, [&](auto count, i64 row) BODY { panel_of<count>(copies + row * whole, panel.data, row, p); });
      }
    });
  }
  void run() const {
    if (rows * depth <= Few) by_panels();
    else by_rows();
  }
};

}  // namespace
