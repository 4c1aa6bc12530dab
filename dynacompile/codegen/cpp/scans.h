// Scans: a state takes in one value after the other, and gives what the values so far come to. States and values are scalars, or vectors whose lanes have
// scans of their own.
#pragma once

namespace {

template <class S, class V> INLINE V run_sum(S& state, V v) {
  state = state + convert<elem<S>>(v);
  return convert<elem<V>>(state);
}
template <class S, class V> INLINE V run_prod(S& state, V v) {
  state = state * convert<elem<S>>(v);
  return convert<elem<V>>(state);
}
// The sum since `starts` held last.
template <class S, class V, class M> INLINE V run_sum_anew(S& state, V v, M starts) {
  const S x = convert<elem<S>>(v);
  state = where(starts, x, S(state + x));
  return convert<elem<V>>(state);
}
// The later of equal values, and NaN for good.
template <bool Max, class V> INLINE auto is_later(V before, V v) {
  auto r = Max ? le(before, v) : le(v, before);
  if constexpr (is_float<elem<V>>) r = r | isnan(v);
  return r;
}
template <bool Max, class V> INLINE V run_extremum(V& state, V v) { return state = where(is_later<Max>(state, v), v, state); }
template <bool Max, class V, class P> INLINE auto run_place(V& state, P& at, V v, P place) {
  const auto later = is_later<Max>(state, v);
  state = where(later, v, state);
  at = where(later, place, at);
  return convert<i64>(at);
}
// log(sum of exp(v)) is `top`, the greatest value, and the logarithm of `scale`.
template <class V, class S> INLINE V run_logaddexp(V& top, S& scale, V v) {
  const V apart = top - v;
  const S less = convert<elem<S>>(exp(where(eq(top, v), V{}, V(-abs(apart)))));
  scale = where(le(v, top), S(scale + less), S(scale * less + (elem<S>)1));
  top = max(top, v);
  return top + log(V(convert<elem<V>>(scale)));
}

// f(lane) for the lanes that a step works on, one after the other, from the first or from the last on.
template <int W, class T, class On, class F> INLINE vec<T, W> in_order(On on, F f) {
  vec<T, W> r = {};
  const int n = on.template count<W>();
  for (int i = 0; i < n; ++i) r[i] = f(i);
  return r;
}
template <int W, class T, class On, class F> INLINE vec<T, W> in_reverse(On on, F f) {
  vec<T, W> r = {};
  for (int i = on.template count<W>() - 1; i >= 0; --i) r[i] = f(i);
  return r;
}
// As `each`, from the last vector on.
template <int W, class F> INLINE void each_back(i64 begin, i64 end, F f) {
  i64 i = begin + (end - begin) / W * W;
  if (i < end) f(i, First{(int)(end - i)});
  while (i > begin) f(i -= W, All{});
}

}  // namespace
