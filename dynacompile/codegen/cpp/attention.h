// Attention of float32: blocks of scores, their softmax and the weighted sums stay in the caches (FlashAttention, Dao et al. 2022; its backward computes
// the scores again from the logarithms of their sums). What is multiplied is copied into rows of whole vectors first, keys and values transposed where
// lanes run along the keys. A head is one task, in forward with few heads a part of its queries is; who runs it changes no result.
//
// Included by kernels that have attention alone.
#pragma once
#include "vecmath.h"

namespace {

// Elements from one matrix, one head, one row to the next; the elements of a row are consecutive.
struct Apart { i64 batch, head, row; };
template <class T> struct Matrices {
  T* first;
  Apart apart;
  INLINE T* at(i64 batch, i64 head, i64 row) const { return first + batch * apart.batch + head * apart.head + row * apart.row; }
};

// D: elements of a head. Keys: of a block. Rows: queries of a block of the backward. R x V: vectors of sums that registers hold.
template <int D_, bool Causal_, bool Masked_> struct Heads {
  static constexpr bool Causal = Causal_, Masked = Masked_;
  static constexpr int W = lanes_of(4), D = D_, Padded = (D + W - 1) / W * W, Vectors = Padded / W;
  static constexpr int R = W == 16 ? 8 : 4, V = 2, Tile = V * W, Keys = D > 64 ? 64 : 128, Rows = 64;
  using vector = vec<f32, W>;
};

// sums[r][v] += the sum over k < count of a[r * A_ROW + k * A_STEP] * b[k * apart + v * W ...].
template <int R, int V, int A_ROW, int A_STEP, int W> INLINE void multiply(vec<f32, W> (&sums)[R][V], const f32* a, const f32* b, i64 apart, i64 count) {
#pragma GCC unroll 4
  for (i64 k = 0; k < count; ++k) {
    vec<f32, W> row[V];
#pragma GCC unroll 2
    for (int v = 0; v < V; ++v) row[v] = read<W>(b + v * W);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const auto factor = all<W>(a[r * A_ROW]);
#pragma GCC unroll 2
      for (int v = 0; v < V; ++v) sums[r][v] = fma(factor, row[v], sums[r][v]);
    }
    a += A_STEP;
    b += apart;
  }
}
// f(column, V) for the columns of a head, V vectors at once.
template <class H, class F> INLINE void each_columns(F f) {
  int v = 0;
  for (; v + H::V <= H::Vectors; v += H::V) f(v * H::W, Length<H::V>());
  if constexpr (H::Vectors % H::V != 0) f(v * H::W, Length<1>());
}
// f(position of a vector, on): the last vector of a row may be a part of one.
template <class H, class F> INLINE void each_vector(F f) {
  for (int d = 0; d + H::W <= H::D; d += H::W) f(d, All{});
  if constexpr (H::D % H::W != 0) f(H::D / H::W * H::W, First{H::D % H::W});
}
// Rows of whole vectors from rows of memory, with zeros behind, also in rows up to `until`.
template <class H> INLINE void packed(f32* to, const f32* from, i64 apart, i64 rows, i64 until) {
  for (i64 r = 0; r < rows; ++r) each_vector<H>([&](int d, auto on) BODY { write(to + r * H::Padded + d, load<H::W>(from + r * apart + d, on)); });
  for (i64 i = rows * H::Padded; i < until * H::Padded; i += H::W) write(to + i, typename H::vector{});
}
template <class H> INLINE void unpacked(f32* to, i64 apart, const f32* from, i64 rows) {
  for (i64 r = 0; r < rows; ++r) each_vector<H>([&](int d, auto on) BODY { store(to + r * apart + d, read<H::W>(from + r * H::Padded + d), on); });
}
// Columns of keys, with zeros up to `until`.
template <class H> INLINE void turned_keys(f32* to, const f32* from, i64 apart, i64 keys, i64 until) {
  transposed<H::W>(to, H::Keys, from, apart, H::D, keys);
  for (i64 d = 0; keys < until && d < H::D; ++d)
    for (i64 c = keys; c < until; ++c) to[d * H::Keys + c] = 0;
}
// exp, with 0 below 2^-108: products of such weights may be no normal numbers, which take many times as long.
template <class V> INLINE V weight_of(V x) { return exp_v(x < -75.0f ? V{} - 1000.0f : x); }
INLINE i64 up_to(i64 n, i64 step) { return (n + step - 1) / step * step; }
INLINE i64 least(i64 a, i64 b) { return a < b ? a : b; }

