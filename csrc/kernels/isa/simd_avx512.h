// Vec on AVX-512 (F, BW, DQ, VL).
#pragma once

#include <immintrin.h>

namespace kernels::ATB_ISA {

constexpr int kRegisters = 32;  // vectors that fit in registers

struct Vec {
  __m512 v;
};

ATB_INLINE Vec zero() { return {_mm512_setzero_ps()}; }
ATB_INLINE Vec set1(float a) { return {_mm512_set1_ps(a)}; }
ATB_INLINE Vec add(Vec a, Vec b) { return {_mm512_add_ps(a.v, b.v)}; }
ATB_INLINE Vec sub(Vec a, Vec b) { return {_mm512_sub_ps(a.v, b.v)}; }
ATB_INLINE Vec mul(Vec a, Vec b) { return {_mm512_mul_ps(a.v, b.v)}; }
ATB_INLINE Vec div(Vec a, Vec b) { return {_mm512_div_ps(a.v, b.v)}; }
ATB_INLINE Vec fma(Vec a, Vec b, Vec c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
// b where the comparison is false, NaN included.
ATB_INLINE Vec max(Vec a, Vec b) { return {_mm512_max_ps(a.v, b.v)}; }
ATB_INLINE Vec min(Vec a, Vec b) { return {_mm512_min_ps(a.v, b.v)}; }

ATB_INLINE Vec load(const float* from) { return {_mm512_loadu_ps(from)}; }
ATB_INLINE void store(float* to, Vec a) { _mm512_storeu_ps(to, a.v); }

// Each half word to the upper half of its lane, zeros below: one permutation.
ATB_INLINE Vec load(const bf16* from) {
  const __m512i bits =
      _mm512_castsi256_si512(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
  const __m512i order =
      _mm512_set_epi32(0xf0000, 0xe0000, 0xd0000, 0xc0000, 0xb0000, 0xa0000, 0x90000, 0x80000,
                       0x70000, 0x60000, 0x50000, 0x40000, 0x30000, 0x20000, 0x10000, 0);
  return {_mm512_castsi512_ps(_mm512_maskz_permutexvar_epi16(0xaaaaaaaau, order, bits))};
}

ATB_INLINE void store(bf16* to, Vec a) {
  const __m512i bits = _mm512_castps_si512(a.v);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
  rounded = _mm512_srli_epi32(rounded, 16);
  const __mmask16 nan = _mm512_cmp_ps_mask(a.v, a.v, _CMP_UNORD_Q);
  rounded = _mm512_mask_mov_epi32(rounded, nan, _mm512_set1_epi32(0x7fc0));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm512_cvtepi32_epi16(rounded));
}

ATB_INLINE Vec load(const fp16* from) {
  return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)))};
}

ATB_INLINE void store(fp16* to, Vec a) {
  const __m256i bits = _mm512_cvtps_ph(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), bits);
}

ATB_INLINE Vec load(const int8_t* from) {
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
  return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes))};
}

// The values that 4-bit weights stand for, times a scale; Nibbles look them up.
struct Codes {
  __m512 values;
};
ATB_INLINE Codes scaled_codes(float scale) {
  const __m512 values = _mm512_setr_ps(-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7);
  return {_mm512_mul_ps(values, _mm512_set1_ps(scale))};
}
struct Nibbles {
  __m512i bytes;
};
ATB_INLINE Nibbles load_nibbles(const uint8_t* from) {
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
  return {_mm512_cvtepu8_epi32(bytes)};
}
// A permutation looks at the lowest four bits of each lane only.
ATB_INLINE Vec low_half(Nibbles a, Codes codes) {
  return {_mm512_permutexvar_ps(a.bytes, codes.values)};
}
ATB_INLINE Vec high_half(Nibbles a, Codes codes) {
  return {_mm512_permutexvar_ps(_mm512_srli_epi32(a.bytes, 4), codes.values)};
}

// p times 2^n, where shifted holds n + 1.5 * 2^23 as a float.
ATB_INLINE Vec scale_by_power(Vec p, Vec shifted) {
  const __m512i n = _mm512_slli_epi32(_mm512_castps_si512(shifted.v), 23);
  return {_mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(p.v), n))};
}

ATB_INLINE float sum(Vec a) {
  const __m256 high = _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(a.v), 1));
  const __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(a.v), high);
  __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  four = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(four, _mm_movehdup_ps(four)));
}

// sums[i] = sum(a[i]) for eight vectors, by the same tree: each level folds two vectors into one.
ATB_INLINE void sum8(const Vec* a, float* sums) {
  __m512 halves[4], quarters[2];
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    const __m512 p = a[2 * i].v, q = a[2 * i + 1].v;
    halves[i] = _mm512_add_ps(_mm512_shuffle_f32x4(p, q, 0x44), _mm512_shuffle_f32x4(p, q, 0xee));
  }
#pragma GCC unroll 2
  for (int i = 0; i < 2; ++i) {
    const __m512 p = halves[2 * i], q = halves[2 * i + 1];
    quarters[i] = _mm512_add_ps(_mm512_shuffle_f32x4(p, q, 0x88), _mm512_shuffle_f32x4(p, q, 0xdd));
  }
  const __m512d p = _mm512_castps_pd(quarters[0]), q = _mm512_castps_pd(quarters[1]);
  const __m512 pairs = _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(p, q)),
                                     _mm512_castpd_ps(_mm512_unpackhi_pd(p, q)));
  const __m512 ones = _mm512_add_ps(pairs, _mm512_movehdup_ps(pairs));
  const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 2, 6, 10, 14, 0, 0, 0, 0, 0, 0, 0, 0);
  _mm256_storeu_ps(sums, _mm512_castps512_ps256(_mm512_permutexvar_ps(order, ones)));
}

}  // namespace kernels::ATB_ISA
