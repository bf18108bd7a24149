// One block of y = x Wᵀ (+ bias), straight from the rows of x and W.
//
// Each output element is: for each leaf, sixteen lanes over k (lane i takes leaf elements i, i+16,
// ... in order, by fma), added by sum(); then the tree over leaves; then the bias. Tiles of rows
// and columns only decide what is loaded together.
#pragma once

#include "../kernels.h"
#include "simd.h"

namespace kernels::ATB_ISA {

// A tile holds rows x columns accumulators in registers, and one vector of each row of x or W.
constexpr int kTileRows = kRegisters >= 32 ? 4 : kRegisters >= 8 ? 2 : 1;
constexpr int kTileColumns = kRegisters >= 32 ? 6 : kRegisters >= 8 ? 3 : 2;

template <int R, int C, class W>
ATB_INLINE void accumulate(const float* const (&x)[R], const W* const (&w)[C], int64_t begin,
                           int64_t end, Vec (&acc)[R][C]) {
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
    for (int c = 0; c < C; ++c) acc[r][c] = zero();
  }
  int64_t k = begin;
  for (; k + kLanes <= end; k += kLanes) {
    Vec columns[C];
#pragma GCC unroll 8
    for (int c = 0; c < C; ++c) columns[c] = load(w[c] + k);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const Vec row = load(x[r] + k);
#pragma GCC unroll 8
      for (int c = 0; c < C; ++c) acc[r][c] = fma(row, columns[c], acc[r][c]);
    }
  }
  if (k == end) return;
  for (int r = 0; r < R; ++r) {
    const Vec row = load_n(x[r] + k, end - k);
    for (int c = 0; c < C; ++c) acc[r][c] = fma(row, load_n(w[c] + k, end - k), acc[r][c]);
  }
}

// A bias of any type, as fp32.
ATB_INLINE float bias_at(const Linear& a, int64_t n) {
  if (a.bias == nullptr) return 0.0f;
  if (a.bias_type == DType::fp32) return static_cast<const float*>(a.bias)[n];
  if (a.bias_type == DType::bf16) return load_one(static_cast<const bf16*>(a.bias) + n);
  return load_one(static_cast<const fp16*>(a.bias) + n);
}

// Rows m to m+R and columns n to n+C of the output.
template <int R, int C, class W>
__attribute__((noinline)) static void linear_tile(const Linear& a, int64_t m, int64_t n) {
  const float* x[R];
  const W* w[C];
  for (int r = 0; r < R; ++r) x[r] = a.x + (m + r) * a.x_stride;
  for (int c = 0; c < C; ++c) w[c] = static_cast<const W*>(a.w) + (n + c) * a.w_stride;
  float waiting[kMaxTreeDepth][R * C];  // partial sums of the tree over leaves
  int depth = 0;
  for (int leaf = 0; leaf < a.leaves.count; ++leaf) {
    Vec acc[R][C];
    accumulate(x, w, a.leaves.border[leaf], a.leaves.border[leaf + 1], acc);
    float* sums = waiting[depth++];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
      for (int c = 0; c < C; ++c) sums[r * C + c] = sum(acc[r][c]);
    }
    for (int join = 0; join < a.leaves.joins[leaf]; ++join) {
      --depth;
      for (int i = 0; i < R * C; ++i) waiting[depth - 1][i] += waiting[depth][i];
    }
  }
  for (int c = 0; c < C; ++c) {
    const bool biased = a.bias != nullptr;
    const float bias = bias_at(a, n + c);
    for (int r = 0; r < R; ++r) {
      const float total = waiting[0][r * C + c];
      a.y[(m + r) * a.y_stride + n + c] = biased ? total + bias : total;
    }
  }
}

template <int C, class W>
ATB_INLINE void linear_rows(const Linear& a, int64_t m0, int64_t m1, int64_t n) {
  int64_t m = m0;
  for (; m + kTileRows <= m1; m += kTileRows) linear_tile<kTileRows, C, W>(a, m, n);
  const int64_t rest = m1 - m;
  if constexpr (kTileRows > 3) {
    if (rest == 3) linear_tile<3, C, W>(a, m, n);
  }
  if constexpr (kTileRows > 2) {
    if (rest == 2) linear_tile<2, C, W>(a, m, n);
  }
  if (rest == 1) linear_tile<1, C, W>(a, m, n);
}

template <class W>
static void linear_block(const Linear& a, int64_t m0, int64_t m1, int64_t n0, int64_t n1) {
  int64_t n = n0;
  for (; n + kTileColumns <= n1; n += kTileColumns) linear_rows<kTileColumns, W>(a, m0, m1, n);
  for (; n < n1; ++n) linear_rows<1, W>(a, m0, m1, n);
}

}  // namespace kernels::ATB_ISA
