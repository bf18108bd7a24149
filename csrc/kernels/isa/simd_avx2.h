// Vec on AVX2 with FMA and F16C: two registers of eight lanes.
#pragma once

#include <immintrin.h>

namespace kernels::ATB_ISA {

constexpr int kRegisters = 8;  // vectors that fit in registers

struct Vec {
  __m256 low, high;
};

ATB_INLINE Vec zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
ATB_INLINE Vec set1(float a) { return {_mm256_set1_ps(a), _mm256_set1_ps(a)}; }
ATB_INLINE Vec add(Vec a, Vec b) {
  return {_mm256_add_ps(a.low, b.low), _mm256_add_ps(a.high, b.high)};
}
ATB_INLINE Vec sub(Vec a, Vec b) {
  return {_mm256_sub_ps(a.low, b.low), _mm256_sub_ps(a.high, b.high)};
}
ATB_INLINE Vec mul(Vec a, Vec b) {
  return {_mm256_mul_ps(a.low, b.low), _mm256_mul_ps(a.high, b.high)};
}
ATB_INLINE Vec div(Vec a, Vec b) {
  return {_mm256_div_ps(a.low, b.low), _mm256_div_ps(a.high, b.high)};
}
ATB_INLINE Vec fma(Vec a, Vec b, Vec c) {
  return {_mm256_fmadd_ps(a.low, b.low, c.low), _mm256_fmadd_ps(a.high, b.high, c.high)};
}
// b where the comparison is false, NaN included.
ATB_INLINE Vec max(Vec a, Vec b) {
  return {_mm256_max_ps(a.low, b.low), _mm256_max_ps(a.high, b.high)};
}
ATB_INLINE Vec min(Vec a, Vec b) {
  return {_mm256_min_ps(a.low, b.low), _mm256_min_ps(a.high, b.high)};
}

ATB_INLINE Vec load(const float* from) {
  return {_mm256_loadu_ps(from), _mm256_loadu_ps(from + 8)};
}
ATB_INLINE void store(float* to, Vec a) {
  _mm256_storeu_ps(to, a.low);
  _mm256_storeu_ps(to + 8, a.high);
}

ATB_INLINE __m256 widen(const bf16* from) {
  const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
}
ATB_INLINE __m256 widen(const fp16* from) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
}
ATB_INLINE Vec load(const bf16* from) { return {widen(from), widen(from + 8)}; }
ATB_INLINE Vec load(const fp16* from) { return {widen(from), widen(from + 8)}; }

ATB_INLINE __m256i round_to_bf16(__m256 a) {
  const __m256i bits = _mm256_castps_si256(a);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  __m256i rounded = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
  rounded = _mm256_srli_epi32(rounded, 16);
  const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(a, a, _CMP_UNORD_Q));
  return _mm256_blendv_epi8(rounded, _mm256_set1_epi32(0x7fc0), nan);
}
ATB_INLINE void store(bf16* to, Vec a) {
  const __m256i mixed = _mm256_packus_epi32(round_to_bf16(a.low), round_to_bf16(a.high));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm256_permute4x64_epi64(mixed, 0xd8));
}
ATB_INLINE void store(fp16* to, Vec a) {
  constexpr int kNearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm256_cvtps_ph(a.low, kNearest));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to + 8), _mm256_cvtps_ph(a.high, kNearest));
}

ATB_INLINE __m256 widen(const int8_t* from) {
  const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(from));
  return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes));
}
ATB_INLINE Vec load(const int8_t* from) { return {widen(from), widen(from + 8)}; }

// The values that 4-bit weights stand for, times a scale.
struct Codes {
  __m256 scale;
};
ATB_INLINE Codes scaled_codes(float scale) { return {_mm256_set1_ps(scale)}; }
struct Nibbles {
  __m256i low, high;
};
ATB_INLINE Nibbles load_nibbles(const uint8_t* from) {
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
  return {_mm256_cvtepu8_epi32(bytes), _mm256_cvtepu8_epi32(_mm_unpackhi_epi64(bytes, bytes))};
}
ATB_INLINE __m256 decode(__m256i nibbles, Codes codes) {
  const __m256i code = _mm256_and_si256(nibbles, _mm256_set1_epi32(15));
  const __m256i value = _mm256_sub_epi32(code, _mm256_set1_epi32(8));
  return _mm256_mul_ps(_mm256_cvtepi32_ps(value), codes.scale);
}
ATB_INLINE Vec low_half(Nibbles a, Codes codes) {
  return {decode(a.low, codes), decode(a.high, codes)};
}
ATB_INLINE Vec high_half(Nibbles a, Codes codes) {
  return {decode(_mm256_srli_epi32(a.low, 4), codes), decode(_mm256_srli_epi32(a.high, 4), codes)};
}

ATB_INLINE __m256 scale_half(__m256 p, __m256 shifted) {
  const __m256i n = _mm256_slli_epi32(_mm256_castps_si256(shifted), 23);
  return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(p), n));
}
// p times 2^n, where shifted holds n + 1.5 * 2^23 as a float.
ATB_INLINE Vec scale_by_power(Vec p, Vec shifted) {
  return {scale_half(p.low, shifted.low), scale_half(p.high, shifted.high)};
}

ATB_INLINE float sum(Vec a) {
  const __m256 eight = _mm256_add_ps(a.low, a.high);
  __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  four = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(four, _mm_movehdup_ps(four)));
}

// sums[i] = sum(a[i]) for eight vectors, by the same tree: each level folds two vectors into one.
ATB_INLINE void sum8(const Vec* a, float* sums) {
  __m256 quarters[4], pairs[2];
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    const __m256 p = _mm256_add_ps(a[2 * i].low, a[2 * i].high);
    const __m256 q = _mm256_add_ps(a[2 * i + 1].low, a[2 * i + 1].high);
    quarters[i] =
        _mm256_add_ps(_mm256_permute2f128_ps(p, q, 0x20), _mm256_permute2f128_ps(p, q, 0x31));
  }
#pragma GCC unroll 2
  for (int i = 0; i < 2; ++i) {
    const __m256d p = _mm256_castps_pd(quarters[2 * i]), q = _mm256_castps_pd(quarters[2 * i + 1]);
    pairs[i] = _mm256_add_ps(_mm256_castpd_ps(_mm256_unpacklo_pd(p, q)),
                             _mm256_castpd_ps(_mm256_unpackhi_pd(p, q)));
  }
  const __m256 ones = _mm256_add_ps(_mm256_shuffle_ps(pairs[0], pairs[1], 0x88),
                                    _mm256_shuffle_ps(pairs[0], pairs[1], 0xdd));
  const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  _mm256_storeu_ps(sums, _mm256_permutevar8x32_ps(ones, order));
}

}  // namespace kernels::ATB_ISA
