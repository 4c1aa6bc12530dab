// Scalar operations on scalars and vectors, one meaning for both: a scalar goes through a vector of the same code.
//
// f32 results are within 2 units in the last place of the correctly rounded ones (tests/codegen/test_cpp_math.py measures it), with the
// infinities, NaNs, signed zeros and denormals of C. Polynomials are minimax fits by Remez exchange, printed by scripts/fit_vecmath.py;
// range reductions are the textbook ones (Muller, "Elementary Functions", 3rd edition, chapters 3 and 11). f64 versions that are not
// written out call the C library lane by lane.
#pragma once
#include "vec.h"

namespace {

// f of one vector of the same code, on a scalar.
#define DC_LIFT1(name) \
  template <class T> INLINE T name(T x) { \
    if constexpr (is_vector<T>) return name##_v(x); \
    else return name##_v(x - vec<T, 16 / sizeof(T)>{})[0]; \
  }
#define DC_LIFT2(name) \
  template <class T> INLINE T name(T x, T y) { \
    if constexpr (is_vector<T>) return name##_v(x, y); \
    else return name##_v(x - vec<T, 16 / sizeof(T)>{}, y - vec<T, 16 / sizeof(T)>{})[0]; \
  }
#define DC_LIBRARY1(name) \
  template <class V> INLINE V name##_lanes(V x) { \
    for (int i = 0; i < lanes<V>; ++i) x[i] = __builtin_##name(x[i]); \
    return x; \
  }
DC_LIBRARY1(erf) DC_LIBRARY1(sin) DC_LIBRARY1(cos) DC_LIBRARY1(sinf) DC_LIBRARY1(cosf)

template <class V> constexpr bool is_f32 = same<elem<V>, f32>;

// a b + c rounded once. Kernels are compiled without contraction, so that user code rounds as eager does; fused steps are asked for here.
template <class V> INLINE V fma(V a, V b, V c) {
#if defined(__AVX512F__)
  if constexpr (sizeof(V) == 64 && is_f32<V>) return bit_cast<V>(_mm512_fmadd_ps(bit_cast<__m512>(a), bit_cast<__m512>(b), bit_cast<__m512>(c)));
  else if constexpr (sizeof(V) == 64) return bit_cast<V>(_mm512_fmadd_pd(bit_cast<__m512d>(a), bit_cast<__m512d>(b), bit_cast<__m512d>(c)));
#endif
#if defined(__FMA__)
  if constexpr (sizeof(V) == 32 && is_f32<V>) return bit_cast<V>(_mm256_fmadd_ps(bit_cast<__m256>(a), bit_cast<__m256>(b), bit_cast<__m256>(c)));
  else if constexpr (sizeof(V) == 32) return bit_cast<V>(_mm256_fmadd_pd(bit_cast<__m256d>(a), bit_cast<__m256d>(b), bit_cast<__m256d>(c)));
  else if constexpr (sizeof(V) == 16 && is_f32<V>) return bit_cast<V>(_mm_fmadd_ps(bit_cast<__m128>(a), bit_cast<__m128>(b), bit_cast<__m128>(c)));
  else if constexpr (sizeof(V) == 16) return bit_cast<V>(_mm_fmadd_pd(bit_cast<__m128d>(a), bit_cast<__m128d>(b), bit_cast<__m128d>(c)));
#elif defined(__aarch64__)
  for (int i = 0; i < lanes<V>; ++i)
    a[i] = is_f32<V> ? (elem<V>)__builtin_fmaf((f32)a[i], (f32)b[i], (f32)c[i]) : (elem<V>)__builtin_fma((f64)a[i], (f64)b[i], (f64)c[i]);
  return a;
#endif
  return a * b + c;
}
template <class V> INLINE V fma(V a, elem<V> b, V c) { return fma(a, V{} + b, c); }
// min and max with a bound that is no NaN: one instruction; of a NaN and the bound, the NaN.
template <class V> INLINE V at_most(V x, elem<V> bound) {
  const V b = V{} + bound;
  return b < x ? b : x;
}
template <class V> INLINE V at_least(V x, elem<V> bound) {
  const V b = V{} + bound;
  return b > x ? b : x;
}

// c[0] + c[1] x + c[2] x^2 + ...
template <class V, class C, int N> INLINE V polynomial(V x, const C (&c)[N]) {
  V r = V{} + (elem<V>)c[N - 1];
  for (int k = N - 2; k >= 0; --k) r = fma(r, x, V{} + (elem<V>)c[k]);
  return r;
}

// Comparisons, selections. A comparison of scalars is a bool, of vectors a mask.
#define DC_COMPARE(name, op) \
  template <class T> INLINE auto name(T a, T b) { \
    if constexpr (!is_vector<T>) return a op b; \
    else if constexpr (sizeof(elem<T>) == 4) return a op b; \
    else return __builtin_convertvector(a op b, mask_of<T>); \
  }
DC_COMPARE(eq, ==) DC_COMPARE(ne, !=) DC_COMPARE(lt, <) DC_COMPARE(le, <=)
template <class T> INLINE auto nearest_bf16(T x) {
  if constexpr (is_vector<T>) return nearest_bf16_v(x);
  else return value(memory<bf16>(x));
}
template <class T> INLINE auto nearest_f16(T x) {
  if constexpr (is_vector<T>) return widen_f16(round_f16(x));
  else return value(memory<f16>(x));
}
template <class T> INLINE auto isnan(T x) { return ne(x, x); }
template <class M, class T> INLINE T where(M mask, T a, T b) {
  if constexpr (is_vector<T>) return widen_mask<T>(mask) ? a : b;
  else return mask ? a : b;
}
template <class T> INLINE T max(T a, T b) {  // a NaN wins
  T r = a > b ? a : b;
  if constexpr (is_float<elem<T>>) return a == a ? r : a;
  else return r;
}
template <class T> INLINE T min(T a, T b) {
  T r = a < b ? a : b;
  if constexpr (is_float<elem<T>>) return a == a ? r : a;
  else return r;
}

