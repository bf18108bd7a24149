// Vector arithmetic on UB: pipe V, 256 bytes a repeat.
#pragma once

#include <cmath>

#include "copy.h"
#include "numbers.h"

namespace AscendC {

struct BinaryRepeatParams {
  BinaryRepeatParams() = default;
  BinaryRepeatParams(uint8_t dstBlk, uint8_t src0Blk, uint8_t src1Blk, uint8_t dstRep,
                     uint8_t src0Rep, uint8_t src1Rep)
      : dstBlkStride(dstBlk),
        src0BlkStride(src0Blk),
        src1BlkStride(src1Blk),
        dstRepStride(dstRep),
        src0RepStride(src0Rep),
        src1RepStride(src1Rep) {}
  uint8_t dstBlkStride = 1, src0BlkStride = 1, src1BlkStride = 1;
  uint8_t dstRepStride = 8, src0RepStride = 8, src1RepStride = 8;
};

}  // namespace AscendC

namespace twin {

template <class T, class... Kinds>
constexpr bool one_of = (std::is_same_v<T, Kinds> || ...);

template <class T>
void check_vector(const LocalTensor<T>& tensor, const Op& op) {
  tensor.require(op);
  require(tensor.is_in(kUB), op.site, concat(op.name, ": operands lie in UB"));
}

// Operands overlap whole or not at all.
template <class A, class B>
void check_overlap(const LocalTensor<A>& dst, const LocalTensor<B>& src, size_t count,
                   const Op& op) {
  const size_t d = dst.begin(), s = src.begin();
  const bool apart = d + count * sizeof(A) <= s || s + count * sizeof(B) <= d;
  require(apart || (d == s && sizeof(A) == sizeof(B)), op.site,
          concat(op.name, ": dst and src overlap in part"));
}

template <class T, class F>
void binary(const char* name, const LocalTensor<T>& dst, const LocalTensor<T>& a,
            const LocalTensor<T>& b, int32_t count, const Site& site, F f) {
  static_assert(one_of<T, half, float, int16_t, int32_t>, "half, float, int16 and int32 only");
  const Op op = core().begin(PIPE_V, site, name);
  for (const auto* tensor : {&dst, &a, &b}) check_vector(*tensor, op);
  check_overlap(dst, a, count, op);
  check_overlap(dst, b, count, op);
  const T* left = a.access(0, count, Kind::read, op);
  const T* right = b.access(0, count, Kind::read, op);
  T* out = dst.access(0, count, Kind::write, op);
  for (int32_t i = 0; i < count; ++i) out[i] = static_cast<T>(f(left[i], right[i]));
}

// mask elements of each of the repeats, whose 32-byte blocks stand at strides.
template <class T, class F>
void binary(const char* name, const LocalTensor<T>& dst, const LocalTensor<T>& a,
            const LocalTensor<T>& b, uint64_t mask, uint8_t repeats,
            const AscendC::BinaryRepeatParams& p, const Site& site, F f) {
  const Op op = core().begin(PIPE_V, site, name);
  for (const auto* tensor : {&dst, &a, &b}) check_vector(*tensor, op);
  constexpr size_t block = 32 / sizeof(T);
  require(mask >= 1 && mask <= 8 * block, site, concat(name, ": mask ", mask, " of ", 8 * block));
  for (size_t repeat = 0; repeat < repeats; ++repeat) {
    for (size_t i = 0; i < mask; i += block) {
      const size_t n = std::min<size_t>(block, mask - i);
      const auto at = [&](size_t rep, size_t blk) {
        return (repeat * rep + i / block * blk) * block;
      };
      const T* l = a.access(at(p.src0RepStride, p.src0BlkStride), n, Kind::read, op);
      const T* r = b.access(at(p.src1RepStride, p.src1BlkStride), n, Kind::read, op);
      T* out = dst.access(at(p.dstRepStride, p.dstBlkStride), n, Kind::write, op);
      for (size_t j = 0; j < n; ++j) out[j] = static_cast<T>(f(l[j], r[j]));
    }
  }
}

template <class T, class F>
void unary(const char* name, const LocalTensor<T>& dst, const LocalTensor<T>& src, int32_t count,
           const Site& site, F f) {
  const Op op = core().begin(PIPE_V, site, name);
  check_vector(dst, op);
  check_vector(src, op);
  check_overlap(dst, src, count, op);
  const T* in = src.access(0, count, Kind::read, op);
  T* out = dst.access(0, count, Kind::write, op);
  for (int32_t i = 0; i < count; ++i) out[i] = static_cast<T>(f(in[i]));
}

template <class T>
constexpr bool is_real = one_of<T, half, float>;

}  // namespace twin

