// Vectors of W lanes for the kernels that dynacompile emits: loads, stores, masks, conversions, loops, threads.
//
// A value of a kernel is a scalar (f32, f64, i64, i32, i16, i8, u8, bool), where it is the same in all lanes, or a GCC vector of W of them.
// A bool in lanes is a mask: a vector of W i32, each 0 or -1. bf16 and f16 exist in memory only: a load widens to f32, a store rounds.
// Needs GCC or Clang, C++17; AVX-512 or AVX2 where the target has it, plain vectors elsewhere.
#pragma once
#include "intrinsics.h"

extern "C" void GOMP_parallel(void (*run)(void*), void* data, unsigned threads, unsigned flags);
extern "C" void* aligned_alloc(unsigned long alignment, unsigned long size) noexcept;
extern "C" void free(void* memory) noexcept;
extern "C" int omp_get_max_threads();
extern "C" int omp_get_num_threads();
extern "C" int omp_get_thread_num();

namespace {

using f32 = float;
using f64 = double;
using i64 = long;
using i32 = int;
using i16 = short;
using i8 = signed char;
using u8 = unsigned char;
using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long;
struct bf16 { u16 bits; };
struct f16 { u16 bits; };
static_assert(sizeof(i64) == 8, "dynacompile needs a 64-bit target");

template <class T, int N> struct VectorOf {
  typedef T type __attribute__((vector_size(N * sizeof(T))));
  typedef T anywhere __attribute__((vector_size(N * sizeof(T)), aligned(sizeof(T)), may_alias));  // of any address of an element
};
template <class T, int N> using vec = typename VectorOf<T, N>::type;

#define INLINE [[gnu::always_inline]] inline
#define BODY __attribute__((always_inline))  // of a lambda
#define OUTLINED __attribute__((noinline))

// Lanes of a vector whose widest element has `bytes` bytes: one register.
#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__AVX512VL__)
#define DC_AVX512 1
constexpr int lanes_of(int bytes) { return bytes == 8 ? 8 : 16; }
#elif defined(__AVX2__)
#define DC_AVX2 1
constexpr int lanes_of(int bytes) { return bytes == 8 ? 4 : 8; }
#else
constexpr int lanes_of(int bytes) { return 4; }
#endif

// What a vector is made of.
template <class V> struct Traits { using elem = V; static constexpr int lanes = 1; static constexpr bool vector = false; };
#define DC_TRAITS(T, N) template <> struct Traits<vec<T, N>> { using elem = T; static constexpr int lanes = N; static constexpr bool vector = true; };
#define DC_TRAITS_OF(T) DC_TRAITS(T, 2) DC_TRAITS(T, 4) DC_TRAITS(T, 8) DC_TRAITS(T, 16)
DC_TRAITS_OF(f32) DC_TRAITS_OF(f64) DC_TRAITS_OF(i64) DC_TRAITS_OF(i32) DC_TRAITS_OF(i16)
DC_TRAITS_OF(i8) DC_TRAITS_OF(u8) DC_TRAITS_OF(u16) DC_TRAITS_OF(u32) DC_TRAITS_OF(u64)
template <class V> using elem = typename Traits<V>::elem;
template <class V> constexpr int lanes = Traits<V>::lanes;
template <class V> constexpr bool is_vector = Traits<V>::vector;
template <class T> constexpr bool is_float = false;
template <> constexpr bool is_float<f32> = true;
template <> constexpr bool is_float<f64> = true;
template <class A, class B> constexpr bool same = false;
template <class A> constexpr bool same<A, A> = true;
template <int Bytes> struct Signed;
template <> struct Signed<1> { using type = i8; };
template <> struct Signed<2> { using type = i16; };
template <> struct Signed<4> { using type = i32; };
template <> struct Signed<8> { using type = i64; };
template <class V> using bits_of = vec<typename Signed<sizeof(elem<V>)>::type, lanes<V>>;  // the vector of integers of the same shape
template <class V> using mask_of = vec<i32, lanes<V>>;

template <class To, class From> INLINE To bit_cast(From x) { return __builtin_bit_cast(To, x); }

// The value in all lanes; a bool becomes a mask; a vector stays.
template <int W, class T> INLINE auto all(T x) {
  if constexpr (is_vector<T>) return x;
  else if constexpr (same<T, bool>) return vec<i32, W>{} - (i32)x;
  else return x - vec<T, W>{};  // unlike 0 + x, keeps -0
}
// base, base + stride, ...
template <int W, class T> INLINE vec<T, W> iota(T base, T stride) {
  vec<T, W> r;
  for (int i = 0; i < W; ++i) r[i] = (T)i;
  return r * stride + base;
}

// Which lanes a step works on: All, or the First n. Ahead: all, and what lies a page ahead of what is loaded will soon be wanted.
struct All {
  static constexpr bool all = true, ahead = false;
  template <int W> INLINE static u32 bits() { return (u32)((1ul << W) - 1); }
  template <int W> INLINE static int count() { return W; }
  template <class V> INLINE static V pick(V a, V) { return a; }
};
struct Ahead : All {
  static constexpr bool ahead = true;
};
struct First {
  static constexpr bool all = false, ahead = false;
  int n;
  template <int W> INLINE u32 bits() const { return (u32)((1ul << n) - 1); }
  template <int W> INLINE int count() const { return n; }
  // a in the lanes worked on, b elsewhere
  template <class V> INLINE V pick(V a, V b) const {
    using I = elem<bits_of<V>>;
    return iota<lanes<V>, I>(0, 1) < (I)n ? a : b;
  }
};

// Elements as they lie in memory: lanes of `T` at p; lanes whose bit is 0 are not touched (a load gives 0 there).
//
// Vectors are accessed as vectors, never by memcpy: of a memcpy of 32 or 64 bytes GCC 12 makes the access of one wide integer, and of a
// constant in it, where its leading 64-bit words are equal and the rest is zero, a broadcast to all lanes (with AVX-512, at any -O).
template <int W, class T> INLINE vec<T, W> read(const T* p) { return *(const typename VectorOf<T, W>::anywhere*)p; }
template <class V> INLINE void write(elem<V>* p, V v) { *(typename VectorOf<elem<V>, lanes<V>>::anywhere*)p = v; }
#ifdef DC_AVX2
// AVX2 accesses lanes of 4 and of 8 bytes by a mask, a vector of integers of that width.
template <class T, int W> constexpr bool masked_access = (sizeof(T) == 4 && (W == 4 || W == 8)) || (sizeof(T) == 8 && W == 4);
template <class V> INLINE bits_of<V> mask_of_bits(u32 bits) {
  using I = elem<bits_of<V>>;
  const auto powers = all<lanes<V>>((I)1) << iota<lanes<V>, I>(0, 1);
  return (all<lanes<V>>((I)bits) & powers) == powers;
}
template <class T, class M> INLINE vec<T, lanes<M>> read_where(const T* p, M mask) {
  using V = vec<T, lanes<M>>;
  if constexpr (sizeof(T) == 8) return bit_cast<V>(_mm256_maskload_epi64((const long long*)p, bit_cast<__m256i>(mask)));
  else if constexpr (lanes<M> == 8) return bit_cast<V>(_mm256_maskload_epi32((const int*)p, bit_cast<__m256i>(mask)));
  else return bit_cast<V>(_mm_maskload_epi32((const int*)p, bit_cast<__m128i>(mask)));
}
template <class T, class V, class M> INLINE void write_where(T* p, V v, M mask) {
  if constexpr (sizeof(T) == 8) _mm256_maskstore_epi64((long long*)p, bit_cast<__m256i>(mask), bit_cast<__m256i>(v));
  else if constexpr (lanes<M> == 8) _mm256_maskstore_epi32((int*)p, bit_cast<__m256i>(mask), bit_cast<__m256i>(v));
  else _mm_maskstore_epi32((int*)p, bit_cast<__m128i>(mask), bit_cast<__m128i>(v));
}
#endif
template <int W, class T> INLINE vec<T, W> read(const T* p, u32 bits) {
  using V = vec<T, W>;
#ifdef DC_AVX2
  if constexpr (masked_access<T, W>) return read_where(p, mask_of_bits<V>(bits));
#endif
#ifdef DC_AVX512
  constexpr int size = sizeof(V), e = sizeof(T);
  if constexpr (e == 8 && size == 64) return bit_cast<V>(_mm512_maskz_loadu_epi64((__mmask8)bits, p));
  else if constexpr (e == 4 && size == 64) return bit_cast<V>(_mm512_maskz_loadu_epi32((__mmask16)bits, p));
  else if constexpr (e == 4 && size == 32) return bit_cast<V>(_mm256_maskz_loadu_epi32((__mmask8)bits, p));
  else if constexpr (e == 2 && size == 32) return bit_cast<V>(_mm256_maskz_loadu_epi16((__mmask16)bits, p));
  else if constexpr (e == 2 && size == 16) return bit_cast<V>(_mm_maskz_loadu_epi16((__mmask8)bits, p));
  else if constexpr (e == 1 && size == 16) return bit_cast<V>(_mm_maskz_loadu_epi8((__mmask16)bits, p));
  else if constexpr (e == 1 && size == 8) return bit_cast<V>(_mm_cvtsi128_si64(_mm_maskz_loadu_epi8((__mmask16)(bits & 255), p)));
#endif
  V v = {};
  for (int i = 0; i < W; ++i)
    if (bits >> i & 1) v[i] = p[i];
  return v;
}
template <class V> INLINE void write(elem<V>* p, V v, u32 bits) {
#ifdef DC_AVX2
  if constexpr (masked_access<elem<V>, lanes<V>>) return write_where(p, v, mask_of_bits<V>(bits));
#endif
#ifdef DC_AVX512
  constexpr int size = sizeof(V), e = sizeof(elem<V>);
  if constexpr (e == 8 && size == 64) return _mm512_mask_storeu_epi64(p, (__mmask8)bits, bit_cast<__m512i>(v));
  else if constexpr (e == 4 && size == 64) return _mm512_mask_storeu_epi32(p, (__mmask16)bits, bit_cast<__m512i>(v));
  else if constexpr (e == 4 && size == 32) return _mm256_mask_storeu_epi32(p, (__mmask8)bits, bit_cast<__m256i>(v));
  else if constexpr (e == 2 && size == 32) return _mm256_mask_storeu_epi16(p, (__mmask16)bits, bit_cast<__m256i>(v));
  else if constexpr (e == 2 && size == 16) return _mm_mask_storeu_epi16(p, (__mmask8)bits, bit_cast<__m128i>(v));
  else if constexpr (e == 1 && size == 16) return _mm_mask_storeu_epi8(p, (__mmask16)bits, bit_cast<__m128i>(v));
  else if constexpr (e == 1 && size == 8) return _mm_mask_storeu_epi8(p, (__mmask16)(bits & 255), _mm_cvtsi64_si128(bit_cast<i64>(v)));
#endif
  for (int i = 0; i < lanes<V>; ++i)
    if (bits >> i & 1) p[i] = v[i];
}

// Bit i is lane i of a mask.
template <class M> INLINE u32 bits_of_mask(M m) {
#ifdef DC_AVX512
  if constexpr (lanes<M> == 16) return _mm512_movepi32_mask(bit_cast<__m512i>(m));
  if constexpr (lanes<M> == 8) return _mm256_movepi32_mask(bit_cast<__m256i>(m));
#endif
#ifdef DC_AVX2
  if constexpr (lanes<M> == 8) return _mm256_movemask_ps(bit_cast<__m256>(m));
  if constexpr (lanes<M> == 4) return _mm_movemask_ps(bit_cast<__m128>(m));
#endif
  u32 bits = 0;
  for (int i = 0; i < lanes<M>; ++i) bits |= (u32)(m[i] & 1) << i;
  return bits;
}

// bf16 and f16 to f32 and back, rounding to the nearest, ties to even; a NaN stays a NaN.
template <class V> INLINE auto widen_bf16(V bits) {
#ifdef DC_AVX512
  if constexpr (lanes<V> == 16) return bit_cast<vec<f32, 16>>(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bit_cast<__m256i>(bits)), 16));