// Of R rows of scores, from query `row` on and key j + c on: factor times the product, and the mask; -inf where a row does not see a key. until: keys of this
// block that any of the rows sees; last: the last query.
template <class H, class S> INLINE void finish_scores(S& scores, const Matrices<const f32>& mask, i64 b, i64 h, i64 row, i64 last, i64 j, i64 c, i64 until, f32 factor) {
  using V = typename H::vector;
  if constexpr (H::Masked)
#pragma GCC unroll 8
    for (int r = 0; r < H::R; ++r) {
      const f32* added = mask.at(b, h, least(row + r, last)) + j + c;
#pragma GCC unroll 2
      for (int v = 0; v < H::V; ++v) {
        const i64 left = until - c - v * H::W;
        const V m = left >= H::W ? load<H::W>(added + v * H::W, All{}) : load<H::W>(added + v * H::W, First{left > 0 ? (int)left : 0});
        scores[r][v] = fma(scores[r][v], all<H::W>(factor), m);
      }
    }
  if (c + H::Tile > until || (H::Causal && j + c + H::Tile > row + 1))
#pragma GCC unroll 8
    for (int r = 0; r < H::R; ++r)
#pragma GCC unroll 2
      for (int v = 0; v < H::V; ++v) {
        const i64 seen = H::Causal ? least(row + r + 1 - j, until) : until;
        scores[r][v] = iota<H::W>((i32)(c + v * H::W), 1) < (i32)seen ? scores[r][v] : V{} - __builtin_inff();
      }
}

template <class H> struct AttentionForward {
  Matrices<const f32> q, k, v, mask;
  Matrices<f32> out, logs;  // logs: one element a row
  i64 batches, heads, queries, keys;
  f32 factor;

  static constexpr int W = H::W, R = H::R, P = H::Padded;
  static constexpr i64 Part = 128, Many = 16;  // queries of a task, where heads are fewer
  using vector = typename H::vector;
  using Lanes = vec<f32, R>;  // a number of each row
  struct Memory { f32 *q, *sums, *highest, *totals, *k, *v, *scores; };  // of a task
  struct Task { i64 b, h, first, last; };

  INLINE f32 kept() const { return H::Masked ? 1.0f : factor; }

  OUTLINED void run(const Task t, const Memory m) const {
    const i64 count = t.last - t.first, end = H::Causal ? least(t.last, keys) : keys;
    if (keys == 0) {
      packed<H>(m.sums, nullptr, 0, 0, count);
      unpacked<H>(out.at(t.b, t.h, t.first), out.apart.row, m.sums, count);
      for (i64 i = t.first; i < t.last; ++i) *logs.at(t.b, t.h, i) = 0;
    }
    packed<H>(m.q, q.at(t.b, t.h, t.first), q.apart.row, count, up_to(count, R));
    for (i64 j = 0; j < end; j += H::Keys) {
      const i64 n = least(end - j, H::Keys);
      packed<H>(m.v, v.at(t.b, t.h, j), v.apart.row, n, n);
      turned_keys<H>(m.k, k.at(t.b, t.h, j), k.apart.row, n, up_to(n, H::Tile));
      for (i64 i = 0; i < count; i += R) {
        const i64 row = t.first + i;
        if (H::Causal && row + R <= j) continue;
        rows(t, m, i, j, H::Causal ? least(row + R - j, n) : n, j + H::Keys >= end || (H::Causal && row + R <= j + H::Keys));
      }
    }
  }
  // Rows i .. i + R with the keys from j on. final: there are no others.
  INLINE void rows(const Task& t, const Memory& m, i64 i, i64 j, i64 until, bool final) const {
    vector high[R];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) high[r] = vector{} - __builtin_inff();
    const i64 row = t.first + i;
    i64 wide = 0;
    for (; wide < until; wide += H::Tile) {
      vector scores[R][H::V] = {};
      multiply<R, H::V, P, 1, W>(scores, m.q + i * P, m.k + wide, H::Keys, H::D);
      finish_scores<H>(scores, mask, t.b, t.h, row, queries - 1, j, wide, until, factor);
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r)
#pragma GCC unroll 2
        for (int x = 0; x < H::V; ++x) {
          write(m.scores + r * H::Keys + wide + x * W, scores[r][x]);
          high[r] = scores[r][x] > high[r] ? scores[r][x] : high[r];
        }
    }
    alignas(64) f32 most[R], total[R], keep[R], scale[R];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) most[r] = across(high[r], [](auto a, auto b) BODY -> decltype(a) { return a > b ? a : b; });
    const Lanes before = j ? read<R>(m.highest + i) : Lanes{} - __builtin_inff(), here = read<R>(most) * all<R>(kept()), highest = before > here ? before : here;
    const Lanes kept_of_before = exp_v(before == highest ? Lanes{} : before - highest), from = highest == -__builtin_inff() ? Lanes{} : highest;
    write(most, -from);
    write(keep, kept_of_before);
    write(m.highest + i, highest);
