// linear with weights of eight and four bits.
//
// One scale to a row of W: lanes add x · integer, each leaf's sum is multiplied by the scale. One
// to each group of features: lanes add x · (integer · scale), that product rounded to fp32 first.
#pragma once

#include "linear_direct.h"

namespace kernels::ATB_ISA {

constexpr int64_t kNibbleRun = 32;  // features that sixteen bytes of int4 hold
// Rows from which widening into memory pays: with AVX-512 it is fast enough in registers for more.
constexpr int64_t kWidenQuantRows = kTileRows >= 4 ? 48 : kWidenRows;
// Columns that all rows use before the next ones.
constexpr int64_t kQuantColumns = 24;

// One vector of features against eight-bit weights; Whole: all its lanes are features.
template <int R, int C, bool Grouped, bool Whole>
ATB_INLINE void int8_step(const float* const (&x)[R], const uint8_t* const (&w)[C],
                          const Vec (&scale)[C], int64_t k, int64_t n, Vec (&acc)[R * C]) {
  Vec columns[C];
#pragma GCC unroll 8
  for (int c = 0; c < C; ++c) {
    const int8_t* from = reinterpret_cast<const int8_t*>(w[c]) + k;
    columns[c] = Whole ? load(from) : load_n(from, n);
    if (Grouped) columns[c] = mul(columns[c], scale[c]);
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
    const Vec row = Whole ? load(x[r] + k) : load_n(x[r] + k, n);
#pragma GCC unroll 8
    for (int c = 0; c < C; ++c) acc[r * C + c] = fma(row, columns[c], acc[r * C + c]);
  }
}

// Features k to end, which share one scale if Grouped.
template <int R, int C, bool Grouped>
ATB_INLINE void int8_run(const float* const (&x)[R], const uint8_t* const (&w)[C],
                         const float (&scales)[C], int64_t k, int64_t end, Vec (&acc)[R * C]) {
  Vec scale[C];
#pragma GCC unroll 8
  for (int c = 0; c < C; ++c) scale[c] = set1(scales[c]);
  for (; k + kLanes <= end; k += kLanes) {
    if (k % 64 == 0) {
#pragma GCC unroll 8
      for (int c = 0; c < C; ++c) __builtin_prefetch(w[c] + k + kPrefetchBytes, 0, 2);
    }
    int8_step<R, C, Grouped, true>(x, w, scale, k, kLanes, acc);
  }
  if (k < end) int8_step<R, C, Grouped, false>(x, w, scale, k, end - k, acc);
}

// Sixteen bytes of four-bit weights, of which n features exist; zeros were packed after the last.
template <int R, int C, bool Whole>
ATB_INLINE void int4_step(const float* const (&x)[R], const uint8_t* const (&w)[C],
                          const Codes (&codes)[C], int64_t k, int64_t n, Vec (&acc)[R * C]) {
  Nibbles nibbles[C];
  Vec columns[C];
#pragma GCC unroll 8
  for (int c = 0; c < C; ++c) {
    nibbles[c] = load_nibbles(w[c] + k / 2);
    columns[c] = low_half(nibbles[c], codes[c]);
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
    const Vec row = Whole ? load(x[r] + k) : load_upto(x[r] + k, n);
#pragma GCC unroll 8
    for (int c = 0; c < C; ++c) acc[r * C + c] = fma(row, columns[c], acc[r * C + c]);
  }
  if (!Whole && n <= kLanes) return;
#pragma GCC unroll 8
  for (int c = 0; c < C; ++c) columns[c] = high_half(nibbles[c], codes[c]);
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
    const float* from = x[r] + k + kLanes;
    const Vec row = Whole ? load(from) : load_upto(from, n - kLanes);
#pragma GCC unroll 8
    for (int c = 0; c < C; ++c) acc[r * C + c] = fma(row, columns[c], acc[r * C + c]);
  }
}

// Features k to end, which share one scale; k is a multiple of kNibbleRun.
template <int R, int C>
ATB_INLINE void int4_run(const float* const (&x)[R], const uint8_t* const (&w)[C],
                         const float (&scales)[C], int64_t k, int64_t end, Vec (&acc)[R * C]) {
  Codes codes[C];
#pragma GCC unroll 8
  for (int c = 0; c < C; ++c) codes[c] = scaled_codes(scales[c]);
  for (; k + kNibbleRun <= end; k += kNibbleRun) {
    if (k % 128 == 0) {
#pragma GCC unroll 8
      for (int c = 0; c < C; ++c) __builtin_prefetch(w[c] + k / 2 + kPrefetchBytes, 0, 2);
    }
    int4_step<R, C, true>(x, w, codes, k, kNibbleRun, acc);
  }
  if (k < end) int4_step<R, C, false>(x, w, codes, k, end - k, acc);
}

