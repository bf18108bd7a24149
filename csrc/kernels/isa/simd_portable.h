// Vec in plain C++ with the compilers' vector extension: four parts of four lanes, which fits both
// SSE2 and NEON. Same bits as the other instruction sets, fused multiply-add included.
#pragma once

namespace kernels::ATB_ISA {

constexpr int kRegisters = 4;  // vectors that fit in registers, by a careful guess

typedef float f32x4 __attribute__((vector_size(16)));
typedef int32_t i32x4 __attribute__((vector_size(16)));

struct Vec {
  f32x4 part[4];
};

#define ATB_EACH_PART(expression) \
  Vec r;                          \
  for (int i = 0; i < 4; ++i) {   \
    r.part[i] = (expression);     \
  }                               \
  return r

ATB_INLINE Vec set1(float a) { ATB_EACH_PART((f32x4{a, a, a, a})); }
ATB_INLINE Vec zero() { return set1(0.0f); }
ATB_INLINE Vec add(Vec a, Vec b) { ATB_EACH_PART(a.part[i] + b.part[i]); }
ATB_INLINE Vec sub(Vec a, Vec b) { ATB_EACH_PART(a.part[i] - b.part[i]); }
ATB_INLINE Vec mul(Vec a, Vec b) { ATB_EACH_PART(a.part[i] * b.part[i]); }
ATB_INLINE Vec div(Vec a, Vec b) { ATB_EACH_PART(a.part[i] / b.part[i]); }
// b where the comparison is false, NaN included.
ATB_INLINE f32x4 choose(i32x4 mask, f32x4 a, f32x4 b) {
  return (f32x4)(((i32x4)a & mask) | ((i32x4)b & ~mask));
}
ATB_INLINE Vec max(Vec a, Vec b) {
  ATB_EACH_PART(choose(a.part[i] > b.part[i], a.part[i], b.part[i]));
}
ATB_INLINE Vec min(Vec a, Vec b) {
  ATB_EACH_PART(choose(a.part[i] < b.part[i], a.part[i], b.part[i]));
}

#if defined(__FP_FAST_FMAF)
ATB_INLINE f32x4 fma_part(f32x4 a, f32x4 b, f32x4 c) {
  f32x4 r;
  for (int i = 0; i < 4; ++i) r[i] = __builtin_fmaf(a[i], b[i], c[i]);
  return r;
}
#else
// No fma instruction. The product is exact in double; the sum is rounded to odd (its last bit set
// when inexact), so that rounding it to fp32 afterwards gives the one correct rounding.
ATB_INLINE f32x4 fma_part(f32x4 a, f32x4 b, f32x4 c) {
  typedef double f64x4 __attribute__((vector_size(32)));
  typedef int64_t i64x4 __attribute__((vector_size(32)));
  const f64x4 product = __builtin_convertvector(a, f64x4) * __builtin_convertvector(b, f64x4);
  const f64x4 addend = __builtin_convertvector(c, f64x4);
  const f64x4 sum = product + addend;
  const f64x4 moved = sum - product;
  const f64x4 error = (product - (sum - moved)) + (addend - moved);
  // Towards zero first, then the last bit: even sums move one step towards the error's side.
  const i64x4 inexact = (error > 0.0) | (error < 0.0);  // false for NaN
  const i64x4 even = ((i64x4)sum & 1) == 0;
  const i64x4 outward = ((i64x4)sum ^ (i64x4)error) >= 0;
  const i64x4 step = (outward & 1) | (~outward & -1);
  return __builtin_convertvector((f64x4)((i64x4)sum + (step & inexact & even)), f32x4);
}
#endif
ATB_INLINE Vec fma(Vec a, Vec b, Vec c) {
  ATB_EACH_PART(fma_part(a.part[i], b.part[i], c.part[i]));
}

ATB_INLINE Vec load(const float* from) {
  Vec r;
  std::memcpy(&r, from, sizeof r);
  return r;
}
ATB_INLINE void store(float* to, Vec a) { std::memcpy(to, &a, sizeof a); }

ATB_INLINE float from_bits(uint32_t bits) {
  float a;
  std::memcpy(&a, &bits, sizeof a);
  return a;
}
ATB_INLINE uint32_t to_bits(float a) {
  uint32_t bits;
  std::memcpy(&bits, &a, sizeof bits);
  return bits;
}

ATB_INLINE float widen(bf16 a) { return from_bits(uint32_t{a.bits} << 16); }

ATB_INLINE float widen(fp16 a) {
  const uint32_t sign = uint32_t{a.bits & 0x8000u} << 16, magnitude = a.bits & 0x7fffu;
  if (magnitude >= 0x7c00) {  // infinity, NaN (made quiet)
    const uint32_t quiet = magnitude > 0x7c00 ? 0x400000u : 0;
    return from_bits(sign | 0x7f800000u | quiet | (magnitude & 0x3ffu) << 13);
  }
  // The bits read as a float are the value times 2^-112, subnormals included.
  return from_bits(sign | to_bits(from_bits(magnitude << 13) * 0x1p112f));
}

ATB_INLINE float widen(int8_t a) { return static_cast<float>(a); }

ATB_INLINE bf16 narrow_to(float a, bf16) {
  const uint32_t bits = to_bits(a);
  if (a != a) return {0x7fc0};
  return {static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16)};
}

