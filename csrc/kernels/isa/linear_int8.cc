// y = x Wᵀ with x and W of eight bits: products are added in int32, which is exact, so only the
// scales and the tree over leaves have an order.
#include "dot8.h"
#include "tables.h"

namespace kernels::ATB_ISA {
namespace {

constexpr int64_t kPrefetch = 64 << 10;   // see linear_direct.h
constexpr int64_t kRowBytes = 512 << 10;  // of x, that stay in the second-level cache

template <class Dot, int R, int C, bool Fetch, int N>
ATB_INLINE void step(const int8_t* const (&x)[R], const int8_t* const (&w)[C], int64_t k,
                     typename Dot::Sums (&acc)[N]) {
  typename Dot::W columns[C];
#pragma GCC unroll 8
  for (int c = 0; c < C; ++c) {
    columns[c] = Dot::load_w(w[c] + k);
    if (Fetch && (Dot::kBytes == 64 || k % 64 == 0)) {
      __builtin_prefetch(w[c] + k + kPrefetch, 0, 2);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
    const typename Dot::X row = Dot::load_x(x[r] + k);
#pragma GCC unroll 8
    for (int c = 0; c < C; ++c) acc[r * C + c] = Dot::add(acc[r * C + c], columns[c], row);
  }
}

template <class Dot, int R, int C, bool Fetch>
__attribute__((noinline)) void tile(const Int8Linear& a, int64_t m, int64_t n) {
  constexpr int kCount = (R * C + 7) / 8 * 8;
  float waiting[kMaxTreeDepth][R * C];
  int depth = 0;
  for (int leaf = 0; leaf < a.leaves.count; ++leaf) {
    const int64_t begin = a.leaves.border[leaf], features = a.leaves.border[leaf + 1] - begin;
    const int8_t* x[R];
    const int8_t* w[C];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) x[r] = a.x + (m + r) * a.x_stride + a.offsets[leaf];
#pragma GCC unroll 8
    for (int c = 0; c < C; ++c) w[c] = a.w + (n + c) * a.w_stride + begin;
    typename Dot::Sums acc[kCount];
#pragma GCC unroll 32
    for (int i = 0; i < kCount; ++i) acc[i] = Dot::none();
    int64_t k = 0;
    for (; k + Dot::kBytes <= features; k += Dot::kBytes) step<Dot, R, C, Fetch>(x, w, k, acc);
    if (k < features) {
      int8_t ends[C][Dot::kBytes] = {};  // zeros in x follow the leaf, but w must not be read there
      const int8_t* ends_of[C];
      for (int c = 0; c < C; ++c) {
        std::memcpy(ends[c], w[c] + k, static_cast<size_t>(features - k));
        ends_of[c] = ends[c];
      }
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) x[r] += k;
      step<Dot, R, C, false>(x, ends_of, 0, acc);
    }
    int32_t totals[kCount];
#pragma GCC unroll 4
    for (int i = 0; i < kCount; i += 8) Dot::total8(acc + i, totals + i);
    float* sums = waiting[depth++];
    for (int r = 0; r < R; ++r) {
      const int64_t at = (m + r) * a.leaves.count + leaf;
      for (int c = 0; c < C; ++c) {
        const int32_t exact = totals[r * C + c] - Dot::kOffset * a.x_sums[at];
        sums[r * C + c] =
            static_cast<float>(exact) * (a.x_scales[at] * a.scales[(n + c) * a.scale_stride]);
      }
    }
    for (int join = a.leaves.joins[leaf]; join > 0; --join) {
      --depth;
      for (int i = 0; i < R * C; ++i) waiting[depth - 1][i] += waiting[depth][i];
    }
  }
  for (int r = 0; r < R; ++r) {
    float* y = a.y + (m + r) * a.y_stride + n;
    for (int c = 0; c < C; ++c) {
      y[c] = a.bias == nullptr ? waiting[0][r * C + c] : waiting[0][r * C + c] + a.bias[n + c];
    }
  }
}

template <class Dot, int R, int C>
void columns_of(const Int8Linear& a, int64_t m0, int64_t m1, int64_t n0, int64_t n1) {
  const auto rows = [&](auto count, int64_t n) {
    constexpr int kColumns = decltype(count)::value;
    int64_t m = m0;
    if (m + R <= m1) tile<Dot, R, kColumns, true>(a, m, n);
    for (m += R; m + R <= m1; m += R) tile<Dot, R, kColumns, false>(a, m, n);
    for (m = m0 + (m1 - m0) / R * R; m < m1; ++m) tile<Dot, 1, kColumns, R == 1>(a, m, n);
  };
  int64_t n = n0;
  for (; n + C <= n1; n += C) rows(Constant<C>{}, n);
  for (; n < n1; ++n) rows(Constant<1>{}, n);
}

template <class Dot>
void multiply(const Int8Linear& a, int64_t n0, int64_t n1) {
  if (a.m == 1) return columns_of<Dot, 1, 8>(a, 0, 1, n0, n1);
  const int64_t fitting = kRowBytes / max_of(a.x_stride, 1) / Dot::kRows * Dot::kRows;
  const int64_t block = max_of(fitting, 4 * Dot::kRows);
  for (int64_t m = 0; m < a.m; m += block) {
    columns_of<Dot, Dot::kRows, Dot::kColumns>(a, m, min_of(m + block, a.m), n0, n1);
  }
}

// Whole leaves of a row: x = integer · scale, the largest |x| being 127; zeros follow each leaf.
void quantize_leaf(const float* x, int64_t n, int8_t* to, int64_t padded, float* scale,
                   int32_t* total) {
  Vec largest = zero(), poison = zero();
  for (int64_t k = 0; k < n; k += kLanes) {
    const Vec v = load_upto(x + k, n - k);
    largest = max(max(v, sub(zero(), v)), largest);
    poison = fma(v, zero(), poison);  // NaN when anything is not finite
  }
  *scale = max_lane(largest) / 127.0f;
  const Vec step = set1(*scale > 0.0f ? *scale : 1.0f);
  *scale += sum(poison);
  const Vec shift =
      set1(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer, in the low bits
  int32_t sum = 0;
  for (int64_t k = 0; k < padded; k += kLanes) {
    int32_t lanes[kLanes];
    float rounded[kLanes];
    store(rounded, add(div(k < n ? load_upto(x + k, n - k) : zero(), step), shift));
    std::memcpy(lanes, rounded, sizeof lanes);
    for (int i = 0; i < kLanes; ++i) {
      const int8_t value = static_cast<int8_t>(lanes[i] & 0xff);
      to[k + i] = value;
      sum += value;
    }
  }
  *total = sum;
}

}  // namespace

void quantize_rows(const RowQuantize& a, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; ++row) {
    for (int leaf = 0; leaf < a.leaves.count; ++leaf) {
      const int64_t from = a.leaves.border[leaf], n = a.leaves.border[leaf + 1] - from;
      const int64_t at = row * a.leaves.count + leaf;
      quantize_leaf(a.x + row * a.x_stride + from, n, a.to + row * a.to_stride + a.offsets[leaf],
                    a.offsets[leaf + 1] - a.offsets[leaf], a.scales + at, a.sums + at);
    }
  }
}

void int8_linear(const Int8Linear& a, int64_t n0, int64_t n1) {
#if defined(ATB_ISA_AVX512)
  if (a.vnni) return multiply<DotVnni>(a, n0, n1);
#endif
  multiply<DotWide>(a, n0, n1);
}

}  // namespace kernels::ATB_ISA