#endif
  return bit_cast<vec<f32, lanes<V>>>(__builtin_convertvector(bits, vec<u32, lanes<V>>) << 16);
}
template <class V> INLINE auto nearest_bf16_v(V x) {  // what memory would give back, without the way through 16 bits
  auto u = bit_cast<vec<u32, lanes<V>>>(x);
  return x == x ? bit_cast<V>((u + 0x7fff + (u >> 16 & 1)) & 0xffff0000) : x;
}
template <class V> INLINE auto round_bf16(V x) {
#if defined(DC_AVX512) && defined(__AVX512BF16__)
  if constexpr (lanes<V> == 16)  // the instruction rounds denormals to 0
    if (__builtin_expect(_mm512_fpclass_ps_mask(bit_cast<__m512>(x), 0x20) == 0, 1)) return bit_cast<vec<u16, 16>>(_mm512_cvtneps_pbh(bit_cast<__m512>(x)));
#endif
  auto u = bit_cast<vec<u32, lanes<V>>>(x);
  auto r = (u + 0x7fff + (u >> 16 & 1)) >> 16;
  return __builtin_convertvector(x == x ? r : all<lanes<V>>((u32)0x7fc0), vec<u16, lanes<V>>);
}
// f16 by integer arithmetic, for targets without the instruction.
INLINE f32 widen_f16_bits(u16 h) {
  u32 magnitude = (u32)(h & 0x7fff) << 13, sign = (u32)(h & 0x8000) << 16;
  f32 scaled = bit_cast<f32>(magnitude) * 0x1p112f;  // also right for denormals
  return bit_cast<f32>((magnitude >= (31u << 23) ? magnitude | 0x7f800000 : bit_cast<u32>(scaled)) | sign);
}
INLINE u16 round_f16_bits(f32 x) {
  u32 u = bit_cast<u32>(x), sign = u >> 16 & 0x8000, a = u & 0x7fffffff;
  if (a > 0x7f800000) return (u16)(sign | 0x7e00);
  if (a >= 0x47800000) return (u16)(sign | 0x7c00);
  if (a < 0x38800000) return (u16)(sign | (bit_cast<u32>(bit_cast<f32>(a) + 0.5f) - 0x3f000000));  // a denormal: the addition rounds
  return (u16)(sign | ((a - 0x38000000 + 0xfff + (a >> 13 & 1)) >> 13));
}
template <class V> INLINE auto widen_f16(V bits) {
#ifdef DC_AVX512
  if constexpr (lanes<V> == 16) return bit_cast<vec<f32, 16>>(_mm512_cvtph_ps(bit_cast<__m256i>(bits)));
#endif
#ifdef __F16C__
  if constexpr (lanes<V> == 8) return bit_cast<vec<f32, 8>>(_mm256_cvtph_ps(bit_cast<__m128i>(bits)));
#endif
  vec<f32, lanes<V>> r;
  for (int i = 0; i < lanes<V>; ++i) r[i] = widen_f16_bits(bits[i]);
  return r;
}
template <class V> INLINE auto round_f16(V x) {
#ifdef DC_AVX512
  if constexpr (lanes<V> == 16) return bit_cast<vec<u16, 16>>(_mm512_cvtps_ph(bit_cast<__m512>(x), 0));
#endif
#ifdef __F16C__
  if constexpr (lanes<V> == 8) return bit_cast<vec<u16, 8>>(_mm256_cvtps_ph(bit_cast<__m256>(x), 0));
#endif
  vec<u16, lanes<V>> r;
  for (int i = 0; i < lanes<V>; ++i) r[i] = round_f16_bits(x[i]);
  return r;
}

