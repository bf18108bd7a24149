// The matrix unit: LoadData from L1 to L0, Mmad, and Fixpipe from L0C to device memory.
//
// Layouts, C0 = 32 bytes of elements: L1 NZ [cols/C0][rows][C0]; L0A zZ [m/16][k/C0][16][C0];
// L0B zN [k/C0][n/16][16][C0]; L0C NZ [n/16][m][16].
#pragma once

#include "cast.h"

namespace AscendC {

struct LoadData2DParams {
  LoadData2DParams() = default;
  LoadData2DParams(uint16_t start, uint8_t repeat, uint16_t stride, uint8_t sidIn, uint16_t gap,
                   bool transpose, uint8_t mode)
      : startIndex(start),
        dstGap(gap),
        srcStride(stride),
        ifTranspose(transpose),
        repeatTimes(repeat),
        sid(sidIn),
        addrMode(mode) {}
  uint16_t startIndex = 0, dstGap = 0, srcStride = 0;
  bool ifTranspose = false;
  uint8_t repeatTimes = 0, sid = 0, addrMode = 0;
};

struct MmadParams {
  uint16_t m = 0, n = 0, k = 0;
  bool isBias = false;
  int32_t fmOffset = 0;
  bool enSsparse = false, enWinogradA = false, enWinogradB = false;
  int8_t unitFlag = 0;
  bool kDirectionAlign = false, cmatrixSource = false, cmatrixInitVal = true;
};

}  // namespace AscendC

enum QuantMode_t {
  NoQuant,
  F322F16,
  F322BF16,
  DEQF16,
  VDEQF16,
  QF322B8_PRE,
  VQF322B8_PRE,
  REQ8,
  VREQ8
};

namespace AscendC {

struct FixpipeParamsV220 {
  uint16_t nSize = 0, mSize = 0, srcStride = 0;
  uint32_t dstStride = 0;
  QuantMode_t quantPre = NoQuant;
  uint64_t deqScalar = 0;
  uint16_t ndNum = 1, srcNdStride = 0, dstNdStride = 0;
  bool reluEn = false;
  uint8_t unitFlag = 0;
  bool isChannelSplit = false;
};

enum class CO2Layout : uint8_t { NZ, ROW_MAJOR };
struct FixpipeConfig {
  CO2Layout format;
};
constexpr FixpipeConfig CFG_NZ = {CO2Layout::NZ};
constexpr FixpipeConfig CFG_ROW_MAJOR = {CO2Layout::ROW_MAJOR};

}  // namespace AscendC