#pragma GCC unroll 2
    for (int r = 0; r < R; ++r) {
      vector sum = {};
      for (i64 c = 0; c < wide; c += W) {
        const vector e = weight_of(fma(read<W>(m.scores + r * H::Keys + c), all<W>(kept()), all<W>(most[r])));
        write(m.scores + r * H::Keys + c, e);
        sum += e;
      }
      total[r] = across_sum(sum);
    }
    const Lanes totals = j ? fma(read<R>(m.totals + i), kept_of_before, read<R>(total)) : read<R>(total);
    write(m.totals + i, totals);
    if (final) {
      write(scale, totals == 0 ? Lanes{} + 1 : 1 / totals);
      write(total, totals == 0 ? Lanes{} : highest + log_v(totals));
      for (i64 r = 0; r < R && row + r < t.last; ++r) *logs.at(t.b, t.h, row + r) = total[r];
    }
    each_columns<H>([&](int d, auto columns) BODY { values<decltype(columns)>(t, m, i, d, j, until, final, keep, scale); });
  }
  // The sums of values, for columns d ...; keep: what the scores before count by now.
  template <class Columns> INLINE void values(const Task& t, const Memory& m, i64 i, int d, i64 j, i64 until, bool final, const f32* keep, const f32* scale) const {
    constexpr int V = Columns();
    vector sums[R][V] = {};
    if (j)
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r)
        for (int x = 0; x < V; ++x) sums[r][x] = read<W>(m.sums + (i + r) * P + d + x * W) * all<W>(keep[r]);
    multiply<R, V, H::Keys, 1, W>(sums, m.scores, m.v + d, P, until);
    if (!final) {
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r)
        for (int x = 0; x < V; ++x) write(m.sums + (i + r) * P + d + x * W, sums[r][x]);
      return;
    }
    f32* const to = out.at(t.b, t.h, t.first + i) + d;
    const i64 left = t.last - t.first - i;
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
      for (int x = 0; x < V; ++x) {
        if (r >= left) continue;
        const vector value = sums[r][x] * all<W>(scale[r]);
        if (H::D % W == 0 || d + (x + 1) * W <= H::D) store(to + r * out.apart.row + x * W, value, All{});
        else store(to + r * out.apart.row + x * W, value, First{H::D % W});
      }
  }
  void run() const {
    const i64 part = batches * heads < Many && queries > Part ? Part : queries, parts = part ? (queries + part - 1) / part : 0, room = up_to(part, R);
    parallel<true>(batches * heads * parts, [*this, part, parts, room](i64 begin, i64 end) {
      const Scratch<f32> memory(room * (2 * P + 2) + 2 * H::Keys * P + R * H::Keys + W);
      Memory m;
      m.q = memory.data, m.sums = m.q + room * P, m.k = m.sums + room * P, m.v = m.k + H::Keys * P, m.scores = m.v + H::Keys * P;
      m.highest = m.scores + R * H::Keys, m.totals = m.highest + room;
      for (i64 t = begin; t < end; ++t) {
        const i64 head = t / parts, first = t % parts * part;
        run({head / heads, head % heads, first, least(first + part, queries)}, m);
      }
    });
  }
};