// A scalar of memory as a value, and back.
template <class T> INLINE auto value(T x) {
  if constexpr (same<T, bf16>) return bit_cast<f32>((u32)x.bits << 16);
  else if constexpr (same<T, f16>) return widen_f16_bits(x.bits);
  else return x;
}
template <class T, class V> INLINE T memory(V x) {
  if constexpr (same<T, bf16>) return {round_bf16(vec<f32, 4>{x})[0]};
  else if constexpr (same<T, f16>) return {round_f16_bits(x)};
  else if constexpr (same<T, bool>) return x != 0;
  else return (T)x;
}
template <class T> struct ValueOf { using type = decltype(value(T{})); };
template <class T> using value_type = typename ValueOf<T>::type;

// Vectors of consecutive elements of memory as values, and back.
template <class T> struct Bits { using type = T; };
template <> struct Bits<bf16> { using type = u16; };
template <> struct Bits<f16> { using type = u16; };
template <> struct Bits<bool> { using type = u8; };
template <class T, class V> INLINE auto values(V raw) {
  if constexpr (same<T, bf16>) return widen_bf16(raw);
  else if constexpr (same<T, f16>) return widen_f16(raw);
  else if constexpr (same<T, bool>) return __builtin_convertvector(raw, mask_of<V>) != 0;
  else return raw;
}
template <class T, class V> INLINE auto memories(V x) {
  if constexpr (same<T, bf16>) return round_bf16(x);
  else if constexpr (same<T, f16>) return round_f16(x);
  else if constexpr (same<T, bool>) return __builtin_convertvector(-x, vec<u8, lanes<V>>);
  else return x;
}
template <int W, class T, class On> INLINE auto load(const T* p, On on) {
  auto q = (const typename Bits<T>::type*)p;
  if constexpr (On::ahead) __builtin_prefetch((const char*)p + 4096);  // the processor's own prefetching ends with a page
  if constexpr (On::all) return values<T>(read<W>(q));
  else return values<T>(read<W>(q, on.template bits<W>()));
}
// Asks for n elements, up to a page of them: the processor goes on by itself.
template <class T> INLINE void fetch(const T* p, i64 n) {
  const i64 bytes = n * (i64)sizeof(T) < 4096 ? n * (i64)sizeof(T) : 4096;
  for (i64 b = 0; b < bytes; b += 64) __builtin_prefetch((const char*)p + b);
}
template <class T, class V, class On> INLINE void store(T* p, V x, On on) {
  auto raw = memories<T>(x);
  auto q = (elem<decltype(raw)>*)p;
  if constexpr (On::all) write(q, raw);
  else write(q, raw, on.template bits<lanes<V>>());
}
template <class V> INLINE auto widen_mask(mask_of<V> m) {
  if constexpr (sizeof(elem<V>) == 4) return m;
  else return __builtin_convertvector(m, bits_of<V>);
}
template <int W, class T, class M, class On> INLINE vec<T, W> read_if(M mask, const T* p, On on) {
#ifdef DC_AVX2
  if constexpr (masked_access<T, W>) return read_where(p, widen_mask<vec<T, W>>(on.pick(mask, M{})));
#endif
  return read<W>(p, bits_of_mask(mask) & on.template bits<W>());
}
template <class V, class M, class On> INLINE void write_if(M mask, elem<V>* p, V x, On on) {
#ifdef DC_AVX2
  if constexpr (masked_access<elem<V>, lanes<V>>) return write_where(p, x, widen_mask<V>(on.pick(mask, M{})));
#endif
  write(p, x, bits_of_mask(mask) & on.template bits<lanes<V>>());
}
// Where the mask is false: `other`, and no memory is touched.
template <int W, class T, class M, class V, class On> INLINE auto load_if(M mask, const T* p, V other, On on) {
  auto q = (const typename Bits<T>::type*)p;
  auto x = values<T>(read_if<W>(mask, q, on));
  using X = decltype(x);
  return widen_mask<X>(mask) ? x : X(all<W>(other));
}
template <class T, class M, class V, class On> INLINE void store_if(M mask, T* p, V x, On on) {
  auto raw = memories<T>(x);
  write_if(mask, (elem<decltype(raw)>*)p, raw, on);
}
// Lane by lane, for accesses that are not consecutive: f(lane) is a scalar value.
template <int W, class F, class On> INLINE auto gather(F f, On on) {
  using T = decltype(f(0));
  vec<T, W> r = {};
  const int n = on.template count<W>();
  for (int i = 0; i < n; ++i) r[i] = f(i);
  return r;
}
// Elements p[0], p[stride], ...
template <int W, class T, class On> INLINE auto gather_strided(const T* p, i64 stride, On on) {
#ifdef DC_AVX512
  if constexpr (W == 16 && sizeof(T) == 4) {
    const auto places = _mm512_mullo_epi32(bit_cast<__m512i>(iota<16>(0, 1)), _mm512_set1_epi32((i32)stride));
    return bit_cast<vec<T, 16>>(_mm512_mask_i32gather_epi32(_mm512_setzero_si512(), (__mmask16)on.template bits<16>(), places, p, 4));
  }
#endif
  return gather<W>([&](int l) { return value(p[l * stride]); }, on);
}
template <int W, class F, class On> INLINE auto gather_bool(F f, On on) {
  vec<i32, W> r = {};
  const int n = on.template count<W>();
  for (int i = 0; i < n; ++i) r[i] = -(i32)f(i);
  return r;
}
// f(i, 0), f(i + 1, 1), ... for each lane by itself.
template <int W, class F, class On> INLINE void each_lane(i64 i, F f, On on) {
  if constexpr (On::all) {
#pragma GCC unroll 16
    for (int l = 0; l < W; ++l) f(i + l, l);
  } else
    for (int l = 0; l < on.n; ++l) f(i + l, l);
}
// The same as a vector of what f gives.
template <int W, class F, class On> INLINE auto gather_each_lane(i64 i, F f, On on) {
  return gather<W>([&](int l) BODY { return f(i + l, l); }, on);
}
template <int W, class F, class On> INLINE auto gather_bool_each_lane(i64 i, F f, On on) {
  return gather_bool<W>([&](int l) BODY { return f(i + l, l); }, on);
}