ATB_INLINE fp16 narrow_to(float a, fp16) {
  const uint32_t bits = to_bits(a), sign = (bits >> 16) & 0x8000u;
  uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) {
    return {static_cast<uint16_t>(sign | 0x7e00u | ((magnitude >> 13) & 0x3ffu))};
  }
  if (magnitude >= 0x477ff000u) return {static_cast<uint16_t>(sign | 0x7c00u)};  // rounds past max
  if (magnitude < 0x38800000u) {  // subnormal: let an addition round at 2^-24
    const uint32_t rounded = to_bits(from_bits(magnitude) + 0.5f) - to_bits(0.5f);
    return {static_cast<uint16_t>(sign | rounded)};
  }
  magnitude += 0xfffu + ((magnitude >> 13) & 1u);
  return {static_cast<uint16_t>(sign | ((magnitude - 0x38000000u) >> 13))};
}

template <class T>
ATB_INLINE Vec load(const T* from) {
  float lanes[16];
  for (int i = 0; i < 16; ++i) lanes[i] = widen(from[i]);
  return load(lanes);
}
template <class T>
ATB_INLINE void store(T* to, Vec a) {
  float lanes[16];
  store(lanes, a);
  for (int i = 0; i < 16; ++i) to[i] = narrow_to(lanes[i], T{});
}

// The values that 4-bit weights stand for, times a scale.
struct Codes {
  float scale;
};
ATB_INLINE Codes scaled_codes(float scale) { return {scale}; }
struct Nibbles {
  uint8_t bytes[16];
};
ATB_INLINE Nibbles load_nibbles(const uint8_t* from) {
  Nibbles r;
  std::memcpy(&r, from, sizeof r);
  return r;
}
ATB_INLINE Vec low_half(Nibbles a, Codes codes) {
  float lanes[16];
  for (int i = 0; i < 16; ++i) lanes[i] = static_cast<float>((a.bytes[i] & 15) - 8) * codes.scale;
  return load(lanes);
}
ATB_INLINE Vec high_half(Nibbles a, Codes codes) {
  float lanes[16];
  for (int i = 0; i < 16; ++i) lanes[i] = static_cast<float>((a.bytes[i] >> 4) - 8) * codes.scale;
  return load(lanes);
}

// p times 2^n, where shifted holds n + 1.5 * 2^23 as a float.
ATB_INLINE Vec scale_by_power(Vec p, Vec shifted) {
  ATB_EACH_PART((f32x4)((i32x4)p.part[i] + ((i32x4)shifted.part[i] << 23)));
}

ATB_INLINE float sum(Vec a) {
  const f32x4 four = (a.part[0] + a.part[2]) + (a.part[1] + a.part[3]);
  return (four[0] + four[2]) + (four[1] + four[3]);
}

// sums[i] = sum(a[i]) for eight vectors.
ATB_INLINE void sum8(const Vec* a, float* sums) {
  for (int i = 0; i < 8; ++i) sums[i] = sum(a[i]);
}

#undef ATB_EACH_PART

}  // namespace kernels::ATB_ISA
