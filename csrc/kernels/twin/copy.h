// DataCopy in its forms, DataCopyPad, Nd2Nz, and atomic adds on the way to device memory.
#pragma once

#include "pipe.h"

namespace AscendC {

struct DataCopyParams {
  DataCopyParams() = default;
  DataCopyParams(uint16_t count, uint16_t len, uint16_t srcStrideIn, uint16_t dstStrideIn)
      : blockCount(count), blockLen(len), srcStride(srcStrideIn), dstStride(dstStrideIn) {}
  uint16_t blockCount = 1, blockLen = 0, srcStride = 0, dstStride = 0;
};

struct DataCopyExtParams {
  DataCopyExtParams() = default;
  DataCopyExtParams(uint16_t count, uint32_t len, uint32_t srcStrideIn, uint32_t dstStrideIn,
                    uint32_t rsvIn)
      : blockCount(count),
        blockLen(len),
        srcStride(srcStrideIn),
        dstStride(dstStrideIn),
        rsv(rsvIn) {}
  uint16_t blockCount = 1;
  uint32_t blockLen = 0, srcStride = 0, dstStride = 0, rsv = 0;
};

template <class T>
struct DataCopyPadExtParams {
  DataCopyPadExtParams() = default;
  DataCopyPadExtParams(bool isPadIn, uint8_t left, uint8_t right, T value)
      : isPad(isPadIn), leftPadding(left), rightPadding(right), paddingValue(value) {}
  bool isPad = false;
  uint8_t leftPadding = 0, rightPadding = 0;
  T paddingValue = T(0);
};

struct Nd2NzParams {
  Nd2NzParams() = default;
  Nd2NzParams(uint16_t nd, uint16_t n, uint16_t d, uint16_t matrixStride, uint16_t srcD,
              uint16_t c0Stride, uint16_t nStride, uint16_t dstMatrixStride)
      : ndNum(nd),
        nValue(n),
        dValue(d),
        srcNdMatrixStride(matrixStride),
        srcDValue(srcD),
        dstNzC0Stride(c0Stride),
        dstNzNStride(nStride),
        dstNzMatrixStride(dstMatrixStride) {}
  uint16_t ndNum = 0, nValue = 0, dValue = 0, srcNdMatrixStride = 0, srcDValue = 0,
           dstNzC0Stride = 0, dstNzNStride = 0, dstNzMatrixStride = 0;
};

}  // namespace AscendC

namespace twin {

using AscendC::GlobalTensor;
using AscendC::LocalTensor;

template <class T>
void check_copy_side(const LocalTensor<T>& local, bool to_gm, const Op& op) {
  local.require(op);
  const bool fits = local.is_in(kUB) || (!to_gm && local.is_in(kL1));
  require(fits, op.site,
          concat(op.name, to_gm ? " from " : " to ", local.memory().name,
                 " is not a way of this device"));
}

// GM -> local, with what is not written in GM staying not written.
template <class T>
void load(const LocalTensor<T>& to, size_t to_at, const GlobalTensor<T>& from, uint64_t from_at,
          size_t count, const Op& op) {
  const T* source = from.access(from_at, count, Kind::read, op, false);
  T* target = to.access(to_at, count, Kind::write, op, 1);
  const auto [gm, gm_at] = from.locate(from_at, count, op);
  std::memcpy(target, source, count * sizeof(T));
  std::memcpy(to.memory().shadow.written() + to.begin() + to_at * sizeof(T),
              gm->shadow.written() + gm_at, count * sizeof(T));
}

// local -> GM, or added to what is there.
template <class T>
void store(const GlobalTensor<T>& to, uint64_t to_at, const LocalTensor<T>& from, size_t from_at,
           size_t count, const Op& op, bool must_be_written = true) {
  const bool adds = core().atomic_add;
  const T* source = from.access(from_at, count, Kind::read, op, 1, must_be_written);
  T* target = to.access(to_at, count, adds ? Kind::add : Kind::write, op);
  if (!adds) {
    std::memcpy(target, source, count * sizeof(T));
    if (!must_be_written) {
      const auto [gm, gm_at] = to.locate(to_at, count, op);
      std::memcpy(gm->shadow.written() + gm_at,
                  from.memory().shadow.written() + from.begin() + from_at * sizeof(T),
                  count * sizeof(T));
    }
    return;
  }
  for (size_t i = 0; i < count; ++i) target[i] = static_cast<T>(target[i] + source[i]);
}

constexpr uint32_t round_up(uint32_t value, uint32_t unit) {
  return (value + unit - 1) / unit * unit;
}

// Blocks of blockLen 32-byte units between a local tensor and GM.
template <class T, class Move>
void strided(const AscendC::DataCopyParams& p, const Op& op, Move move) {
  require(p.blockCount >= 1 && p.blockCount <= 4095, op.site,
          concat("DataCopy: blockCount ", p.blockCount, "; 1 to 4095"));
  require(p.blockLen >= 1, op.site, "DataCopy: blockLen 0");
  constexpr size_t unit = 32 / sizeof(T);
  for (size_t i = 0; i < p.blockCount; ++i) {
    move(i * (p.blockLen + p.dstStride) * unit, i * (p.blockLen + p.srcStride) * unit,
         p.blockLen * unit);
  }
}

template <class T>
void check_count(uint32_t count, const Op& op) {
  require(count > 0 && count * sizeof(T) % 32 == 0, op.site,
          concat("DataCopy of ", count * sizeof(T), " bytes; it must be a multiple of 32"));
}

template <class T>
void check_start(const LocalTensor<T>& local, const Op& op) {
  require(local.begin() % 32 == 0, op.site,
          concat(op.name, ": address ", local.begin(), " of ", local.memory().name, " ",
                 local.label(), " is no multiple of 32"));
}

template <class T>
void check_pad(const AscendC::DataCopyExtParams& p, const Op& op) {
  require(p.blockCount <= 4095, op.site,
          concat("DataCopyPad: blockCount ", p.blockCount, "; 0 to 4095"));
  require(p.blockLen <= 2097151 && p.blockLen % sizeof(T) == 0, op.site,
          concat("DataCopyPad: blockLen ", p.blockLen, " bytes; a multiple of ", sizeof(T),
                 ", at most 2097151"));
}

}  // namespace twin