// to[r * to_apart + c] = from[c * from_apart + r], in squares of W x W elements where the compiler has shuffles of vectors (GCC 12, Clang).
#if defined(__has_builtin)
#if __has_builtin(__builtin_shufflevector)
#define DC_SHUFFLES 1
// The first, or last, halves of a and b, element by element in turn.
template <class V> INLINE V zip_first(V a, V b) {
  if constexpr (lanes<V> == 16) return __builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
  else if constexpr (lanes<V> == 8) return __builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11);
  else return __builtin_shufflevector(a, b, 0, 4, 1, 5);
}
template <class V> INLINE V zip_last(V a, V b) {
  if constexpr (lanes<V> == 16) return __builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
  else if constexpr (lanes<V> == 8) return __builtin_shufflevector(a, b, 4, 12, 5, 13, 6, 14, 7, 15);
  else return __builtin_shufflevector(a, b, 2, 6, 3, 7);
}
template <int W, class T> INLINE void transposed_square(T* to, i64 to_apart, const T* from, i64 from_apart) {
  vec<T, W> rows[W], next[W];
#pragma GCC unroll 16
  for (int i = 0; i < W; ++i) rows[i] = read<W>(from + i * from_apart);
#pragma GCC unroll 4
  for (int zipped = 1; zipped < W; zipped *= 2) {
#pragma GCC unroll 8
    for (int i = 0; i < W / 2; ++i) next[2 * i] = zip_first(rows[i], rows[i + W / 2]), next[2 * i + 1] = zip_last(rows[i], rows[i + W / 2]);
#pragma GCC unroll 16
    for (int i = 0; i < W; ++i) rows[i] = next[i];
  }
#pragma GCC unroll 16
  for (int i = 0; i < W; ++i) write(to + i * to_apart, rows[i]);
}
#endif
#endif
template <int W, class T> OUTLINED void transposed(T* to_, i64 to_apart, const T* from_, i64 from_apart, i64 rows, i64 columns) {
  auto to = (typename Bits<T>::type*)to_;
  auto from = (const typename Bits<T>::type*)from_;
  i64 r = 0, c = 0;
#ifdef DC_SHUFFLES
  for (; c + W <= columns; c += W)
    for (r = 0; r + W <= rows; r += W) transposed_square<W>(to + r * to_apart + c, to_apart, from + c * from_apart + r, from_apart);
  for (i64 k = 0; k < c; ++k)
    for (i64 rest = r; rest < rows; ++rest) to[rest * to_apart + k] = from[k * from_apart + rest];
#endif
  for (; c < columns; ++c)
    for (r = 0; r < rows; ++r) to[r * to_apart + c] = from[c * from_apart + r];
}