// Conversions: float to integer truncates, to bool tests != 0.
template <class T, class V> INLINE auto convert(V x) {
  using E = elem<V>;
  if constexpr (is_vector<V>) {
    if constexpr (same<T, bool>) return ne(x, V{});
    else if constexpr (is_float<E> && sizeof(T) < 4) return __builtin_convertvector(__builtin_convertvector(x, mask_of<V>), vec<T, lanes<V>>);
    else return __builtin_convertvector(x, vec<T, lanes<V>>);
  } else if constexpr (same<T, bool>) return x != (V)0;
  else if constexpr (is_float<E> && sizeof(T) < 4) return (T)(i32)x;
  else return (T)x;
}
template <class T, class M> INLINE auto convert_bool(M m) {  // from a mask or a bool
  if constexpr (!is_vector<M>) {
    if constexpr (same<T, bool>) return m;
    else return (T)m;
  } else if constexpr (same<T, bool>) return m;
  else return __builtin_convertvector(-m, vec<T, lanes<M>>);
}

// Rounding.
#ifdef DC_AVX512
#define DC_ROUND(name, mode, library) \
  template <class V> INLINE V name##_v(V x) { \
    if constexpr (sizeof(V) == 64 && is_f32<V>) return bit_cast<V>(_mm512_roundscale_ps(bit_cast<__m512>(x), mode)); \
    else if constexpr (sizeof(V) == 64) return bit_cast<V>(_mm512_roundscale_pd(bit_cast<__m512d>(x), mode)); \
    else { \
      for (int i = 0; i < lanes<V>; ++i) x[i] = library(x[i]); \
      return x; \
    } \
  }
#else
#define DC_ROUND(name, mode, library) \
  template <class V> INLINE V name##_v(V x) { \
    for (int i = 0; i < lanes<V>; ++i) x[i] = library(x[i]); \
    return x; \
  }
#endif
template <class T> INLINE T near1(T x) { return same<T, f32> ? (T)__builtin_rintf((f32)x) : (T)__builtin_rint((f64)x); }
DC_ROUND(floor, 9, __builtin_floor) DC_ROUND(ceil, 10, __builtin_ceil) DC_ROUND(trunc, 11, __builtin_trunc) DC_ROUND(round, 8, near1)
DC_LIFT1(floor) DC_LIFT1(ceil) DC_LIFT1(trunc) DC_LIFT1(round)

template <class V> INLINE V sqrt_v(V x) {
  for (int i = 0; i < lanes<V>; ++i) x[i] = is_f32<V> ? (elem<V>)__builtin_sqrtf((f32)x[i]) : (elem<V>)__builtin_sqrt((f64)x[i]);
  return x;
}
#ifdef DC_AVX512
template <> INLINE vec<f32, 16> sqrt_v(vec<f32, 16> x) { return _mm512_sqrt_ps(x); }
template <> INLINE vec<f64, 8> sqrt_v(vec<f64, 8> x) { return _mm512_sqrt_pd(x); }
#endif
DC_LIFT1(sqrt)
template <class T> INLINE T rsqrt(T x) { return (T{} + 1) / sqrt(x); }
template <class T> INLINE T abs(T x) {
  if constexpr (is_float<elem<T>>) {
    if constexpr (is_vector<T>) return bit_cast<T>(bit_cast<bits_of<T>>(x) & ~bit_cast<bits_of<T>>((elem<T>)-0.0 - T{}));
    else return same<T, f32> ? (T)__builtin_fabsf((f32)x) : (T)__builtin_fabs((f64)x);
  } else return x < T{} ? (T)-x : x;
}
template <class V> INLINE V with_sign(V magnitude, V sign) {
  using I = bits_of<V>;
  const I top = bit_cast<I>((elem<V>)-0.0 - V{});
  return bit_cast<V>((bit_cast<I>(magnitude) & ~top) | (bit_cast<I>(sign) & top));
}

// Constants by element type.
template <class T> struct Float;
template <> struct Float<f32> {
  static constexpr int fraction = 23, bias = 127;
  static constexpr f32 overflow = 88.8f, underflow = -104.0f, most = 16777216.0f, normal = 0x1p-126f, log2_e = 1.44269504f, shift = 0x1.8p23f;
  static constexpr f32 ln2_high = 0x1.62e4p-1f, ln2_low = 0x1.7f7d1cp-20f;
  static constexpr f32 exp[] = {0.500000006f, 0.166665443f, 0.0416662865f, 0.00836645528f, 0.00139462086f};
};
template <> struct Float<f64> {
  static constexpr int fraction = 52, bias = 1023;
  static constexpr f64 overflow = 709.9, underflow = -745.2, most = 0x1p53, normal = 0x1p-1022, log2_e = 1.4426950408889634, shift = 0x1.8p52;
  static constexpr f64 ln2_high = 0x1.62e42feep-1, ln2_low = 0x1.a39ef35793c76p-33;
  static constexpr f64 exp[] = {0.5, 0.16666666666666676, 0.0416666666666667, 0.0083333333333219274, 0.0013888888888867402, 0.0001984126988543974,
                                2.4801587359648808e-5, 2.7557244854041866e-6, 2.7557243419789308e-7, 2.5108824560890376e-8, 2.0924264517354544e-9};
};