namespace AscendC {

#define TWIN_BINARY(Name, expression)                                                          \
  template <class T>                                                                           \
  void Name(const LocalTensor<T>& dst, const LocalTensor<T>& src0, const LocalTensor<T>& src1, \
            const int32_t& count, const twin::Site& site = twin::Site()) {                     \
    twin::binary(#Name, dst, src0, src1, count, site, [](T a, T b) { return expression; });    \
  }                                                                                            \
  template <class T>                                                                           \
  void Name(const LocalTensor<T>& dst, const LocalTensor<T>& src0, const LocalTensor<T>& src1, \
            uint64_t mask, const uint8_t repeatTimes, const BinaryRepeatParams& params,        \
            const twin::Site& site = twin::Site()) {                                           \
    twin::binary(#Name, dst, src0, src1, mask, repeatTimes, params, site,                      \
                 [](T a, T b) { return expression; });                                         \
  }

TWIN_BINARY(Add, a + b)
TWIN_BINARY(Sub, a - b)
TWIN_BINARY(Mul, a* b)
TWIN_BINARY(Div, a / b)
TWIN_BINARY(Max, a > b ? a : b)
TWIN_BINARY(Min, a < b ? a : b)
#undef TWIN_BINARY

#define TWIN_SCALAR(Name, expression)                                                           \
  template <class T>                                                                            \
  void Name(const LocalTensor<T>& dst, const LocalTensor<T>& src, const T& scalar,              \
            const int32_t& count, const twin::Site& site = twin::Site()) {                      \
    static_assert(twin::one_of<T, half, float, int16_t, int32_t>, "half, float, int16, int32"); \
    twin::unary(#Name, dst, src, count, site, [b = scalar](T a) { return expression; });        \
  }

TWIN_SCALAR(Adds, a + b)
TWIN_SCALAR(Muls, a* b)
TWIN_SCALAR(Maxs, a > b ? a : b)
TWIN_SCALAR(Mins, a < b ? a : b)
#undef TWIN_SCALAR

#define TWIN_UNARY(Name, expression)                                                    \
  template <class T>                                                                    \
  void Name(const LocalTensor<T>& dst, const LocalTensor<T>& src, const int32_t& count, \
            const twin::Site& site = twin::Site()) {                                    \
    static_assert(twin::is_real<T>, "half and float");                                  \
    twin::unary(#Name, dst, src, count, site, [](T a) { return expression; });          \
  }

TWIN_UNARY(Abs, std::fabs(a))
TWIN_UNARY(Exp, std::exp(static_cast<float>(a)))
TWIN_UNARY(Ln, std::log(static_cast<float>(a)))
TWIN_UNARY(Sqrt, std::sqrt(static_cast<float>(a)))
TWIN_UNARY(Rsqrt, 1.0f / std::sqrt(static_cast<float>(a)))
TWIN_UNARY(Reciprocal, 1.0f / static_cast<float>(a))
TWIN_UNARY(Relu, a > T(0) ? a : T(0))
#undef TWIN_UNARY

template <class T>
void Duplicate(const LocalTensor<T>& dst, const T& scalar, const int32_t& count,
               const twin::Site& site = twin::Site()) {
  static_assert(sizeof(T) == 2 || sizeof(T) == 4, "types of 16 and 32 bits");
  const twin::Op op = twin::core().begin(PIPE_V, site, "Duplicate");
  twin::check_vector(dst, op);
  T* out = dst.access(0, count, twin::Kind::write, op);
  std::fill(out, out + count, scalar);
}

}  // namespace AscendC