// The same, without a call where the block is a whole one of Side x Side elements.
template <int W, int Side, int Other, class T> INLINE void transposed_whole(T* to_, i64 to_apart, const T* from_, i64 from_apart, i64 rows, i64 columns) {
#ifdef DC_SHUFFLES
  if (rows == Side && columns == Other) {
    auto to = (typename Bits<T>::type*)to_;
    auto from = (const typename Bits<T>::type*)from_;
    for (int c = 0; c < Other; c += W)
      for (int r = 0; r < Side; r += W) transposed_square<W>(to + r * to_apart + c, to_apart, from + c * from_apart + r, from_apart);
    return;
  }
#endif
  transposed<W>(to_, to_apart, from_, from_apart, rows, columns);
}

// Scratch of a kernel holds values: a mask as i32.
template <int W, class T> INLINE auto get(const T* p) { return read<W>(p); }
template <class T, class V> INLINE void put(T* p, V x) { write(p, x); }

// f(i, All) for i = begin, begin + W, ..., and f(i, First) with what is left.
template <int W, class F> INLINE void each(i64 begin, i64 end, F f) {
  i64 i = begin;
  for (; i + W <= end; i += W) f(i, All{});
  if (i < end) f(i, First{(int)(end - i)});
}
// The same over `length` elements, which a Length<n> makes a constant: sums of a small tile then stay in registers.
template <int n> struct Length {
  constexpr operator i64() const { return n; }
};
template <int W, class N, class F> INLINE void each_from(i64 begin, N length, F f) {
  const i64 n = length, full = n & -(i64)W;
  for (i64 i = 0; i < full; i += W) f(begin + i, All{});
  if (full < n) f(begin + full, First{(int)(n - full)});
}
// The same, `Unroll` vectors per step.
template <int Unroll, int W, class F> INLINE void each_of(i64 begin, i64 end, F f) {
  i64 i = begin;
  for (; i + Unroll * W <= end; i += Unroll * W) {
    f(i, All{});
    f(i + W, All{});
    if constexpr (Unroll == 4) {
      f(i + 2 * W, All{});
      f(i + 3 * W, All{});
    }
  }
  each<W>(i, end, f);
}
// The same with accumulators in turn: f(i, on, accumulator). On: All or Ahead, for whole vectors.
template <int W, class On, class A, class F> INLINE void each_into(i64 begin, i64 end, A (&a)[4], F f) {
  i64 i = begin;
  for (; i + 4 * W <= end; i += 4 * W) {
    f(i, On{}, a[0]);
    f(i + W, On{}, a[1]);
    f(i + 2 * W, On{}, a[2]);
    f(i + 3 * W, On{}, a[3]);
  }
  if (i + 2 * W <= end) {
    f(i, On{}, a[0]);
    f(i + W, On{}, a[1]);
    i += 2 * W;
  }
  if (i + W <= end) {
    f(i, On{}, a[2]);
    i += W;
  }
  if (i < end) f(i, First{(int)(end - i)}, a[3]);
}
template <int W, class On, class A, class F> INLINE void each_into(i64 begin, i64 end, A (&a)[1], F f) {
  i64 i = begin;
  for (; i + W <= end; i += W) f(i, On{}, a[0]);
  if (i < end) f(i, First{(int)(end - i)}, a[0]);
}
template <class A> INLINE const A& gathered(A (&a)[4]) {
  a[0].merge(a[1]);
  a[2].merge(a[3]);
  a[0].merge(a[2]);
  return a[0];
}
template <class A> INLINE const A& gathered(A (&a)[1]) { return a[0]; }
// A sum of floats with what its additions lost by rounding, each exactly (Knuth's two-sum): as good as in twice the precision.
template <class V> struct Exact {
  V sum, lost;
  INLINE void add(V x) {
    const V s = sum + x, taken = s - sum;
    lost += (sum - (s - taken)) + (x - taken);
    sum = s;
  }
  // of infinite sums that is NaN
  INLINE V value() const {
    const V s = sum + lost;
    return s == s ? s : sum;
  }
};
template <class V> INLINE Exact<V> exact(V sum, V lost) { return {sum, lost}; }
template <bool First, class A, class B> struct Either { using type = A; };
template <class A, class B> struct Either<false, A, B> { using type = B; };
// The accumulated elements begin..end: f(i, on, accumulator), with `Sets` accumulators in turn.
template <class A, int Sets, int W, class On, class F> INLINE auto unbroken(i64 begin, i64 end, F f) {
  A a[Sets];
  each_into<W, On>(begin, end, a, f);
  return gathered(a).part();
}
// The same, at most, or exactly, `Most` of them, with floats added up: of every `Block` vectors that an accumulator took in, the sum goes to a total.
template <class Total, class A, int Sets, int W, class On, int Block, i64 Most = 1l << 62, bool Exact = false, class F>
INLINE auto blocks(i64 begin, i64 end, F f) {
  constexpr i64 block = (i64)Block * Sets * W;
  if constexpr (Most <= block) return unbroken<A, Sets, W, On>(begin, end, f);
  else {
    constexpr bool few = Most <= Block * block;  // of which a sum may be rounded as often as one of few vectors
    typename Either<few, A, Total>::type total;
    for (i64 b = begin; b < end; b += block) {
      A a[Sets];
      each_into<W, On>(b, (Exact && Most % block == 0) || b + block < end ? b + block : end, a, f);
      if constexpr (few) total.merge(gathered(a));
      else total.take(gathered(a));
    }
    return total.part();
  }
}
// The same over rows of `length` elements: f(row, from, to, accumulators).
template <class A, int Sets, int W, class N, class F> INLINE auto unbroken_steps(i64 begin, i64 end, N length, F f) {
  A a[Sets];
  for (i64 s = begin; s < end; ++s) f(s, 0, length, a);
  return gathered(a).part();
}
template <class Total, class A, int Sets, int W, int Block, i64 Most, bool Exact, i64 n, class F>
INLINE auto blocks_of_steps(i64 begin, i64 end, F f) {
  constexpr i64 block = (i64)Block * Sets * W, vectors = (n + Sets * W - 1) / (Sets * W), rows = vectors < Block ? Block / vectors : 1;
  constexpr bool few = Most * ((n + block - 1) / block) <= Block;  // of which a sum may be rounded as often as one of few vectors
  typename Either<few, A, Total>::type total;
  for (i64 b = begin; b < end; b += rows) {
    const i64 e = (Exact && Most % rows == 0) || b + rows < end ? b + rows : end;
    for (i64 from = 0; from < n; from += block) {
      A a[Sets];
      for (i64 s = b; s < e; ++s)
        if constexpr (n <= block) f(s, 0, n, a);
        else f(s, from, from + block < n ? from + block : n, a);
      if constexpr (few) total.merge(gathered(a));
      else total.take(gathered(a));
    }
  }
  return total.part();
}
// The same over rows of n elements, which may be few or many. Where they are many, it is a function of its own.
template <class Total, class A, int Sets, int W, int Block, class F> INLINE auto blocks_of_any_steps(i64 begin, i64 end, i64 n, F f) {
  constexpr i64 vector = (i64)Sets * W, block = (Block < 16 ? Block : 16) * vector;
  if (n > block)
    return [=]() OUTLINED {
      Total total;
      for (i64 s = begin; s < end; ++s)
        for (i64 from = 0; from < n; from += block) {
          A a[Sets];
          f(s, from, from + block < n ? from + block : n, a);
          total.take(gathered(a));
        }
      return total.part();
    }();
  const i64 rows = n <= vector ? Block : n <= 2 * vector ? Block / 2 : n <= 4 * vector ? Block / 4 : n <= 8 * vector ? Block / 8 : 1;
  Total total;
  for (i64 b = begin; b < end; b += rows) {
    const i64 e = b + rows < end ? b + rows : end;
    A a[Sets];
    for (i64 s = b; s < e; ++s) f(s, 0, n, a);
    if (b == begin) (A&)total = gathered(a);
    else total.take(gathered(a));
  }
  return total.part();
}
// The same over `Most` short rows, which four accumulators take in in turn.
template <class Total, class A, int W, int Block, i64 Most, int n, class F> INLINE auto blocks_of_short_steps(i64 begin, i64 end, F f) {
  constexpr i64 vectors = (n + W - 1) / W, rows = Block > vectors ? Block / vectors * 4 : 4;
  constexpr bool few = Most <= Block / 2 * rows;
  typename Either<few, A, Total>::type total;
  for (i64 b = begin; b < end; b += rows) {
    const i64 e = b + rows < end ? b + rows : end;
    A a[4];
    i64 s = b;
    for (; s + 4 <= e; s += 4)
      for (int k = 0; k < 4; ++k) f(s + k, 0, n, (A(&)[1])a[k]);
    for (; s < e; ++s) f(s, 0, n, (A(&)[1])a[0]);
    if constexpr (Most <= rows) return gathered(a).part();
    else if constexpr (few) total.merge(gathered(a));
    else total.take(gathered(a));
  }
  return total.part();
}
// parts[0] takes in the other parts, in a fixed tree, whatever the number of threads.
template <class A> INLINE void merge_parts(A* parts, i64 n) {
  for (i64 width = 1; width < n; width *= 2)
    for (i64 i = 0; i + width < n; i += 2 * width) parts[i].merge(parts[i + width]);
}