// x 2^n for integral n of -2 bias .. 2 bias, rounded once.
template <class V> INLINE V scale(V x, V n) {
#ifdef DC_AVX512
  if constexpr (sizeof(V) == 64 && is_f32<V>) return bit_cast<V>(_mm512_scalef_ps(bit_cast<__m512>(x), bit_cast<__m512>(n)));
  else if constexpr (sizeof(V) == 64) return bit_cast<V>(_mm512_scalef_pd(bit_cast<__m512d>(x), bit_cast<__m512d>(n)));
#endif
  using F = Float<elem<V>>;
  auto k = __builtin_convertvector(n, bits_of<V>), half = k >> 1;
  return x * bit_cast<V>((half + F::bias) << F::fraction) * bit_cast<V>((k - half + F::bias) << F::fraction);
}
// The integer nearest to x (or to x times factor), |x| < 2^(fraction - 1).
template <class V> INLINE V nearest(V x) { return (x + Float<elem<V>>::shift) - Float<elem<V>>::shift; }
template <class V> INLINE V nearest(V x, elem<V> factor) { return fma(x, factor, V{} + Float<elem<V>>::shift) - Float<elem<V>>::shift; }

// exp(x) = 2^n exp(r), |r| <= ln(2) / 2; exp(r) = 1 + q.
template <class V> struct Reduced { V n, q; };
template <class V> INLINE Reduced<V> reduce_exp(V x) {
  using F = Float<elem<V>>;
  V n = nearest(x, F::log2_e);
  V r = fma(n, -F::ln2_low, fma(n, -F::ln2_high, x));
  return {n, fma(r * r, polynomial(r, F::exp), r)};
}
template <class V> INLINE V exp_v(V x) {
  using F = Float<elem<V>>;
  // What vanishes does so by selection: underflow in the scaling would be slow, and a masked softmax is full of it. A NaN stays.
#ifdef DC_AVX512
  if constexpr (is_f32<V> && sizeof(V) == 64) {
    const auto stays = _mm512_cmp_ps_mask(bit_cast<__m512>(x), _mm512_set1_ps(F::underflow), _CMP_NLT_UQ);
    auto e = reduce_exp(bit_cast<V>(_mm512_maskz_min_ps(stays, _mm512_set1_ps(F::overflow), bit_cast<__m512>(x))));
    return bit_cast<V>(_mm512_maskz_scalef_ps(stays, bit_cast<__m512>(1 + e.q), bit_cast<__m512>(e.n)));
  }
#endif
  const auto vanishes = x < F::underflow;
  auto e = reduce_exp(vanishes ? V{} : at_most(x, F::overflow));
  return vanishes ? V{} : scale(1 + e.q, e.n);
}
template <class V> INLINE V exp2_v(V x) {
  using F = Float<elem<V>>;
  V c = at_least(at_most(x, (elem<V>)(F::bias + 1)), (elem<V>)(-F::bias - F::fraction - 1));
  V n = nearest(c), r = (c - n) * (elem<V>)0.6931471805599453;
  return scale(1 + fma(r * r, polynomial(r, F::exp), r), n);
}
template <class V> INLINE V expm1_v(V x) {
  using F = Float<elem<V>>;
  V c = at_least(at_most(x, F::overflow), (elem<V>)(-3 - F::fraction));  // below, exp is nothing against 1
  auto e = reduce_exp(c);
  V s = scale(V{} + (elem<V>)0.5, e.n);  // half, so that 2^n stays finite
  V r = 2 * fma(s, e.q, s - (elem<V>)0.5);
  return abs(x) < (elem<V>)1e-20 ? x : r;  // keeps -0 and denormals
}
template <class V> INLINE V sigmoid_v(V x) {
  V e = exp_v(-abs(x));
  return (x < 0 ? e : V{} + 1) / (1 + e);
}
template <class V> INLINE V tanh_v(V x) {
  auto e = reduce_exp(2 * at_most(abs(x), (elem<V>)(is_f32<V> ? 10 : 20)));  // 1 from there
  V s = scale(V{} + (elem<V>)0.5, e.n), h = fma(s, e.q, s - (elem<V>)0.5);  // expm1(2 |x|) / 2
  return with_sign(h / (h + 1), x);
}

// log: x = 2^e (1 + f), sqrt(1/2) <= 1 + f < sqrt(2).
template <class V> struct Split { V e, f; };
template <class V> INLINE Split<V> split(V x) {
  using F = Float<elem<V>>;
  using I = bits_of<V>;
  const auto small = x < F::normal;
  const elem<V> up = (elem<V>)(1ul << F::fraction) * 4;
  I u = bit_cast<I>(small ? x * up : x);
  I e = (u - bit_cast<I>(V{} + (elem<V>)0.70710678118654752)) >> F::fraction;
  V f = bit_cast<V>(u - (e << F::fraction)) - 1;
  return {__builtin_convertvector(e, V) - (small ? V{} + (elem<V>)(F::fraction + 2) : V{}), f};
}
// log(1 + f) - f
template <class V> INLINE V log_tail_v(V f) {
  if constexpr (is_f32<V>) {
    static constexpr f32 c[] = {
        0.333333119f, -0.249999864f, 0.200021461f, -0.166692164f, 0.142200218f, -0.123855526f, 0.118651311f, -0.117806954f, 0.0692104265f};
    V z = f * f;
    return fma(z * f, polynomial(f, c), (elem<V>)-0.5 * z);
  } else {  // with s = f / (2 + f): log(1 + f) = f - f^2/2 + s (f^2/2 + s^2 R(s^2))
    static constexpr f64 c[] = {
        0.66666666666666666, 0.40000000000000886, 0.28571428570798617, 0.22222222392732238, 0.18181795541271643, 0.15386244629495455,
        0.13268651398205201, 0.13087807930933447};
    V s = f / (2 + f), z = s * s, h = (elem<V>)0.5 * f * f;
    return fma(s, fma(z, polynomial(z, c), h), -h);
  }
}
// What log and log2 give outside 0 < x < inf.
template <class V> INLINE V log_edges(V x, V r) {
  const V infinity = V{} + (elem<V>)__builtin_inf();
  r = x == infinity ? x : r;
  r = x == 0 ? -infinity : r;
  return x >= 0 ? r : V{} + (elem<V>)__builtin_nan("");
}
template <class V> INLINE V log_v(V x) {
  using F = Float<elem<V>>;
  auto s = split(x);
  return log_edges(x, fma(s.e, F::ln2_high, s.f + fma(s.e, F::ln2_low, log_tail_v(s.f))));
}
template <class V> INLINE V log2_v(V x) {
  auto s = split(x);
  const elem<V> high = is_f32<V> ? (elem<V>)1.44269502f : (elem<V>)1.4426950408889634;
  const elem<V> low = is_f32<V> ? (elem<V>)1.92596303e-8f : (elem<V>)2.0355273740931033e-17;
  V t = log_tail_v(s.f), y = s.f + t, rest = t - (y - s.f);  // y + rest: log(1 + f)
  return log_edges(x, fma(y, high, fma(rest, high, fma(y, low, s.e))));
}
template <class V> INLINE V log1p_v(V x) {
  V u = 1 + x, r = log_v(u);
  V c = x - (u - 1);  // what u lost
  r = (u < (elem<V>)__builtin_inf()) & (u > 0) ? r + c / u : r;
  return abs(x) < (elem<V>)(is_f32<V> ? 1e-10 : 1e-18) ? x : r;
}