template <int R, int C, DType Type>
__attribute__((noinline)) static void quant_tile(const Linear& a, int64_t m, int64_t n) {
  const float* x[R];
  const uint8_t* w[C];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) x[r] = a.x + (m + r) * a.x_stride;
#pragma GCC unroll 8
  for (int c = 0; c < C; ++c) w[c] = static_cast<const uint8_t*>(a.w) + (n + c) * a.w_stride;
  Waiting<R * C> waiting;
  waiting.depth = 0;
  for (int leaf = 0; leaf < a.leaves.count; ++leaf) {
    Vec acc[R * C];
#pragma GCC unroll 32
    for (int i = 0; i < R * C; ++i) acc[i] = zero();
    const int64_t end = a.leaves.border[leaf + 1];
    const int64_t begin = a.leaves.border[leaf];
    const float* group_scales = a.scales + n * a.scale_stride;
    if (a.group != 0) group_scales += begin / a.group;
    for (int64_t k = begin, stop = end; k < end; k = stop, ++group_scales) {
      float scales[C] = {};
      if (a.group != 0) {
        stop = min_of(end, k + a.group);
#pragma GCC unroll 8
        for (int c = 0; c < C; ++c) scales[c] = group_scales[c * a.scale_stride];
      }
      if constexpr (Type == DType::int4) {
        int4_run<R, C>(x, w, scales, k, stop, acc);
      } else if (a.group != 0) {
        int8_run<R, C, true>(x, w, scales, k, stop, acc);
      } else {
        int8_run<R, C, false>(x, w, scales, k, stop, acc);
      }
    }
    if (a.group != 0) {
      add_leaf<R * C>(waiting, acc, a.leaves.joins[leaf]);
    } else {
      add_scaled_leaf<R, C>(waiting, acc, a.leaves.joins[leaf], a, n);
    }
  }
  store_tile<R, C>(a, m, n, waiting.sums[0]);
}

// Row n of W as fp32: times its scales where there are several.
template <DType Type>
static void widen_row(const Linear& a, int64_t n, float* to) {
  const uint8_t* w = static_cast<const uint8_t*>(a.w) + n * a.w_stride;
  const float* scales = a.scales + n * a.scale_stride;
  const int64_t group = a.group == 0 ? max_of(a.k, 1) : a.group;
  for (int64_t begin = 0; begin < a.k; begin += group) {
    const int64_t end = min_of(begin + group, a.k);
    if constexpr (Type == DType::int4) {
      const Codes codes = scaled_codes(scales[begin / group]);
      for (int64_t k = begin; k < end; k += kNibbleRun) {
        const Nibbles nibbles = load_nibbles(w + k / 2);
        store_upto(to + k, end - k, low_half(nibbles, codes));
        if (k + kLanes < end) {
          store_upto(to + k + kLanes, end - k - kLanes, high_half(nibbles, codes));
        }
      }
    } else {
      const Vec scale = set1(a.group == 0 ? 1.0f : scales[begin / group]);
      for (int64_t k = begin; k < end; k += kLanes) {
        const Vec v = load_upto(reinterpret_cast<const int8_t*>(w) + k, end - k);
        store_upto(to + k, end - k, a.group == 0 ? v : mul(v, scale));
      }
    }
  }
}

template <int R, DType Type>
static void quant_rows(const Linear& a, int64_t m, int64_t n0, int64_t n1) {
  constexpr int kColumns = R == 1 || kTileRows >= 4 ? 4 : 2;
  int64_t n = n0;
  for (; n + kColumns <= n1; n += kColumns) quant_tile<R, kColumns, Type>(a, m, n);
  for (; n < n1; ++n) quant_tile<R, 1, Type>(a, m, n);
}

template <DType Type>
static void linear_quant(const Linear& a, int64_t m0, int64_t m1, int64_t n0, int64_t n1) {
  if (m1 - m0 >= kWidenQuantRows) {
    const int64_t block = row_block(a);
    for (int64_t m = m0; m < m1; m += block) {
      widened_columns(a, m, min_of(m + block, m1), n0, n1,
                      [&](int64_t n, float* to) { widen_row<Type>(a, n, to); });
    }
    return;
  }
  for (int64_t n = n0; n < n1; n += kQuantColumns) {
    const int64_t end = min_of(n + kQuantColumns, n1);
    int64_t m = m0;
    for (; m + kTileRows <= m1; m += kTileRows) quant_rows<kTileRows, Type>(a, m, n, end);
    for (; m + 2 <= m1; m += 2) quant_rows<2, Type>(a, m, n, end);
    if (m < m1) quant_rows<1, Type>(a, m, n, end);
  }
}

}  // namespace kernels::ATB_ISA