#ifndef DC_THREADS
#define DC_THREADS 0  // as many as the calling thread's setting says
#endif
// body(begin, end) over 0..n, on the calling thread's OpenMP team where the work is worth it. The call is the one that GCC makes of a
// parallel region; every OpenMP runtime on Linux has it, so that any compiler's kernels run on the runtime that torch has loaded.
template <class F> struct Region {
  const F* body;
  i64 n;
  bool alone = false;  // on the calling thread, whatever team that is in
  static void run(void* region) {
    const F body = *((Region*)region)->body;  // a copy, whose pointers stay in registers
    const bool alone = ((Region*)region)->alone;
    const i64 n = ((Region*)region)->n, threads = alone ? 1 : omp_get_num_threads(), me = alone ? 0 : omp_get_thread_num();
    const i64 begin = n * me / threads, end = n * (me + 1) / threads;
    if (begin < end) body(begin, end);
  }
};
// With one thread where the work of this call is not worth more.
template <class F> INLINE void parallel_when(bool wide, i64 n, F body) {
  Region<F> region = {&body, n, !wide};
  if (wide) GOMP_parallel(Region<F>::run, &region, DC_THREADS, 0);
  else Region<F>::run(&region);
}
// Whether threads that share out so many tasks have about as many each.
INLINE bool are_enough(i64 tasks) {
  const i64 threads = DC_THREADS ? DC_THREADS : omp_get_max_threads();
  return tasks % threads == 0 || tasks >= 4 * threads;
}
// Memory of a thread whose size only the call knows.
template <class T> struct Scratch {
  T* data;
  explicit Scratch(i64 n) : data((T*)aligned_alloc(64, (n * sizeof(T) + 127) / 64 * 64)) {}
  Scratch(const Scratch&) = delete;
  ~Scratch() { free(data); }
};
template <bool Wide, class F> INLINE void parallel(i64 n, F body) {
  if constexpr (Wide) {
    Region<F> region = {&body, n};
    GOMP_parallel(Region<F>::run, &region, DC_THREADS, 0);
  } else body(0, n);
}

}  // namespace