#ifdef DC_AVX512
// erf(x) = x g(|x|), g by quarters of |x| < 4: the coefficients are looked up in registers. From 3.92 on the product is clipped to 1.
INLINE vec<f32, 16> erf_quarters(vec<f32, 16> x) {
  alignas(64) static constexpr f32 c[6][16] = {
      {1.12837917f, 1.10530556f, 1.04099975f, 0.948207509f, 0.842700791f, 0.738320102f, 0.644070098f, 0.563812384f, 0.497661133f, 0.443794348f,
       0.399837219f, 0.363599774f, 0.33332597f, 0.307690984f, 0.285714073f, 0.266666636f},
      {-2.1526569e-7f, -0.0452915249f, -0.081108525f, -0.101758667f, -0.106898197f, -0.100359743f, -0.0875233114f, -0.0730053768f,
       -0.0596243004f, -0.0485169104f, -0.0397659005f, -0.0330012281f, -0.0277655588f, -0.0236662907f, -0.0204077615f, -0.0177777163f},
      {-0.0235053811f, -0.0209583402f, -0.0143703395f, -0.00626529535f, 0.000778874434f, 0.00528875595f, 0.00715418515f, 0.00713131289f,
       0.00616172167f, 0.00494458566f, 0.00384052884f, 0.00296348236f, 0.0023050826f, 0.00181864575f, 0.00145734885f, 0.00118511845f},
      {-1.08024376e-5f, 0.00163136791f, 0.00261075163f, 0.00265321261f, 0.00197333402f, 0.00103910306f, 0.000252563787f, -0.000215487059f,
       -0.000395036842f, -0.000399440785f, -0.000332216996f, -0.000253782374f, -0.000187936477f, -0.000138895968f, -0.000103861026f,
       -7.89425228e-5f},
      {0.000461803333f, 0.000357876319f, 0.00012128963f, -0.000110989316f, -0.000234040939f, -0.000232184012f, -0.000157682517f, -7.34806229e-5f,
       -1.49495431e-5f, 1.29982975e-5f, 2.04436683e-5f, 1.85689158e-5f, 1.42229149e-5f, 1.02293342e-5f, 7.25404656e-6f, 5.18654288e-6f},
      {-1.90111263e-5f, -4.51844516e-5f, -4.54211196e-5f, -2.49792412e-5f, -6.60821008e-7f, 1.40627537e-5f, 1.65310054e-5f, 1.17805716e-5f,
       5.78076567e-6f, 1.6382093e-6f, -3.0042175e-7f, -8.44865391e-7f, -7.96314744e-7f, -5.98762664e-7f, -4.17440447e-7f, -2.86318667e-7f},
  };
  using V = vec<f32, 16>;
  V s = at_most(abs(x) * 4, 15.999f);
  auto k = __builtin_convertvector(s, mask_of<V>);
  V u = s - bit_cast<V>(_mm512_roundscale_ps(bit_cast<__m512>(s), 9)), g = V{};  // s - floor(s)
  for (int i = 5; i >= 0; --i) g = fma(g, u, bit_cast<V>(_mm512_permutexvar_ps(bit_cast<__m512i>(k), _mm512_load_ps(c[i]))));
  return at_least(at_most(x * g, 1.0f), -1.0f);
}
#elif defined(DC_AVX2)
// erf(x) = x g(|x|), g by eight pieces of |x| < 4, of width 8/15 around k 8/15, in |x| 15/8 - k: the coefficients are looked up in registers.
INLINE vec<f32, 8> erf_eighths(vec<f32, 8> x) {
  alignas(32) static constexpr f32 c[7][8] = {
      {1.12837917f, 1.02993604f, 0.81428623f, 0.61021774f, 0.467553285f, 0.374939085f, 0.312498117f, 0.267857108f},
      {0.0f, -0.180907056f, -0.2263032f, -0.174329625f, -0.113910661f, -0.0748036582f, -0.0520763027f, -0.0382651589f},
      {-0.106987005f, -0.060594269f, 0.0102736862f, 0.0332980474f, 0.0250897763f, 0.0146988312f, 0.00866792102f, 0.00546616722f},
      {0.0f, 0.0258828115f, 0.0167363429f, 0.000261034544f, -0.00398553517f, -0.00270922755f, -0.00143226497f, -0.000780504403f},
      {0.00912772738f, 0.00194473245f, -0.00483307839f, -0.00258048123f, 1.60713498e-5f, 0.00040251139f, 0.000229222582f, 0.000111166874f},
      {0.0f, -0.00209506609f, -0.000270584891f, 0.000725295932f, 0.000251239698f, -1.83558942e-5f, -3.26480307e-5f, -1.57506041e-5f},
      {-0.000603552365f, 5.27118344e-5f, 0.000358757443f, -2.06988745e-5f, -8.17927602e-5f, -1.4010467e-5f, 2.99139242e-6f, 2.10957384e-6f},
  };
  using V = vec<f32, 8>;
  const f32 base = Float<f32>::shift, scale = 1.875f;
  V a = at_most(abs(x), 3.999f), t = fma(a, scale, V{} + base), u = fma(a, scale, base - t), g = V{};  // the last three bits of t are k
  for (int i = 6; i >= 0; --i) g = fma(g, u, bit_cast<V>(_mm256_permutevar8x32_ps(_mm256_load_ps(c[i]), bit_cast<__m256i>(t))));
  return at_least(at_most(x * g, 1.0f), -1.0f);
}
#endif
// Lanes of x again and again, and the first ones of a longer vector.
template <int N, class V> INLINE vec<elem<V>, N> repeated(V x) {
  vec<elem<V>, N> r;
  for (int i = 0; i < N; ++i) r[i] = x[i % lanes<V>];
  return r;
}
template <class V, class Longer> INLINE V first_lanes(Longer x) {
  V r;
  for (int i = 0; i < lanes<V>; ++i) r[i] = x[i];
  return r;
}
template <class V> INLINE V erf_v(V x) {
  if constexpr (!is_f32<V>) return erf_lanes(x);
#ifdef DC_AVX512
  else if constexpr (sizeof(V) == 64) return erf_quarters(x);
  else if constexpr (sizeof(V) == 16 || sizeof(V) == 32) return first_lanes<V>(erf_quarters(repeated<16>(x)));
#elif defined(DC_AVX2)
  else if constexpr (sizeof(V) == 32) return erf_eighths(x);
  else if constexpr (sizeof(V) == 16) return first_lanes<V>(erf_eighths(repeated<8>(x)));
#endif
  else {
    static constexpr f32 near[] = {1.12837917f - 1.0f, -0.376126353f, 0.112837197f, -0.0268607528f, 0.00520443605f, -0.000818192755f, 8.53884029e-5f};
    static constexpr f32 far[] = {
        -8.59411914e-5f, 1.12897972f, 0.634753574f, 0.10616732f, -0.023122641f, 0.00294060331f, 5.95303278e-5f, -0.000103407512f, 1.78624775e-5f,
        -1.11077349e-6f};
    V a = abs(x), z = x * x;
    V small = fma(x, polynomial(z, near), x);
    V c = at_most(a, 3.95f);  // 1 from there
    auto e = reduce_exp(-polynomial(c, far));
    V big = with_sign(1 - scale(1 + e.q, e.n), x);
    V r = a < 0.9f ? small : big;
    return x == x ? r : x;
  }
}

