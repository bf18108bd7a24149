// linear straight from where W lies, which is read once. There is no packed copy of W: with vectors
// along k its rows are already in order, and from the second-level cache they come fast enough.
#pragma once

#include "linear.h"

namespace kernels::ATB_ISA {

// W is fetched into the second-level cache this far ahead, in order of memory: there are many more
// outstanding fetches there than at the first level, and the hardware's own start anew at each row.
// With fewer than about 16 KB a fetch comes too late (measured on Zen 4: 12 instead of 24 GB/s).
constexpr int64_t kPrefetchBytes = 64 << 10;

constexpr int64_t kRowBlockBytes = 512 << 10;

// Fetch: how many of the columns, from `first` on, are fetched ahead.
template <int R, int C, int Fetch, class W>
ATB_INLINE void accumulate(const float* const (&x)[R], const W* const (&w)[C], int64_t begin,
                           int64_t end, int first, Vec (&acc)[R * C]) {
  constexpr int64_t kAhead = kPrefetchBytes / static_cast<int64_t>(sizeof(W));
  const W* ahead[Fetch + 1];
#pragma GCC unroll 8
  for (int f = 0; f < Fetch; ++f) ahead[f] = w[first + f] + kAhead;
#pragma GCC unroll 32
  for (int i = 0; i < R * C; ++i) acc[i] = zero();
  int64_t k = begin;
  for (; k + kLanes <= end; k += kLanes) {
    Vec columns[C];
#pragma GCC unroll 8
    for (int c = 0; c < C; ++c) {
      columns[c] = load(w[c] + k);
      if (c < Fetch) __builtin_prefetch(ahead[c] + k, 0, 2);
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const Vec row = load(x[r] + k);
#pragma GCC unroll 8
      for (int c = 0; c < C; ++c) acc[r * C + c] = fma(row, columns[c], acc[r * C + c]);
    }
  }
  if (k == end) return;
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
    const Vec row = load_n(x[r] + k, end - k);
#pragma GCC unroll 8
    for (int c = 0; c < C; ++c) {
      acc[r * C + c] = fma(row, load_n(w[c] + k, end - k), acc[r * C + c]);
    }
  }
}

// Rows m to m+R and columns n to n+C of the output.
template <int R, int C, int Fetch, class W>
__attribute__((noinline)) static void direct_tile(const Linear& a, int64_t m, int64_t n,
                                                  int first) {
  const float* x[R];
  const W* w[C];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) x[r] = a.x + (m + r) * a.x_stride;
#pragma GCC unroll 8
  for (int c = 0; c < C; ++c) w[c] = static_cast<const W*>(a.w) + (n + c) * a.w_stride;
  Waiting<R * C> waiting;
  waiting.depth = 0;
  for (int leaf = 0; leaf < a.leaves.count; ++leaf) {
    Vec acc[R * C];
    accumulate<R, C, Fetch>(x, w, a.leaves.border[leaf], a.leaves.border[leaf + 1], first, acc);
    if (a.scales != nullptr) {
      add_scaled_leaf<R, C>(waiting, acc, a.leaves.joins[leaf], a, n);
    } else {
      add_leaf<R * C>(waiting, acc, a.leaves.joins[leaf]);
    }
  }
  store_tile<R, C>(a, m, n, waiting.sums[0]);
}

// All rows beside C columns of W, R at a time, which fetch one share each of what comes next.
template <int R, int C, int Fetch, class W>
ATB_INLINE void direct_rows(const Linear& a, int64_t m0, int64_t m1, int64_t n) {
  int64_t m = m0;
  int first = 0;
  for (; m + R <= m1; m += R, first += Fetch) {
    first < C ? direct_tile<R, C, Fetch, W>(a, m, n, first) : direct_tile<R, C, 0, W>(a, m, n, 0);
  }
  for (; m < m1; ++m) direct_tile<1, C, 0, W>(a, m, n, 0);
}