template <class H> struct AttentionBackward {
  Matrices<const f32> grad, q, k, v, out, logs, mask;
  Matrices<f32> dq, dk, dv;
  i64 batches, heads, queries, keys;
  f32 factor;

  static constexpr int W = H::W, R = H::R, P = H::Padded;
  using vector = typename H::vector;
  // q, grad: all rows; k: of a block; kt, vt: transposed; weights, slopes: of the scores of a block; means: the sums of gradients times results.
  struct Memory { f32 *q, *grad, *dq, *k, *kt, *vt, *dk, *dv, *weights, *slopes, *means, *logs; };

  OUTLINED void run(i64 b, i64 h, const Memory m) const {
    const i64 rows = up_to(queries, R), end = H::Causal ? least(queries, keys) : keys;
    packed<H>(m.q, q.at(b, h, 0), q.apart.row, queries, rows);
    packed<H>(m.grad, grad.at(b, h, 0), grad.apart.row, queries, rows);
    packed<H>(m.dq, nullptr, 0, 0, rows);
    for (i64 i = 0; i < rows; ++i) {
      vector sum = {};
      if (i < queries) each_vector<H>([&](int d, auto on) BODY { sum = fma(read<W>(m.grad + i * P + d), load<W>(out.at(b, h, i) + d, on), sum); });
      m.means[i] = across_sum(sum);
      m.logs[i] = i < queries ? *logs.at(b, h, i) : 0;
    }
    for (i64 j = 0; j < keys; j += H::Keys) {
      const i64 n = least(keys - j, H::Keys), whole = up_to(n, H::Tile);
      if (j < end) {
        packed<H>(m.k, k.at(b, h, j), k.apart.row, n, n);
        turned_keys<H>(m.kt, m.k, P, n, whole);
        turned_keys<H>(m.vt, v.at(b, h, j), v.apart.row, n, whole);
      }
      packed<H>(m.dk, nullptr, 0, 0, whole);
      packed<H>(m.dv, nullptr, 0, 0, whole);
      for (i64 i = H::Causal ? j / R * R : 0; i < rows; i += H::Rows) block(b, h, m, i, least(i + H::Rows, rows), j, n);
      unpacked<H>(dk.at(b, h, j), dk.apart.row, m.dk, n);
      unpacked<H>(dv.at(b, h, j), dv.apart.row, m.dv, n);
    }
    unpacked<H>(dq.at(b, h, 0), dq.apart.row, m.dq, queries);
  }
  // Queries first .. last with the keys j .. j + n.
  INLINE void block(i64 b, i64 h, const Memory& m, i64 first, i64 last, i64 j, i64 n) const {
    for (i64 i = first; i < last; i += R) {
      const i64 until = H::Causal ? least(i + R - j, n) : n;
      f32* const slopes = m.slopes + (i - first) * H::Keys;
      scores(b, h, m, i, j, until, m.weights + (i - first) * H::Keys, slopes);
      each_columns<H>([&](int d, auto columns) BODY { add<H::Keys, 1, decltype(columns)>(m.dq + i * P + d, slopes, m.k + d, until); });
    }
    const i64 until = H::Causal ? least(last - j, n) : n;
    for (i64 c = 0; c < until; c += R) {
      const i64 from = H::Causal && j + c > first ? (j + c - first) / R * R : 0, count = last - first - from;  // before, no query sees these keys
      each_columns<H>([&](int d, auto columns) BODY {
        add<1, H::Keys, decltype(columns)>(m.dv + c * P + d, m.weights + from * H::Keys + c, m.grad + (first + from) * P + d, count);
        add<1, H::Keys, decltype(columns)>(m.dk + c * P + d, m.slopes + from * H::Keys + c, m.q + (first + from) * P + d, count);
      });
    }
  }
  template <int A_ROW, int A_STEP, class Columns> INLINE void add(f32* to, const f32* a, const f32* b, i64 count) const {
    constexpr int V = Columns();
    vector sums[R][V];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 2
      for (int x = 0; x < V; ++x) sums[r][x] = read<W>(to + r * P + x * W);
    multiply<R, V, A_ROW, A_STEP, W>(sums, a, b, P, count);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 2
      for (int x = 0; x < V; ++x) write(to + r * P + x * W, sums[r][x]);
  }
  // The weights of R rows, and the gradients of their products, from those of the weights.
  INLINE void scores(i64 b, i64 h, const Memory& m, i64 i, i64 j, i64 until, f32* weights, f32* slopes) const {
    for (i64 c = 0; c < until; c += H::Tile) {
      {
        vector sums[R][H::V] = {};
        multiply<R, H::V, P, 1, W>(sums, m.q + i * P, m.kt + c, H::Keys, H::D);
        finish_scores<H>(sums, mask, b, h, i, queries - 1, j, c, until, factor);
        for (int r = 0; r < R; ++r)
#pragma GCC unroll 2
          for (int x = 0; x < H::V; ++x)
            write(weights + r * H::Keys + c + x * W, weight_of(fma(sums[r][x], all<W>(H::Masked ? 1.0f : factor), all<W>(-m.logs[i + r]))));
      }
      vector sums[R][H::V] = {};
      multiply<R, H::V, P, 1, W>(sums, m.grad + i * P, m.vt + c, H::Keys, H::D);
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r)
#pragma GCC unroll 2
        for (int x = 0; x < H::V; ++x) {
          const vector weight = read<W>(weights + r * H::Keys + c + x * W);
          write(slopes + r * H::Keys + c + x * W, (sums[r][x] - all<W>(m.means[i + r])) * weight * all<W>(factor));
        }
    }
  }
  void run() const {
    const i64 room = up_to(queries, R);
    parallel<true>(batches * heads, [*this, room](i64 begin, i64 end) {
      const Scratch<f32> memory(room * (3 * P + 2) + 5 * H::Keys * P + 2 * H::Rows * H::Keys + W);
      Memory m;
      m.q = memory.data, m.grad = m.q + room * P, m.dq = m.grad + room * P, m.k = m.dq + room * P, m.kt = m.k + H::Keys * P, m.vt = m.kt + H::Keys * P;
      m.dk = m.vt + H::Keys * P, m.dv = m.dk + H::Keys * P, m.weights = m.dv + H::Keys * P, m.slopes = m.weights + H::Rows * H::Keys;
      m.means = m.slopes + H::Rows * H::Keys, m.logs = m.means + room;
      for (i64 t = begin; t < end; ++t) run(t / heads, t % heads, m);
    });
  }
};

}  // namespace