#ifdef DC_AVX512
// The normal distribution function in 32 pieces of width 3/8 around (k - 16) 3/8: coefficients of x 8/3 - (k - 16), looked up in
// registers. 0 up to -6, 1 from 5.625.
INLINE vec<f32, 16> ndtr_pieces(vec<f32, 16> x) {
  alignas(64) static constexpr f32 c[6][32] = {
      {0.0f, 9.27580508e-9f, 7.60516752e-8f, 5.44051039e-7f, 3.39770353e-6f, 1.85368224e-5f, 8.84174651e-5f, 0.000369078716f, 0.00134989818f,
       0.00433244796f, 0.0122244713f, 0.0303963599f, 0.0668072004f, 0.130294519f, 0.226627356f, 0.353830237f, 0.5f, 0.646169763f, 0.773372644f,
       0.869705481f, 0.9331928f, 0.96960364f, 0.987775529f, 0.995667552f, 0.998650102f, 0.999630921f, 0.999911583f, 0.999981463f, 0.999996602f,
       0.999999456f, 0.999999924f, 1.0f},
      {2.27847405e-9f, 2.01497218e-8f, 1.54818116e-7f, 1.03348016e-6f, 5.99390785e-6f, 3.02026791e-5f, 0.000132223396f, 0.000502919581f, 0.00166194311f,
       0.00477156798f, 0.0119023693f, 0.0257948534f, 0.0485690987f, 0.0794537426f, 0.112926537f, 0.13944566f, 0.149603355f, 0.13944566f, 0.112926537f,
       0.0794537426f, 0.0485690987f, 0.0257948534f, 0.0119023693f, 0.00477156798f, 0.00166194311f, 0.000502919581f, 0.000132223396f, 3.02026791e-5f,
       5.99390785e-6f, 1.03348016e-6f, 1.54818116e-7f, 2.01497218e-8f},
      {2.55845086e-9f, 2.12223183e-8f, 1.52249672e-7f, 9.44033174e-7f, 5.0551667e-6f, 2.33537927e-5f, 9.29566148e-5f, 0.000318234928f, 0.000934832408f,
       0.00234853553f, 0.00502140888f, 0.00906863894f, 0.0136601224f, 0.0167596461f, 0.0158799985f, 0.00980451676f, 0.0f, -0.00980451676f,
       -0.0158799985f, -0.0167596461f, -0.0136601224f, -0.00906863894f, -0.00502140888f, -0.00234853553f, -0.000934832408f, -0.000318234928f,
       -9.29566148e-5f, -2.33537927e-5f, -5.0551667e-6f, -9.44033174e-7f, -1.52249672e-7f, -2.12223183e-8f},
      {1.8677524e-9f, 1.44630941e-8f, 9.63504302e-8f, 5.51311297e-7f, 2.70392481e-6f, 1.13362796e-5f, 4.04793943e-5f, 0.00012247587f, 0.000311617448f,
       0.00065877827f, 0.00113329185f, 0.00152086286f, 0.0014229024f, 0.000494615503f, -0.0011579506f, -0.00280863477f, -0.00350628532f, -0.00280863477f,
       -0.0011579506f, 0.000494615503f, 0.0014229024f, 0.00152086286f, 0.00113329185f, 0.00065877827f, 0.000311617448f, 0.00012247587f, 4.04793943e-5f,
       1.13362796e-5f, 2.70392481e-6f, 5.51311297e-7f, 9.63504302e-8f, 1.44630941e-8f},
      {1.04234484e-9f, 7.44333857e-9f, 4.54507293e-8f, 2.36593754e-7f, 1.04564879e-6f, 3.90159703e-6f, 1.21905839e-5f, 3.14946033e-5f, 6.58449008e-5f,
       0.000106763457f, 0.000120332096f, 5.33461268e-5f, -0.000120737805f, -0.000339276243f, -0.000450453705f, -0.000325804616f, 0.0f,
       0.000325804616f, 0.000450453705f, 0.000339276243f, 0.000120737805f, -5.33461268e-5f, -0.000120332096f, -0.000106763457f, -6.58449008e-5f,
       -3.14946033e-5f, -1.21905839e-5f, -3.90159703e-6f, -1.04564879e-6f, -2.36593754e-7f, -4.54507293e-8f, -7.44333857e-9f},
      {4.20394245e-10f, 2.77992845e-9f, 1.55868512e-8f, 7.37088454e-8f, 2.91785758e-7f, 9.56192686e-7f, 2.5476511e-6f, 5.34052925e-6f, 8.18328458e-6f,
       7.09600125e-6f, -3.52748352e-6f, -2.43677969e-5f, -4.33037082e-5f, -3.88484969e-5f, -9.57081021e-7f, 4.97470271e-5f, 7.34990761e-5f,
       4.97470271e-5f, -9.57081021e-7f, -3.88484969e-5f, -4.33037082e-5f, -2.43677969e-5f, -3.52748352e-6f, 7.09600125e-6f, 8.18328458e-6f,
       5.34052925e-6f, 2.5476511e-6f, 9.56192686e-7f, 2.91785758e-7f, 7.37088454e-8f, 1.55868512e-8f, 2.77992845e-9f},
  };
  using V = vec<f32, 16>;
  const f32 base = Float<f32>::shift + 16, scale = 2.66666675f;
  x = at_least(at_most(x, 5.625f), -6.0f);
  V t = fma(x, scale, V{} + base), f = fma(x, scale, base - t), p = V{};  // the last five bits of t are k
  for (int i = 5; i >= 0; --i) {
    const auto piece = _mm512_permutex2var_ps(_mm512_load_ps(c[i]), bit_cast<__m512i>(t), _mm512_load_ps(c[i] + 16));
    p = fma(p, f, bit_cast<V>(piece));
  }
  return at_least(p, 0.0f);  // exactly 0 below
}
#endif
// (1 + erf(x / sqrt(2))) / 2
template <class V> INLINE V ndtr_v(V x) {
#ifdef DC_AVX512
  if constexpr (is_f32<V> && sizeof(V) == 64) return ndtr_pieces(x);
  else if constexpr (is_f32<V>) return first_lanes<V>(ndtr_pieces(repeated<16>(x)));
#endif
  return fma(erf_v(x * (elem<V>)0.70710678118654752), (elem<V>)0.5, V{} + (elem<V>)0.5);
}

