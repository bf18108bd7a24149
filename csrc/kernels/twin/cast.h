// Cast, and reductions over a tensor.
#pragma once

#include "vector.h"

namespace twin {

using AscendC::RoundMode;

inline thread_local float deq_scale = 1.0f;

// Which conversions the vector unit of arch 2201 has, in which modes.
template <class To, class From>
constexpr bool castable(RoundMode mode) {
  const bool none = mode == RoundMode::CAST_NONE, rint = mode == RoundMode::CAST_RINT;
  const bool odd = mode == RoundMode::CAST_ODD;
  if (one_of<From, int8_t, uint8_t>) return one_of<To, half> && none;
  if (one_of<From, half>) {
    if (one_of<To, float>) return none;
    if (one_of<To, int8_t, uint8_t>) return !odd;
    return one_of<To, int16_t, int32_t> && !none && !odd;
  }
  if (one_of<From, bfloat16_t>) {
    return (one_of<To, float> && none) || (one_of<To, int32_t> && !none && !odd);
  }
  if (one_of<From, float>) {
    if (one_of<To, half>) return true;
    if (one_of<To, bfloat16_t>) return !none && !odd;
    return one_of<To, float, int16_t, int32_t, int64_t> && !none && !odd;
  }
  if (one_of<From, int32_t>) {
    if (one_of<To, half>) return none || rint;  // through the dequant scale
    return (one_of<To, float> && !odd) || (one_of<To, int16_t, int64_t> && none);
  }
  return one_of<From, int16_t> && ((one_of<To, half> && !odd) || (one_of<To, float> && none));
}

template <class T>
void check_reduce(const LocalTensor<T>& dst, const LocalTensor<T>& src, const LocalTensor<T>& tmp,
                  int32_t count, const Op& op) {
  static_assert(is_real<T>, "half and float");
  check_vector(dst, op);
  check_vector(src, op);
  check_vector(tmp, op);
  require(count > 0, op.site, concat(op.name, " of ", count, " elements"));
  const size_t repeats = (count * sizeof(T) + 255) / 256;
  const size_t needed = round_up(static_cast<uint32_t>(repeats * 2 * sizeof(T)), 32);
  tmp.access(0, needed / sizeof(T), Kind::write, op);
}

template <class T, class F>
void reduce_to_one(const char* name, const LocalTensor<T>& dst, const LocalTensor<T>& src,
                   const LocalTensor<T>& tmp, int32_t count, const Site& site, F f) {
  const Op op = core().begin(PIPE_V, site, name);
  check_reduce(dst, src, tmp, count, op);
  const T* in = src.access(0, count, Kind::read, op);
  T best = in[0];
  for (int32_t i = 1; i < count; ++i) best = f(in[i], best);
  *dst.access(0, 1, Kind::write, op) = best;
}

}  // namespace twin

namespace AscendC {

// The factor of casts from int32 to half.
inline void SetDeqScale(half scale, const twin::Site& = twin::Site()) { twin::deq_scale = scale; }

template <class T, class U>
void Cast(const LocalTensor<T>& dst, const LocalTensor<U>& src, const RoundMode& mode,
          const uint32_t count, const twin::Site& site = twin::Site()) {
  const twin::Op op = twin::core().begin(PIPE_V, site, "Cast");
  twin::check_vector(dst, op);
  twin::check_vector(src, op);
  twin::require(twin::castable<T, U>(mode), site,
                "Cast: the device has no such conversion or mode");
  twin::check_overlap(dst, src, count, op);
  const U* in = src.access(0, count, twin::Kind::read, op);
  T* out = dst.access(0, count, twin::Kind::write, op);
  if constexpr (std::is_same_v<U, int32_t> && std::is_same_v<T, half>) {
    for (uint32_t i = 0; i < count; ++i) out[i] = static_cast<float>(in[i]) * twin::deq_scale;
  } else {
    for (uint32_t i = 0; i < count; ++i) out[i] = twin::convert<T>(in[i], mode);
  }
}

template <class T>
void ReduceMax(const LocalTensor<T>& dst, const LocalTensor<T>& src, const LocalTensor<T>& tmp,
               const int32_t count, bool calIndex = false, const twin::Site& site = twin::Site()) {
  twin::require(!calIndex, site, "ReduceMax: the twin has no index");
  twin::reduce_to_one("ReduceMax", dst, src, tmp, count, site,
                      [](T a, T b) { return a > b ? a : b; });
}

template <class T>
void ReduceMin(const LocalTensor<T>& dst, const LocalTensor<T>& src, const LocalTensor<T>& tmp,
               const int32_t count, bool calIndex = false, const twin::Site& site = twin::Site()) {
  twin::require(!calIndex, site, "ReduceMin: the twin has no index");
  twin::reduce_to_one("ReduceMin", dst, src, tmp, count, site,
                      [](T a, T b) { return a < b ? a : b; });
}

// Pairwise in each 256 bytes, as the device's repeats do.
template <class T>
void ReduceSum(const LocalTensor<T>& dst, const LocalTensor<T>& src, const LocalTensor<T>& tmp,
               const int32_t count, const twin::Site& site = twin::Site()) {
  const twin::Op op = twin::core().begin(PIPE_V, site, "ReduceSum");
  twin::check_reduce(dst, src, tmp, count, op);
  const T* in = src.access(0, count, twin::Kind::read, op);
  std::vector<T> sums(in, in + count);
  while (sums.size() > 1) {
    for (size_t i = 0; i < sums.size() / 2; ++i)
      sums[i] = static_cast<T>(sums[2 * i] + sums[2 * i + 1]);
    if (sums.size() % 2) sums[sums.size() / 2] = sums.back();
    sums.resize((sums.size() + 1) / 2);
  }
  *dst.access(0, 1, twin::Kind::write, op) = sums[0];
}

}  // namespace AscendC