// Rows m0 to m1 beside all columns, C at a time.
template <int R, int C, class W>
static void direct_columns(const Linear& a, int64_t m0, int64_t m1, int64_t n0, int64_t n1) {
  int64_t n = n0;
  const int64_t tiles = (m1 - m0) / R;
  for (; n + C <= n1; n += C) {
    if (tiles <= 1) direct_rows<R, C, C, W>(a, m0, m1, n);
    if (tiles == 2) direct_rows<R, C, (C + 1) / 2, W>(a, m0, m1, n);
    if (tiles >= 3) direct_rows<R, C, (C + 2) / 3, W>(a, m0, m1, n);
  }
  for (; n < n1; ++n) direct_rows<R, 1, 1, W>(a, m0, m1, n);
}

// The columns of a tile are widened once, into memory, when enough rows use them: for integers, and
// for half types where widening costs as much as multiplying (no AVX-512).
constexpr int64_t kWidenRows = 8;

// widen(n, to): row n of W as fp32.
template <class F>
ATB_INLINE void widened_columns(const Linear& a, int64_t m0, int64_t m1, int64_t n0, int64_t n1,
                                const F& widen) {
  Linear tile = a;
  tile.w_stride = (a.k + kLanes - 1) / kLanes * kLanes + kLanes;
  tile.w_type = DType::fp32;
  if (a.group != 0) tile.scales = nullptr;  // they are in the widened weights
  float* wide = scratch(Use::kernel, static_cast<size_t>(kTileColumns * tile.w_stride));
  for (int64_t n = n0; n < n1; n += kTileColumns) {
    const int64_t count = min_of(kTileColumns, n1 - n);
    for (int64_t c = 0; c < count; ++c) widen(n + c, wide + c * tile.w_stride);
    tile.w = wide;
    tile.y = a.y + n;
    if (a.bias != nullptr) {
      tile.bias = static_cast<const char*>(a.bias) + n * dtype_bytes(a.bias_type);
    }
    if (tile.scales != nullptr) tile.scales = a.scales + n * a.scale_stride;
    direct_columns<kTileRows, kTileColumns, float>(tile, m0, m1, 0, count);
  }
}

// Rows at a time whose x stays in the second-level cache while a block of W passes by.
ATB_INLINE int64_t row_block(const Linear& a) {
  const int64_t fitting = kRowBlockBytes / 4 / max_of(a.k, 1) / kTileRows * kTileRows;
  return max_of(fitting, 4 * kTileRows);
}

template <class W>
static void linear_direct(const Linear& a, int64_t m0, int64_t m1, int64_t n0, int64_t n1) {
  // One row: whole lines of fp32 come from eight rows at once; half types come best in order.
  constexpr int kAlone = sizeof(W) == 4 && kTileRows >= 4 ? 8 : 1;
  const int64_t rows = m1 - m0;
  if (rows == 1) return direct_columns<1, kAlone, W>(a, m0, m1, n0, n1);
  if constexpr (kTileRows >= 4) {
    if (rows == 2) return direct_columns<2, 8, W>(a, m0, m1, n0, n1);
    if (rows == 3) return direct_columns<3, 8, W>(a, m0, m1, n0, n1);
  }
  const int64_t block = row_block(a);
  for (int64_t m = m0; m < m1; m += block) {
    const int64_t end = min_of(m + block, m1);
    if (sizeof(W) < 4 && kTileRows < 4 && end - m >= kWidenRows) {
      widened_columns(a, m, end, n0, n1, [&](int64_t n, float* to) {
        const W* from = static_cast<const W*>(a.w) + n * a.w_stride;
        for (int64_t k = 0; k < a.k; k += kLanes) store(to + k, load_upto(from + k, a.k - k));
      });
    } else {
      direct_columns<kTileRows, kTileColumns, W>(a, m, end, n0, n1);
    }
  }
}

}  // namespace kernels::ATB_ISA