// Whether |x| is above the bound, or x a NaN, in any lane.
template <class V> INLINE bool any_beyond(V x, f32 bound) {
#ifdef DC_AVX512
  if constexpr (sizeof(V) == 64) return _mm512_cmp_ps_mask(bit_cast<__m512>(abs(x)), _mm512_set1_ps(bound), _CMP_NLE_UQ) != 0;
#endif
  return bits_of_mask(~(abs(x) <= bound)) != 0;
}
#if defined(__FMA__) || defined(__AVX512F__) || defined(__aarch64__)
constexpr f32 REDUCED = 65536.0f;
#else
constexpr f32 REDUCED = 1.5f;
#endif
// sin and cos: x = n pi + r, for cos with n of halves, by three fused steps, exact enough up to 2^16; beyond (without
// fused steps: beyond the first half turn) the C library.
template <bool Cosine, class V> INLINE V sine(V x) {
  if constexpr (!is_f32<V>) {
    if constexpr (Cosine) return cos_lanes(x);
    else return sin_lanes(x);
  } else {
    static constexpr f32 c[] = {-0.166666596f, 0.00833306625f, -0.000198096034f, 2.60578161e-6f};
    const f32 shift = Float<f32>::shift;
    V t = Cosine ? fma(x, 0.318309886f, V{} - 0.5f) + shift : fma(x, 0.318309886f, V{} + shift), n = t - shift;  // the last bit of t is that of n
    if constexpr (Cosine) n += 0.5f;
    V r = fma(n, -0x1.846988p-47f, fma(n, -0x1.4442d0p-23f, fma(n, -0x1.921fb4p+1f, x))), z = r * r;
    const V sum = fma(r * z, polynomial(z, c), r);
    r = Cosine ? sum : with_sign(sum, r);  // -0 stays
    r = bit_cast<V>(bit_cast<mask_of<V>>(r) ^ (bit_cast<mask_of<V>>(t) << 31));
    if constexpr (Cosine) r = -r;
    if (__builtin_expect(any_beyond(x, REDUCED), 0)) r = abs(x) <= REDUCED ? r : Cosine ? cosf_lanes(x) : sinf_lanes(x);
    return r;
  }
}
template <class V> INLINE V sin_v(V x) { return sine<false>(x); }
template <class V> INLINE V cos_v(V x) { return sine<true>(x); }

