// Vec: sixteen fp32 lanes, the unit in which every kernel adds.
//
// Kernel sources are compiled once for each instruction set, with ATB_ISA naming it; all three
// give the same bits because every operation here is one correctly rounded IEEE operation on each
// lane, fma included, and because sum() adds lanes in one fixed tree:
//   l[i] + l[i+8],  then + l[i+4],  then + l[i+2],  then + l[i+1].
//
// Such a source must not instantiate std:: templates or define inline functions outside its
// namespace: the linker keeps one copy of those, and it may be one that this CPU cannot run.
#pragma once

#include <cstdint>
#include <cstring>

#include "../dtype.h"

#define ATB_INLINE static inline __attribute__((always_inline))
#define ATB_INLINE_MEMBER inline __attribute__((always_inline))

#if defined(ATB_ISA_AVX512)
#include "simd_avx512.h"
#elif defined(ATB_ISA_AVX2)
#include "simd_avx2.h"
#else
#include "simd_portable.h"
#endif

namespace kernels::ATB_ISA {

constexpr int kLanes = 16;

template <int N>
struct Constant {
  static constexpr int value = N;
};

ATB_INLINE int64_t min_of(int64_t a, int64_t b) { return a < b ? a : b; }
ATB_INLINE int64_t max_of(int64_t a, int64_t b) { return a > b ? a : b; }

// Lanes at and above n are zero; memory beyond them is not touched.
template <class T>
ATB_INLINE Vec load_n(const T* from, int64_t n) {
  T lanes[kLanes] = {};
  std::memcpy(lanes, from, static_cast<size_t>(n) * sizeof(T));
  return load(lanes);
}

template <class T>
ATB_INLINE void store_n(T* to, int64_t n, Vec a) {
  T lanes[kLanes];
  store(lanes, a);
  std::memcpy(to, lanes, static_cast<size_t>(n) * sizeof(T));
}

// Whole vectors take the fast way; the last, partial one is filled with zeros.
template <class T>
ATB_INLINE Vec load_upto(const T* from, int64_t n) {
  return n >= kLanes ? load(from) : load_n(from, n);
}

template <class T>
ATB_INLINE void store_upto(T* to, int64_t n, Vec a) {
  n >= kLanes ? store(to, a) : store_n(to, n, a);
}

template <class T>
ATB_INLINE float load_one(const T* from) {
  float lanes[kLanes];
  store(lanes, load_n(from, 1));
  return lanes[0];
}

// sums[i] = sum(a[i]) for N vectors.
template <int N>
ATB_INLINE void sum_each(const Vec* a, float* sums) {
  constexpr int kEights = N / 8 * 8;
#pragma GCC unroll 8
  for (int i = 0; i < kEights; i += 8) sum8(a + i, sums + i);
#pragma GCC unroll 8
  for (int i = kEights; i < N; ++i) sums[i] = sum(a[i]);
}

ATB_INLINE float max_lane(Vec a) {
  float lanes[kLanes];
  store(lanes, a);
  float best = lanes[0];
  for (int i = 1; i < kLanes; ++i) best = lanes[i] > best ? lanes[i] : best;
  return best;
}

// e^x within 1.5 ulp for x in [-87, 88.3]; beyond that the result is e^-87 or e^88.3. NaN stays
// NaN. e^x = 2^n e^r with r in [-ln2/2, ln2/2]; the polynomial is a minimax fit of (e^r - 1 - r) /
// r^2.
ATB_INLINE Vec exp(Vec x) {
  x = min(set1(88.3f), max(set1(-87.0f), x));
  const Vec shift = set1(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer
  const Vec shifted = fma(x, set1(1.4426950216293335f), shift);
  const Vec n = sub(shifted, shift);
  Vec r = fma(n, set1(-0.693359375f), x);  // exact: the constant has 10 bits
  r = fma(n, set1(2.12194440e-4f), r);
  Vec p = set1(0.0013814467238262296f);
  p = fma(p, r, set1(0.008368780836462975f));
  p = fma(p, r, set1(0.04166839271783829f));
  p = fma(p, r, set1(0.1666651964187622f));
  p = fma(p, r, set1(0.4999999403953552f));
  p = fma(mul(r, r), p, r);
  return scale_by_power(add(p, set1(1.0f)), shifted);
}

}  // namespace kernels::ATB_ISA
