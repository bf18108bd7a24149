// One block of y = x Wᵀ (+ bias).
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

// Partial sums of one tile that wait in the tree over leaves.
template <int N>
struct Waiting {
  float sums[kMaxTreeDepth][N];
  int depth;
};

template <int N>
ATB_INLINE void join(Waiting<N>& waiting, int joins) {
  for (; joins > 0; --joins) {
    float* into = waiting.sums[--waiting.depth - 1];
    for (int i = 0; i < N; ++i) into[i] += waiting.sums[waiting.depth][i];
  }
}

template <int N>
ATB_INLINE void add_leaf(Waiting<N>& waiting, const Vec* acc, int joins) {
  sum_each<N>(acc, waiting.sums[waiting.depth++]);
  join<N>(waiting, joins);
}

// The same for R rows of C columns n, n+1, ..., whose weights have one scale each.
template <int R, int C>
ATB_INLINE void add_scaled_leaf(Waiting<R * C>& waiting, const Vec* acc, int joins, const Linear& a,
                                int64_t n) {
  float* sums = waiting.sums[waiting.depth++];
  sum_each<R * C>(acc, sums);
  for (int r = 0; r < R; ++r) {
    for (int c = 0; c < C; ++c) sums[r * C + c] *= a.scales[(n + c) * a.scale_stride];
  }
  join<R * C>(waiting, joins);
}

// Adds a bias of any type; without one the sum is left as it is.
ATB_INLINE float with_bias(const Linear& a, float total, int64_t n) {
  if (a.bias == nullptr) return total;
  if (a.bias_type == DType::fp32) return total + static_cast<const float*>(a.bias)[n];
  if (a.bias_type == DType::bf16) return total + load_one(static_cast<const bf16*>(a.bias) + n);
  return total + load_one(static_cast<const fp16*>(a.bias) + n);
}

// Stores the sums of R rows of C columns.
template <int R, int C>
ATB_INLINE void store_tile(const Linear& a, int64_t m, int64_t n, const float* sums) {
  for (int r = 0; r < R; ++r) {
    float* y = a.y + (m + r) * a.y_stride + n;
    for (int c = 0; c < C; ++c) {
      const float total = with_bias(a, sums[r * C + c], n + c);
      y[c] = a.add ? y[c] + total : total;
    }
  }
}

}  // namespace kernels::ATB_ISA