namespace twin {

using AscendC::FixpipeParamsV220;

template <class T>
struct Accumulator {
  using Type = float;
};
template <>
struct Accumulator<int8_t> {
  using Type = int32_t;
};

// An fp32 scale as the output path uses it: 1, 8 and 10 bits.
inline float deq_factor(uint64_t word) {
  return float_of(static_cast<uint32_t>(word) & 0xffffe000);
}

// The nine-bit offset of the modes to int8.
inline int deq_offset(uint64_t word) {
  const int offset = static_cast<int>(word >> 37 & 0x1ff);
  return offset >= 256 ? offset - 512 : offset;
}

inline bool by_column(QuantMode_t mode) {
  return mode == VDEQF16 || mode == VQF322B8_PRE || mode == VREQ8;
}

// Which pairs of accumulator and output type a mode takes.
template <class To, class From>
constexpr bool mode_fits(QuantMode_t mode) {
  constexpr bool real = std::is_same_v<From, float>;
  switch (mode) {
    case NoQuant:
      return std::is_same_v<To, From>;
    case F322F16:
      return real && std::is_same_v<To, half>;
    case F322BF16:
      return real && std::is_same_v<To, bfloat16_t>;
    case DEQF16:
    case VDEQF16:
      return !real && std::is_same_v<To, half>;
    case QF322B8_PRE:
    case VQF322B8_PRE:
      return real && one_of<To, int8_t, uint8_t>;
    default:
      return !real && one_of<To, int8_t, uint8_t>;
  }
}

template <class To, class From>
To quantized(From value, QuantMode_t mode, uint64_t word, bool relu) {
  if (relu && value < From(0)) value = From(0);
  if (mode == NoQuant || mode == F322F16 || mode == F322BF16) return static_cast<To>(value);
  const float scaled = static_cast<float>(value) * deq_factor(word);
  if constexpr (std::is_same_v<To, half>) {
    return half(scaled);
  } else if constexpr (sizeof(To) == 1) {
    return saturate<To>(std::nearbyint(scaled) + deq_offset(word));
  } else {
    return static_cast<To>(scaled);
  }
}

template <class T>
void check_fixpipe(const LocalTensor<T>& src, const FixpipeParamsV220& p, bool rows, const Op& op) {
  src.require(op);
  require(src.is_in(kL0C), op.site, "Fixpipe: the source must be in L0C");
  require(p.nSize >= 1 && p.nSize <= 4095 && p.nSize % 16 == 0, op.site,
          concat("Fixpipe: nSize ", p.nSize, "; a multiple of 16, at most 4095"));
  require(p.mSize >= 1 && (!rows || p.mSize <= 8192), op.site,
          concat("Fixpipe: mSize ", p.mSize, "; 1 to 8192"));
  require(p.srcStride >= round_up(p.mSize, 16) && p.srcStride % 16 == 0, op.site,
          concat("Fixpipe: srcStride ", p.srcStride, "; m rounded up to 16"));
  require(p.ndNum == 1, op.site, "Fixpipe: the twin moves one matrix");
  require(!rows || p.dstStride >= p.nSize, op.site,
          concat("Fixpipe: dstStride ", p.dstStride, " is less than nSize ", p.nSize));
}

template <class T, class U>
void fixpipe(const GlobalTensor<T>& dst, const LocalTensor<U>& src, const uint64_t* scales,
             const FixpipeParamsV220& p, bool rows, const Op& op) {
  check_fixpipe(src, p, rows, op);
  require(mode_fits<T, U>(p.quantPre), op.site, "Fixpipe: quantPre doesn't fit the types");
  require(by_column(p.quantPre) == (scales != nullptr), op.site,
          "Fixpipe: V modes take a tensor of scales, the others deqScalar");
  const U* in = src.access(
      0, static_cast<size_t>(p.nSize / 16) * p.srcStride * 16 - (p.srcStride - p.mSize) * 16,
      Kind::read, op, 64, false);
  const uint8_t* written = src.memory().shadow.written() + src.begin();
  const size_t strip = rows ? p.nSize : 32 / sizeof(T);
  for (size_t row = 0; row < p.mSize; ++row) {
    for (size_t first = 0; first < p.nSize; first += strip) {
      const size_t to =
          rows ? row * p.dstStride : first / strip * (p.dstStride * (32 / sizeof(T))) + row * strip;
      const bool adds = core().atomic_add;
      T* out = dst.access(to, strip, adds ? Kind::add : Kind::write, op);
      const auto [gm, at] = dst.locate(to, strip, op);
      for (size_t j = 0; j < strip; ++j) {
        const size_t column = first + j;
        const size_t from = (column / 16 * p.srcStride + row) * 16 + column % 16;
        const T value =
            quantized<T>(in[from], p.quantPre, scales ? scales[column] : p.deqScalar, p.reluEn);
        out[j] = adds ? static_cast<T>(out[j] + value) : value;
        if (!written[from * sizeof(U)])
          gm->shadow.set_written(at + j * sizeof(T), at + (j + 1) * sizeof(T), false);
      }
    }
  }
}

}  // namespace twin

