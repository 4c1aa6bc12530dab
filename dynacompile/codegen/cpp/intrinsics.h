// The few AVX intrinsics that vec.h and vecmath.h use. GCC parses <immintrin.h> for longer than it takes to compile a usual kernel, so for
// GCC they are spelt by its builtins here. DC_IMMINTRIN asks for the real header: what the build falls back to where a GCC refuses these.
#pragma once
#if defined(__x86_64__) && (defined(DC_IMMINTRIN) || defined(__clang__) || !defined(__GNUC__))
#include <immintrin.h>
#elif defined(__x86_64__)

typedef float __m128 __attribute__((vector_size(16), may_alias));
typedef double __m128d __attribute__((vector_size(16), may_alias));
typedef long long __m128i __attribute__((vector_size(16), may_alias));
typedef float __m256 __attribute__((vector_size(32), may_alias));
typedef double __m256d __attribute__((vector_size(32), may_alias));
typedef long long __m256i __attribute__((vector_size(32), may_alias));
typedef float __m512 __attribute__((vector_size(64), may_alias));
typedef double __m512d __attribute__((vector_size(64), may_alias));
typedef long long __m512i __attribute__((vector_size(64), may_alias));
typedef unsigned char __mmask8;
typedef unsigned short __mmask16;

namespace {

typedef char v16qi __attribute__((vector_size(16)));
typedef short v8hi __attribute__((vector_size(16)));
typedef short v16hi __attribute__((vector_size(32)));
typedef int v8si __attribute__((vector_size(32)));
typedef int v16si __attribute__((vector_size(64)));
typedef long long v8di __attribute__((vector_size(64)));
typedef float v4sf __attribute__((vector_size(16)));
typedef float v8sf __attribute__((vector_size(32)));
typedef float v16sf __attribute__((vector_size(64)));
typedef double v2df __attribute__((vector_size(16)));
typedef double v4df __attribute__((vector_size(32)));
typedef double v8df __attribute__((vector_size(64)));

#define DC_INTRINSIC [[gnu::always_inline]] inline
#define _CMP_NLT_UQ 0x05
#define _CMP_NLE_UQ 0x06
constexpr int CURRENT_ROUNDING = 4;

#ifdef __FMA__
DC_INTRINSIC __m128 _mm_fmadd_ps(__m128 a, __m128 b, __m128 c) { return (__m128)__builtin_ia32_vfmaddps((v4sf)a, (v4sf)b, (v4sf)c); }
DC_INTRINSIC __m128d _mm_fmadd_pd(__m128d a, __m128d b, __m128d c) { return (__m128d)__builtin_ia32_vfmaddpd((v2df)a, (v2df)b, (v2df)c); }
DC_INTRINSIC __m256 _mm256_fmadd_ps(__m256 a, __m256 b, __m256 c) { return (__m256)__builtin_ia32_vfmaddps256((v8sf)a, (v8sf)b, (v8sf)c); }
DC_INTRINSIC __m256d _mm256_fmadd_pd(__m256d a, __m256d b, __m256d c) { return (__m256d)__builtin_ia32_vfmaddpd256((v4df)a, (v4df)b, (v4df)c); }
#endif
#ifdef __F16C__
DC_INTRINSIC __m256 _mm256_cvtph_ps(__m128i x) { return (__m256)__builtin_ia32_vcvtph2ps256((v8hi)x); }
#define _mm256_cvtps_ph(x, mode) ((__m128i)__builtin_ia32_vcvtps2ph256((v8sf)(x), mode))
#endif
#ifdef __AVX2__
typedef int v4si __attribute__((vector_size(16)));
typedef long long v4di __attribute__((vector_size(32)));
DC_INTRINSIC int _mm_movemask_ps(__m128 x) { return __builtin_ia32_movmskps((v4sf)x); }
DC_INTRINSIC int _mm256_movemask_ps(__m256 x) { return __builtin_ia32_movmskps256((v8sf)x); }
DC_INTRINSIC __m256 _mm256_load_ps(const float* p) { return *(const __m256*)p; }
DC_INTRINSIC __m256 _mm256_permutevar8x32_ps(__m256 x, __m256i at) { return (__m256)__builtin_ia32_permvarsf256((v8sf)x, (v8si)at); }
DC_INTRINSIC __m128i _mm_maskload_epi32(const int* p, __m128i m) { return (__m128i)__builtin_ia32_maskloadd((const v4si*)p, (v4si)m); }
DC_INTRINSIC __m256i _mm256_maskload_epi32(const int* p, __m256i m) { return (__m256i)__builtin_ia32_maskloadd256((const v8si*)p, (v8si)m); }
DC_INTRINSIC __m256i _mm256_maskload_epi64(const long long* p, __m256i m) { return (__m256i)__builtin_ia32_maskloadq256((const v4di*)p, (v4di)m); }
DC_INTRINSIC void _mm_maskstore_epi32(int* p, __m128i m, __m128i x) { __builtin_ia32_maskstored((v4si*)p, (v4si)m, (v4si)x); }
DC_INTRINSIC void _mm256_maskstore_epi32(int* p, __m256i m, __m256i x) { __builtin_ia32_maskstored256((v8si*)p, (v8si)m, (v8si)x); }
DC_INTRINSIC void _mm256_maskstore_epi64(long long* p, __m256i m, __m256i x) { __builtin_ia32_maskstoreq256((v4di*)p, (v4di)m, (v4di)x); }
#endif
DC_INTRINSIC __m128i _mm_cvtsi64_si128(long long x) { return __m128i{x, 0}; }
DC_INTRINSIC long long _mm_cvtsi128_si64(__m128i x) { return x[0]; }

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__AVX512VL__)
DC_INTRINSIC __m512i _mm512_maskz_loadu_epi64(__mmask8 m, const void* p) { return (__m512i)__builtin_ia32_loaddqudi512_mask((const long long*)p, v8di{}, m); }
DC_INTRINSIC __m512i _mm512_maskz_loadu_epi32(__mmask16 m, const void* p) { return (__m512i)__builtin_ia32_loaddqusi512_mask((const int*)p, v16si{}, m); }
DC_INTRINSIC __m256i _mm256_maskz_loadu_epi32(__mmask8 m, const void* p) { return (__m256i)__builtin_ia32_loaddqusi256_mask((const int*)p, v8si{}, m); }
DC_INTRINSIC __m256i _mm256_maskz_loadu_epi16(__mmask16 m, const void* p) { return (__m256i)__builtin_ia32_loaddquhi256_mask((const short*)p, v16hi{}, m); }
DC_INTRINSIC __m128i _mm_maskz_loadu_epi16(__mmask8 m, const void* p) { return (__m128i)__builtin_ia32_loaddquhi128_mask((const short*)p, v8hi{}, m); }
DC_INTRINSIC __m128i _mm_maskz_loadu_epi8(__mmask16 m, const void* p) { return (__m128i)__builtin_ia32_loaddquqi128_mask((const char*)p, v16qi{}, m); }
DC_INTRINSIC void _mm512_mask_storeu_epi64(void* p, __mmask8 m, __m512i x) { __builtin_ia32_storedqudi512_mask((long long*)p, (v8di)x, m); }
DC_INTRINSIC void _mm512_mask_storeu_epi32(void* p, __mmask16 m, __m512i x) { __builtin_ia32_storedqusi512_mask((int*)p, (v16si)x, m); }
DC_INTRINSIC void _mm256_mask_storeu_epi32(void* p, __mmask8 m, __m256i x) { __builtin_ia32_storedqusi256_mask((int*)p, (v8si)x, m); }
DC_INTRINSIC void _mm256_mask_storeu_epi16(void* p, __mmask16 m, __m256i x) { __builtin_ia32_storedquhi256_mask((short*)p, (v16hi)x, m); }
DC_INTRINSIC void _mm_mask_storeu_epi16(void* p, __mmask8 m, __m128i x) { __builtin_ia32_storedquhi128_mask((short*)p, (v8hi)x, m); }
DC_INTRINSIC void _mm_mask_storeu_epi8(void* p, __mmask16 m, __m128i x) { __builtin_ia32_storedquqi128_mask((char*)p, (v16qi)x, m); }
DC_INTRINSIC __mmask16 _mm512_movepi32_mask(__m512i x) { return __builtin_ia32_cvtd2mask512((v16si)x); }
DC_INTRINSIC __mmask8 _mm256_movepi32_mask(__m256i x) { return __builtin_ia32_cvtd2mask256((v8si)x); }
DC_INTRINSIC __m512 _mm512_cvtph_ps(__m256i x) { return (__m512)__builtin_ia32_vcvtph2ps512_mask((v16hi)x, v16sf{}, (__mmask16)-1, CURRENT_ROUNDING); }
#define _mm512_cvtps_ph(x, mode) ((__m256i)__builtin_ia32_vcvtps2ph512_mask((v16sf)(x), mode, v16hi{}, (__mmask16)-1))
DC_INTRINSIC __m512i _mm512_cvtepu16_epi32(__m256i x) { return (__m512i)__builtin_ia32_pmovzxwd512_mask((v16hi)x, v16si{}, (__mmask16)-1); }
DC_INTRINSIC __m512i _mm512_slli_epi32(__m512i x, unsigned n) { return (__m512i)((v16si)x << (int)n); }
DC_INTRINSIC __m512i _mm512_mullo_epi32(__m512i a, __m512i b) { return (__m512i)((v16si)a * (v16si)b); }
DC_INTRINSIC __m512i _mm512_set1_epi32(int x) { return (__m512i)(v16si{} + x); }
DC_INTRINSIC __m512i _mm512_setzero_si512() { return __m512i{}; }
DC_INTRINSIC __m512 _mm512_set1_ps(float x) { return x - __m512{}; }
DC_INTRINSIC __m512 _mm512_load_ps(const void* p) { return *(const __m512*)p; }
#define _mm512_roundscale_ps(x, mode) ((__m512)__builtin_ia32_rndscaleps_mask((v16sf)(x), mode, v16sf{}, (__mmask16)-1, CURRENT_ROUNDING))
#define _mm512_roundscale_pd(x, mode) ((__m512d)__builtin_ia32_rndscalepd_mask((v8df)(x), mode, v8df{}, (__mmask8)-1, CURRENT_ROUNDING))
DC_INTRINSIC __m512 _mm512_maskz_scalef_ps(__mmask16 m, __m512 a, __m512 b) {
  return (__m512)__builtin_ia32_scalefps512_mask((v16sf)a, (v16sf)b, v16sf{}, m, CURRENT_ROUNDING);
}
DC_INTRINSIC __m512 _mm512_scalef_ps(__m512 a, __m512 b) { return _mm512_maskz_scalef_ps((__mmask16)-1, a, b); }
DC_INTRINSIC __m512d _mm512_scalef_pd(__m512d a, __m512d b) {
  return (__m512d)__builtin_ia32_scalefpd512_mask((v8df)a, (v8df)b, v8df{}, (__mmask8)-1, CURRENT_ROUNDING);
}
DC_INTRINSIC __m512 _mm512_maskz_min_ps(__mmask16 m, __m512 a, __m512 b) {
  return (__m512)__builtin_ia32_minps512_mask((v16sf)a, (v16sf)b, v16sf{}, m, CURRENT_ROUNDING);
}
#define _mm512_cmp_ps_mask(a, b, how) ((__mmask16)__builtin_ia32_cmpps512_mask((v16sf)(a), (v16sf)(b), how, (__mmask16)-1, CURRENT_ROUNDING))
DC_INTRINSIC __m512 _mm512_permutexvar_ps(__m512i at, __m512 x) {
  return (__m512)__builtin_ia32_permvarsf512_mask((v16sf)x, (v16si)at, v16sf{}, (__mmask16)-1);
}
DC_INTRINSIC __m512 _mm512_permutex2var_ps(__m512 a, __m512i at, __m512 b) {
  return (__m512)__builtin_ia32_vpermt2varps512_mask((v16si)at, (v16sf)a, (v16sf)b, (__mmask16)-1);
}
#define _mm512_fpclass_ps_mask(x, classes) ((__mmask16)__builtin_ia32_fpclassps512_mask((v16sf)(x), classes, (__mmask16)-1))
#ifdef __AVX512BF16__
typedef __m256i __m256bh;
DC_INTRINSIC __m256bh _mm512_cvtneps_pbh(__m512 x) { return (__m256bh)__builtin_ia32_cvtneps2bf16_v16sf((v16sf)x); }
#endif
DC_INTRINSIC __m512 _mm512_sqrt_ps(__m512 x) { return (__m512)__builtin_ia32_sqrtps512_mask((v16sf)x, v16sf{}, (__mmask16)-1, CURRENT_ROUNDING); }
DC_INTRINSIC __m512d _mm512_sqrt_pd(__m512d x) { return (__m512d)__builtin_ia32_sqrtpd512_mask((v8df)x, v8df{}, (__mmask8)-1, CURRENT_ROUNDING); }
DC_INTRINSIC __m512 _mm512_fmadd_ps(__m512 a, __m512 b, __m512 c) {
  return (__m512)__builtin_ia32_vfmaddps512_mask((v16sf)a, (v16sf)b, (v16sf)c, (__mmask16)-1, CURRENT_ROUNDING);
}
DC_INTRINSIC __m512d _mm512_fmadd_pd(__m512d a, __m512d b, __m512d c) {
  return (__m512d)__builtin_ia32_vfmaddpd512_mask((v8df)a, (v8df)b, (v8df)c, (__mmask8)-1, CURRENT_ROUNDING);
}
#define _mm512_mask_i32gather_epi32(old, m, at, p, scale) ((__m512i)__builtin_ia32_gathersiv16si((v16si)(old), (const void*)(p), (v16si)(at), m, scale))
#endif

}  // namespace
#endif