// Two halves of a vector of f32 as f64, and back.
template <class V> struct Halves { vec<elem<V>, lanes<V> / 2> low, high; };
template <class V, class F> INLINE V in_f64(V x, V y, F f) {
  using D = vec<f64, lanes<V> / 2>;
  auto a = bit_cast<Halves<V>>(x), b = bit_cast<Halves<V>>(y);
  using H = decltype(a.low);
  Halves<V> r = {__builtin_convertvector(f(__builtin_convertvector(a.low, D), __builtin_convertvector(b.low, D)), H),
                 __builtin_convertvector(f(__builtin_convertvector(a.high, D), __builtin_convertvector(b.high, D)), H)};
  return bit_cast<V>(r);
}
// |x|^y for finite x, in f64 accurate to f32 and more.
template <class D> INLINE D power_f64(D x, D y) {
  static constexpr f64 l[] = {0.9617966939259086, 0.5770780165187581, 0.41219851874787018, 0.32060817079943599, 0.26170617175116744, 0.23982258365013033};
  static constexpr f64 e[] = {1.0, 0.69314718055994531, 0.24022650695910072, 0.055504108664821580, 0.0096181291076284772,
                              0.0013333558146428443, 0.00015403530393381609, 1.5252733804059840e-5, 1.3215486790144309e-6, 1.0178086009239699e-7};
  auto p = split(x);
  D s = p.f / (2 + p.f), z = s * s;
  D log2 = fma(s, fma(z, polynomial(z, l), D{} + 2.8853900817779268), p.e);
  D t = at_least(at_most(y * log2, 300.0), -300.0);
  D n = nearest(t);
  return scale(polynomial(t - n, e), n);
}
template <class V> INLINE V pow_v(V x, V y) {
  if constexpr (!is_f32<V>) {
    for (int i = 0; i < lanes<V>; ++i) x[i] = __builtin_pow(x[i], y[i]);
    return x;
  } else {
    const V infinity = V{} + __builtin_inff();
    V a = abs(x), ay = abs(y);
    V r = in_f64(a, y, [](auto p, auto q) { return power_f64(p, q); });
    auto large = ay >= 0x1p24f;  // a whole even number
    auto integer = __builtin_convertvector(large ? V{} : ay, mask_of<V>);
    auto whole = large | (__builtin_convertvector(integer, V) == ay);
    auto odd = whole & ((integer & 1) != 0);
    auto grows = (y > 0) == (a > 1);  // for a of inf or 0, y nonzero: to inf or to 0
    r = (a == infinity) | (a == 0) ? (grows ? infinity : V{}) : r;
    r = ay == infinity ? (grows ? infinity : V{}) : r;
    auto negative = bit_cast<mask_of<V>>(x) < 0;
    r = negative & odd ? -r : r;
    r = (x < 0) & (a < infinity) & ~whole ? V{} + __builtin_nanf("") : r;
    r = (x != x) | (y != y) ? x + y : r;
    return (x == 1) | (y == 0) | ((a == 1) & (ay == infinity)) ? V{} + 1 : r;
  }
}
template <class D> INLINE D angle_f64(D y, D x) {
  static constexpr f64 c[] = {
      0.99999999999866023, -0.33333333277936415, 0.19999996195648455, -0.14285611018959353, 0.11109639364533241, -0.090782228751350894,
      0.076204231949961998,
                              -0.063840321251175486, 0.050812538234792954, -0.035755428909941529, 0.020387362252217185, -0.0085096884214417424,
                              0.0022556257089721147, -0.00028084004744538253};
  D ax = abs(x), ay = abs(y);
  auto steep = ay > ax;
  D big = steep ? ay : ax, small = steep ? ax : ay;
  D t = small == big ? D{} + 1 : small / big;  // also inf / inf
  t = big == 0 ? D{} : t;
  D a = t * polynomial(t * t, c);
  a = steep ? 1.5707963267948966 - a : a;
  a = bit_cast<bits_of<D>>(x) < 0 ? 3.1415926535897931 - a : a;
  return (x != x) | (y != y) ? x + y : with_sign(a, y);
}
template <class V> INLINE V atan2_v(V y, V x) {
  if constexpr (is_f32<V>) return in_f64(y, x, [](auto p, auto q) { return angle_f64(p, q); });
  else {
    for (int i = 0; i < lanes<V>; ++i) y[i] = __builtin_atan2(y[i], x[i]);
    return y;
  }
}
DC_LIFT1(exp) DC_LIFT1(exp2) DC_LIFT1(expm1) DC_LIFT1(log) DC_LIFT1(log2) DC_LIFT1(log1p)
DC_LIFT1(sin) DC_LIFT1(cos) DC_LIFT1(tanh) DC_LIFT1(sigmoid) DC_LIFT1(erf) DC_LIFT1(ndtr)
DC_LIFT2(pow) DC_LIFT2(atan2)