namespace AscendC {

template <class T>
void DataCopy(const LocalTensor<T>& dst, const GlobalTensor<T>& src, uint32_t count,
              const twin::Site& site = twin::Site()) {
  const twin::Op op = twin::core().begin(PIPE_MTE2, site, "DataCopy");
  twin::check_copy_side(dst, false, op);
  twin::check_start(dst, op);
  twin::check_count<T>(count, op);
  twin::load(dst, 0, src, 0, count, op);
}

template <class T>
void DataCopy(const GlobalTensor<T>& dst, const LocalTensor<T>& src, uint32_t count,
              const twin::Site& site = twin::Site()) {
  const twin::Op op = twin::core().begin(PIPE_MTE3, site, "DataCopy");
  twin::check_copy_side(src, true, op);
  twin::check_start(src, op);
  twin::check_count<T>(count, op);
  twin::store(dst, 0, src, 0, count, op);
}

template <class T>
void DataCopy(const LocalTensor<T>& dst, const GlobalTensor<T>& src, const DataCopyParams& params,
              const twin::Site& site = twin::Site()) {
  const twin::Op op = twin::core().begin(PIPE_MTE2, site, "DataCopy");
  twin::check_copy_side(dst, false, op);
  twin::check_start(dst, op);
  twin::strided<T>(params, op, [&](size_t to, size_t from, size_t count) {
    twin::load(dst, to, src, from, count, op);
  });
}

template <class T>
void DataCopy(const GlobalTensor<T>& dst, const LocalTensor<T>& src, const DataCopyParams& params,
              const twin::Site& site = twin::Site()) {
  const twin::Op op = twin::core().begin(PIPE_MTE3, site, "DataCopy");
  twin::check_copy_side(src, true, op);
  twin::check_start(src, op);
  twin::strided<T>(params, op, [&](size_t to, size_t from, size_t count) {
    twin::store(dst, to, src, from, count, op);
  });
}

// Within UB, on the vector pipe.
template <class T>
void DataCopy(const LocalTensor<T>& dst, const LocalTensor<T>& src, uint32_t count,
              const twin::Site& site = twin::Site()) {
  const twin::Op op = twin::core().begin(PIPE_V, site, "DataCopy");
  twin::check_copy_side(dst, true, op);
  twin::check_copy_side(src, true, op);
  twin::check_count<T>(count, op);
  const T* from = src.access(0, count, twin::Kind::read, op);
  std::memmove(dst.access(0, count, twin::Kind::write, op), from, count * sizeof(T));
}

// Each block lands on a multiple of 32 bytes; what fills it up is undefined unless padded.
template <class T>
void DataCopyPad(const LocalTensor<T>& dst, const GlobalTensor<T>& src,
                 const DataCopyExtParams& params, const DataCopyPadExtParams<T>& pad,
                 const twin::Site& site = twin::Site()) {
  const twin::Op op = twin::core().begin(PIPE_MTE2, site, "DataCopyPad");
  twin::check_copy_side(dst, false, op);
  twin::check_start(dst, op);
  twin::check_pad<T>(params, op);
  twin::require((pad.leftPadding + pad.rightPadding == 0 || pad.isPad) &&
                    pad.leftPadding * sizeof(T) <= 32 && pad.rightPadding * sizeof(T) <= 32,
                site, "DataCopyPad: padding needs isPad, and at most 32 bytes a side");
  const size_t count = params.blockLen / sizeof(T);
  const size_t landed =
      twin::round_up(params.blockLen + (pad.leftPadding + pad.rightPadding) * sizeof(T), 32);
  for (size_t i = 0; count && i < params.blockCount; ++i) {
    const size_t to = i * (landed / 32 + params.dstStride) * (32 / sizeof(T));
    const uint64_t from = i * (params.blockLen + params.srcStride);
    twin::require(from % sizeof(T) == 0, site, "DataCopyPad: srcStride cuts an element");
    T* block = dst.access(to, landed / sizeof(T), twin::Kind::write, op, 32);
    const size_t begin = dst.begin() + to * sizeof(T);
    dst.memory().shadow.set_written(begin, begin + landed, false);
    std::memset(block, twin::kPoison, landed);
    twin::load(dst, to + pad.leftPadding, src, from / sizeof(T), count, op);
    if (!pad.isPad) continue;
    const size_t padded = pad.leftPadding + count + pad.rightPadding;
    std::fill(block, block + pad.leftPadding, pad.paddingValue);
    std::fill(block + pad.leftPadding + count, block + padded, pad.paddingValue);
    dst.memory().shadow.set_written(begin, begin + pad.leftPadding * sizeof(T), true);
    dst.memory().shadow.set_written(begin + (pad.leftPadding + count) * sizeof(T),
                                    begin + padded * sizeof(T), true);
  }
}

template <class T>
void DataCopyPad(const GlobalTensor<T>& dst, const LocalTensor<T>& src,
                 const DataCopyExtParams& params, const twin::Site& site = twin::Site()) {
  const twin::Op op = twin::core().begin(PIPE_MTE3, site, "DataCopyPad");
  twin::check_copy_side(src, true, op);
  twin::check_start(src, op);
  twin::check_pad<T>(params, op);
  const size_t count = params.blockLen / sizeof(T);
  for (size_t i = 0; count && i < params.blockCount; ++i) {
    const size_t from =
        i * (twin::round_up(params.blockLen, 32) / 32 + params.srcStride) * (32 / sizeof(T));
    const uint64_t to = i * static_cast<uint64_t>(params.blockLen + params.dstStride);
    twin::require(to % sizeof(T) == 0, site, "DataCopyPad: dstStride cuts an element");
    twin::store(dst, to / sizeof(T), src, from, count, op);
  }
}

// Rows of GM into L1 as 16-row strips of C0 columns; columns are filled with zeros to whole C0.
template <class T>
void DataCopy(const LocalTensor<T>& dst, const GlobalTensor<T>& src, const Nd2NzParams& p,
              const twin::Site& site = twin::Site()) {
  const twin::Op op = twin::core().begin(PIPE_MTE2, site, "DataCopy(Nd2Nz)");
  dst.require(op);
  twin::require(dst.is_in(twin::kL1), site, "DataCopy(Nd2Nz): the destination must be in L1");
  twin::check_start(dst, op);
  twin::require(
      p.ndNum <= 4095 && p.nValue <= 16384 && p.dstNzC0Stride <= 16384 && p.dstNzNStride <= 16384,
      site, "DataCopy(Nd2Nz): ndNum <= 4095; nValue and strides <= 16384");
  constexpr size_t c0 = 32 / sizeof(T);
  for (size_t nd = 0; nd < p.ndNum; ++nd) {
    for (size_t row = 0; row < p.nValue; ++row) {
      const size_t from = nd * p.srcNdMatrixStride + row * p.srcDValue;
      for (size_t column = 0; column < p.dValue; column += c0) {
        const size_t to =
            nd * p.dstNzMatrixStride + (column / c0 * p.dstNzC0Stride + row * p.dstNzNStride) * c0;
        const size_t count = std::min(c0, p.dValue - column);
        T* block = dst.access(to, c0, twin::Kind::write, op, 32);
        std::memset(block, 0, 32);
        twin::load(dst, to, src, from + column, count, op);
      }
    }
  }
}

template <class T>
void SetAtomicAdd(const twin::Site& = twin::Site()) {
  twin::core().atomic_add = true;
}
inline void SetAtomicNone(const twin::Site& = twin::Site()) { twin::core().atomic_add = false; }

}  // namespace AscendC
