// Dot products of int8 vectors, added exactly in int32. A Dot has kBytes features to a step; w may
// be read only where it exists, x is padded with zeros.
#pragma once

#include "simd.h"

namespace kernels::ATB_ISA {

#if defined(ATB_ISA_AVX512)

// Lanes of eight accumulators added up, as sum8 does for floats.
ATB_INLINE void add_lanes8(const __m512i* a, int32_t* sums) {
  __m512i halves[4], quarters[2];
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    const __m512i p = a[2 * i], q = a[2 * i + 1];
    halves[i] =
        _mm512_add_epi32(_mm512_shuffle_i32x4(p, q, 0x44), _mm512_shuffle_i32x4(p, q, 0xee));
  }
#pragma GCC unroll 2
  for (int i = 0; i < 2; ++i) {
    const __m512i p = halves[2 * i], q = halves[2 * i + 1];
    quarters[i] =
        _mm512_add_epi32(_mm512_shuffle_i32x4(p, q, 0x88), _mm512_shuffle_i32x4(p, q, 0xdd));
  }
  const __m512i pairs = _mm512_add_epi32(_mm512_unpacklo_epi64(quarters[0], quarters[1]),
                                         _mm512_unpackhi_epi64(quarters[0], quarters[1]));
  const __m512i ones = _mm512_add_epi32(pairs, _mm512_shuffle_epi32(pairs, _MM_PERM_CDAB));
  const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 2, 6, 10, 14, 0, 0, 0, 0, 0, 0, 0, 0);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(sums),
                      _mm512_castsi512_si256(_mm512_permutexvar_epi32(order, ones)));
}

// With VNNI one instruction multiplies unsigned by signed bytes: w is taken plus 128, so each sum
// is too large by 128 times the sum of x.
struct DotVnni {
  static constexpr int64_t kBytes = 64;
  static constexpr int kRows = 4, kColumns = 6, kOffset = 128;
  using Sums = __m512i;
  using W = __m512i;
  using X = __m512i;
  static ATB_INLINE_MEMBER W load_w(const int8_t* from) {
    return _mm512_xor_si512(_mm512_loadu_si512(from), _mm512_set1_epi8(-128));
  }
  static ATB_INLINE_MEMBER X load_x(const int8_t* from) { return _mm512_loadu_si512(from); }
  static ATB_INLINE_MEMBER Sums none() { return _mm512_setzero_si512(); }
  // As assembly: GCC 12 copies the accumulator of the intrinsic and runs out of registers.
  static ATB_INLINE_MEMBER Sums add(Sums sums, W w, X x) {
    asm("vpdpbusd %2, %1, %0" : "+v"(sums) : "v"(w), "v"(x));
    return sums;
  }
  static ATB_INLINE_MEMBER void total8(const Sums* a, int32_t* sums) { add_lanes8(a, sums); }
};

struct DotWide {
  static constexpr int64_t kBytes = 32;
  static constexpr int kRows = 4, kColumns = 6, kOffset = 0;
  using Sums = __m512i;
  using W = __m512i;
  using X = __m512i;
  static ATB_INLINE_MEMBER W load_w(const int8_t* from) { return load_x(from); }
  static ATB_INLINE_MEMBER X load_x(const int8_t* from) {
    return _mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
  }
  static ATB_INLINE_MEMBER Sums none() { return _mm512_setzero_si512(); }
  static ATB_INLINE_MEMBER Sums add(Sums sums, W w, X x) {
    return _mm512_add_epi32(sums, _mm512_madd_epi16(w, x));
  }
  static ATB_INLINE_MEMBER void total8(const Sums* a, int32_t* sums) { add_lanes8(a, sums); }
};

#elif defined(ATB_ISA_AVX2)

struct DotWide {
  static constexpr int64_t kBytes = 16;
  static constexpr int kRows = 2, kColumns = 4, kOffset = 0;
  using Sums = __m256i;
  using W = __m256i;
  using X = __m256i;
  static ATB_INLINE_MEMBER W load_w(const int8_t* from) { return load_x(from); }
  static ATB_INLINE_MEMBER X load_x(const int8_t* from) {
    return _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
  }
  static ATB_INLINE_MEMBER Sums none() { return _mm256_setzero_si256(); }
  static ATB_INLINE_MEMBER Sums add(Sums sums, W w, X x) {
    return _mm256_add_epi32(sums, _mm256_madd_epi16(w, x));
  }
  static ATB_INLINE_MEMBER void total8(const Sums* a, int32_t* sums) {
    for (int i = 0; i < 8; ++i) {
      __m128i four = _mm_add_epi32(_mm256_castsi256_si128(a[i]), _mm256_extracti128_si256(a[i], 1));
      four = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0x4e));
      sums[i] = _mm_cvtsi128_si32(_mm_add_epi32(four, _mm_shuffle_epi32(four, 0xb1)));
    }
  }
};

#else

struct DotWide {
  static constexpr int64_t kBytes = 16;
  static constexpr int kRows = 2, kColumns = 4, kOffset = 0;
  struct W {
    int8_t bytes[16];
  };
  using X = W;
  using Sums = int32_t;
  static ATB_INLINE_MEMBER W load_w(const int8_t* from) {
    W r;
    std::memcpy(r.bytes, from, sizeof r.bytes);
    return r;
  }
  static ATB_INLINE_MEMBER X load_x(const int8_t* from) { return load_w(from); }
  static ATB_INLINE_MEMBER Sums none() { return 0; }
  static ATB_INLINE_MEMBER Sums add(Sums sums, W w, X x) {
    for (int i = 0; i < 16; ++i) sums += int32_t{w.bytes[i]} * x.bytes[i];
    return sums;
  }
  static ATB_INLINE_MEMBER void total8(const Sums* a, int32_t* sums) {
    for (int i = 0; i < 8; ++i) sums[i] = a[i];
  }
};

#endif

}  // namespace kernels::ATB_ISA