// Divisions, remainders, shifts. An integer divided by 0 gives 0 (eager raises); the least integer by -1 wraps.
template <class T> INLINE T divide1(T a, T b) { return b == 0 ? 0 : b == (T)-1 && (T)-1 < 0 ? (T)(0 - (u64)a) : (T)(a / b); }
template <class T> INLINE T remainder1(T a, T b) { return b == 0 || (b == (T)-1 && (T)-1 < 0) ? 0 : (T)(a % b); }
template <class T> INLINE T fmod1(T a, T b) {
  if constexpr (is_float<T>) return same<T, f32> ? (T)__builtin_fmodf((f32)a, (f32)b) : (T)__builtin_fmod((f64)a, (f64)b);
  else return remainder1(a, b);
}
template <class T> INLINE T mod1(T a, T b) {
  T r = fmod1(a, b);
  return r != 0 && (r < 0) != (b < 0) ? (T)(r + b) : r;
}
template <class T> INLINE T floordiv1(T a, T b) {
  if constexpr (is_float<T>) {  // as Python: from the exact remainder
    if (b == 0) return a / b;
    T m = fmod1(a, b), d = (a - m) / b;
    if (m != 0 && (b < 0) != (m < 0)) d -= 1;
    if (d == 0) return same<T, f32> ? (T)__builtin_copysignf(0, (f32)(a / b)) : (T)__builtin_copysign(0, (f64)(a / b));
    T f = same<T, f32> ? (T)__builtin_floorf((f32)d) : (T)__builtin_floor((f64)d);
    return d - f > (T)0.5 ? f + 1 : f;
  } else {
    T q = divide1(a, b);
    return b != 0 && remainder1(a, b) != 0 && (a < 0) != (b < 0) ? (T)(q - 1) : q;
  }
}
template <class T> INLINE T shl1(T a, T b) { return (u64)b >= sizeof(T) * 8 ? 0 : (T)((u64)a << b); }
template <class T> INLINE T shr1(T a, T b) { return (u64)b >= sizeof(T) * 8 ? (T)(a < 0 ? -1 : 0) : (T)(a >> b); }
#define DC_LANES2(name) \
  template <class T> INLINE T name(T a, T b) { \
    if constexpr (!is_vector<T>) return name##1(a, b); \
    else { \
      for (int i = 0; i < lanes<T>; ++i) a[i] = name##1(a[i], b[i]); \
      return a; \
    } \
  }
// The number at a place of a block of a sequence of cuRAND's Philox generator, in (0, 1].
INLINE f32 uniform1(i64 seed, i64 sequence, i64 block, i64 place) {
  u32 c[4] = {(u32)block, (u32)((u64)block >> 32), (u32)sequence, (u32)((u64)sequence >> 32)}, k[2] = {(u32)seed, (u32)((u64)seed >> 32)};
  for (int round = 0; round < 10; ++round) {
    const u64 a = (u64)0xD2511F53u * c[0], b = (u64)0xCD9E8D57u * c[2];
    c[0] = (u32)(b >> 32) ^ c[1] ^ k[0], c[1] = (u32)b, c[2] = (u32)(a >> 32) ^ c[3] ^ k[1], c[3] = (u32)a;
    k[0] += 0x9E3779B9u, k[1] += 0xBB67AE85u;
  }
  return (f32)c[place & 3] * 0x1p-32f + 0x1p-33f;
}
template <class T> INLINE auto uniform(T seed, T sequence, T block, T place) {
  if constexpr (!is_vector<T>) return uniform1(seed, sequence, block, place);
  else {
    vec<f32, lanes<T>> r;
    for (int i = 0; i < lanes<T>; ++i) r[i] = uniform1(seed[i], sequence[i], block[i], place[i]);
    return r;
  }
}
DC_LANES2(fmod) DC_LANES2(mod) DC_LANES2(floordiv) DC_LANES2(shl) DC_LANES2(shr)

// One value from all lanes, in a tree. In a register lanes are turned; halves of a register would go through memory.
#if defined(DC_AVX512)
constexpr int REGISTER = 64;
#elif defined(__AVX2__)
constexpr int REGISTER = 32;
#else
constexpr int REGISTER = 16;
#endif
template <int By, class V> INLINE V turned(V v) {  // lane i becomes lane i + By, modulo their number
#ifdef __clang__
  V r;
  for (int i = 0; i < lanes<V>; ++i) r[i] = v[(i + By) % lanes<V>];
  return r;
#else
  return __builtin_shuffle(v, iota<lanes<V>, elem<bits_of<V>>>(By, 1));
#endif
}
template <int By, class V, class F> INLINE V folded(V v, F f) {
  if constexpr (By == 0) return v;
  else return folded<By / 2>(f(v, turned<By>(v)), f);
}
template <class V, class F> INLINE auto across(V v, F f) {
  if constexpr (lanes<V> == 2) return f(v[0], v[1]);
  else if constexpr (sizeof(V) <= REGISTER) return folded<lanes<V> / 2>(v, f)[0];
  else {
    auto h = bit_cast<Halves<V>>(v);
    return across(f(h.low, h.high), f);
  }
}
template <class V> INLINE auto across_sum(V v) { return across(v, [](auto a, auto b) -> decltype(a) { return a + b; }); }
template <class V> INLINE auto across_prod(V v) { return across(v, [](auto a, auto b) -> decltype(a) { return a * b; }); }
template <class V> INLINE auto across_max(V v) { return across(v, [](auto a, auto b) -> decltype(a) { return max(a, b); }); }
template <class V> INLINE auto across_min(V v) { return across(v, [](auto a, auto b) -> decltype(a) { return min(a, b); }); }
template <class M> INLINE bool across_any(M m) { return bits_of_mask(m) != 0; }
template <class M> INLINE bool across_all(M m) { return bits_of_mask(m) == (u32)((1ul << lanes<M>) - 1); }

// The best value and where it is (the first place wins; a NaN is better than anything). Max: argmax, else argmin. V, P: scalars or vectors.
template <bool Max, class V, class P> struct Best {
  V value;
  P at;
  INLINE void take(V v, P p) {
    auto better = [](V a, V b) {
      auto r = Max ? lt(b, a) : lt(a, b);
      if constexpr (is_float<elem<V>>) r = r | (isnan(a) & (isnan(b) ^ (is_vector<V> ? -1 : 1)));
      return r;
    };
    auto wins = better(v, value);
    auto ties = (better(value, v) | wins) ^ (is_vector<V> ? -1 : 1);
    auto takes = wins | (ties & lt(p, at));
    value = where(takes, v, value);
    at = where(takes, p, at);
  }
  INLINE void merge(const Best& other) { take(other.value, other.at); }
};
template <bool Max, class V, class P> INLINE auto across_best(const Best<Max, V, P>& b) {
  Best<Max, elem<V>, elem<P>> r = {b.value[0], b.at[0]};
  for (int i = 1; i < lanes<V>; ++i) r.take(b.value[i], b.at[i]);
  return r;
}

}  // namespace