namespace AscendC {

template <class T>
void LoadData(const LocalTensor<T>& dst, const LocalTensor<T>& src, const LoadData2DParams& p,
              const twin::Site& site = twin::Site()) {
  const twin::Op op = twin::core().begin(PIPE_MTE1, site, "LoadData");
  dst.require(op);
  src.require(op);
  twin::require(src.is_in(twin::kL1) && (dst.is_in(twin::kL0A) || dst.is_in(twin::kL0B)), site,
                "LoadData: from L1 to L0A or L0B");
  twin::require(!p.ifTranspose || sizeof(T) == 2, site,
                "LoadData: ifTranspose is for 16-bit types");
  twin::require(p.repeatTimes >= 1, site, "LoadData: repeatTimes 0");
  constexpr size_t fractal = 512 / sizeof(T);
  for (size_t i = 0; i < p.repeatTimes; ++i) {
    const size_t from = (p.startIndex + i * p.srcStride) * fractal,
                 to = i * (1 + p.dstGap) * fractal;
    const T* in = src.access(from, fractal, twin::Kind::read, op, 0, false);
    T* out = dst.access(to, fractal, twin::Kind::write, op);
    const uint8_t* was = src.memory().shadow.written() + src.begin() + from * sizeof(T);
    uint8_t* is = dst.memory().shadow.written() + dst.begin() + to * sizeof(T);
    for (size_t j = 0; j < fractal; ++j) {
      const size_t k = p.ifTranspose ? j % 16 * 16 + j / 16 : j;
      out[j] = in[k];
      std::memcpy(is + j * sizeof(T), was + k * sizeof(T), sizeof(T));
    }
  }
}

// C [m, n] (+)= A [m, k] · B [k, n]. What depends on elements that nobody has written counts as
// not written: rows that pad m, columns that pad n.
template <class C, class A, class B>
void Mmad(const LocalTensor<C>& c, const LocalTensor<A>& a, const LocalTensor<B>& b,
          const MmadParams& p, const twin::Site& site = twin::Site()) {
  static_assert(std::is_same_v<A, B> && twin::one_of<A, half, bfloat16_t, float, int8_t>);
  static_assert(std::is_same_v<C, typename twin::Accumulator<A>::Type>);
  const twin::Op op = twin::core().begin(PIPE_M, site, "Mmad");
  twin::require(a.is_in(twin::kL0A) && b.is_in(twin::kL0B) && c.is_in(twin::kL0C), site,
                "Mmad: a in L0A, b in L0B, c in L0C");
  twin::require(p.m >= 1 && p.m <= 4095 && p.n >= 1 && p.n <= 4095 && p.k >= 1 && p.k <= 4095, site,
                twin::concat("Mmad: m ", p.m, ", n ", p.n, ", k ", p.k, "; each 1 to 4095"));
  twin::require(p.m > 1, site, "Mmad: m = 1 reads A as a plain row; round m up to 16");
  constexpr size_t c0 = 32 / sizeof(A);
  const size_t m16 = twin::round_up(p.m, 16), n16 = twin::round_up(p.n, 16);
  const size_t kb = (p.k + c0 - 1) / c0;
  const A* left = a.access(0, m16 * kb * c0, twin::Kind::read, op, 0, false);
  const B* right = b.access(0, n16 * kb * c0, twin::Kind::read, op, 0, false);
  const uint8_t* left_known = a.memory().shadow.written() + a.begin();
  const uint8_t* right_known = b.memory().shadow.written() + b.begin();
  uint8_t* known = c.memory().shadow.written() + c.begin();
  const std::vector<uint8_t> before(known, known + m16 * n16 * sizeof(C));
  C* out = c.access(0, m16 * n16, twin::Kind::write, op);
  std::vector<C> rows(p.m * p.k), columns(p.k * n16);
  std::vector<uint8_t> row_known(p.m, 1), column_known(n16, 1);
  for (size_t k = 0; k < p.k; ++k) {
    for (size_t i = 0; i < p.m; ++i) {
      const size_t at = ((i / 16 * kb + k / c0) * 16 + i % 16) * c0 + k % c0;
      rows[i * p.k + k] = static_cast<C>(left[at]);
      row_known[i] &= left_known[at * sizeof(A)];
    }
    for (size_t j = 0; j < p.n; ++j) {
      const size_t at = ((k / c0 * (n16 / 16) + j / 16) * 16 + j % 16) * c0 + k % c0;
      columns[k * n16 + j] = static_cast<C>(right[at]);
      column_known[j] &= right_known[at * sizeof(B)];
    }
  }
  for (size_t j = p.n; j < n16; ++j) column_known[j] = 0;
  std::vector<C> sums(n16);
  for (size_t i = 0; i < m16; ++i) {
    const bool real = i < p.m;
    for (size_t j = 0; j < n16; ++j) {
      const size_t at = (j / 16 * m16 + i) * 16 + j % 16;
      sums[j] = p.cmatrixInitVal ? C(0) : out[at];
    }
    for (size_t k = 0; real && k < p.k; ++k) {
      const C factor = rows[i * p.k + k];
      const C* column = &columns[k * n16];
      for (size_t j = 0; j < n16; ++j) sums[j] += factor * column[j];
    }
    for (size_t j = 0; j < n16; ++j) {
      const size_t at = (j / 16 * m16 + i) * 16 + j % 16;
      out[at] = sums[j];
      const bool value =
          real && row_known[i] && column_known[j] && (p.cmatrixInitVal || before[at * sizeof(C)]);
      std::memset(known + at * sizeof(C), value, sizeof(C));
    }
  }
}

template <class T, class U, const FixpipeConfig& config = CFG_ROW_MAJOR>
void Fixpipe(const GlobalTensor<T>& dst, const LocalTensor<U>& src, const FixpipeParamsV220& p,
             const twin::Site& site = twin::Site()) {
  const twin::Op op = twin::core().begin(PIPE_FIX, site, "Fixpipe");
  twin::fixpipe(dst, src, nullptr, p, config.format == CO2Layout::ROW_MAJOR, op);
}

// With a scale for each column, in L1.
template <class T, class U, const FixpipeConfig& config = CFG_ROW_MAJOR>
void Fixpipe(const GlobalTensor<T>& dst, const LocalTensor<U>& src,
             const LocalTensor<uint64_t>& scales, const FixpipeParamsV220& p,
             const twin::Site& site = twin::Site()) {
  const twin::Op op = twin::core().begin(PIPE_FIX, site, "Fixpipe");
  twin::require(scales.is_in(twin::kL1), site, "Fixpipe: scales by column lie in L1");
  const uint64_t* words = scales.access(0, p.nSize, twin::Kind::read, op);
  twin::fixpipe(dst, src, words, p, config.format == CO2Layout::ROW_MAJOR, op);
}

}  // namespace AscendC
