// Kernels that treat each row alone: norm, rope, swiglu, embedding, cache write, combine.
#include <cmath>

#include "simd.h"
#include "tables.h"

namespace kernels::ATB_ISA {

// Call f with a null pointer of the element type, so that templates can be chosen by it.
template <class F>
ATB_INLINE void with_type(DType type, const F& f) {
  if (type == DType::fp32) return f(static_cast<float*>(nullptr));
  if (type == DType::bf16) return f(static_cast<bf16*>(nullptr));
  return f(static_cast<fp16*>(nullptr));
}

template <class W>
static void norm_row(const float* x, const W* weight, float* y, int64_t width, float eps) {
  Vec squares = zero();
  for (int64_t i = 0; i < width; i += kLanes) {
    const Vec v = load_upto(x + i, width - i);
    squares = fma(v, v, squares);
  }
  const float mean = sum(squares) / static_cast<float>(width);
  const Vec scale = set1(1.0f / __builtin_sqrtf(mean + eps));
  for (int64_t i = 0; i < width; i += kLanes) {
    const Vec normed = mul(load_upto(x + i, width - i), scale);
    store_upto(y + i, width - i, mul(normed, load_upto(weight + i, width - i)));
  }
}

void rms_norm(const RmsNorm& a, int64_t begin, int64_t end) {
  with_type(a.weight_type, [&](auto* type) {
    const auto* weight = static_cast<decltype(type)>(const_cast<void*>(a.weight));
    for (int64_t row = begin; row < end; ++row) {
      norm_row(a.x + row * a.x_stride, weight, a.y + row * a.width, a.width, a.eps);
    }
  });
}

void rope(const Rope& a, int64_t begin, int64_t end) {
  const int64_t half = a.size / 2;
  for (int64_t row = begin; row < end; ++row) {
    const float* cosines = a.cos_sin + a.positions[row] * a.size;
    const float* sines = cosines + half;
    for (int64_t head = 0; head < a.num_heads; ++head) {
      float* first = a.heads + row * a.row_stride + head * a.head_stride;
      float* second = first + half;
      for (int64_t i = 0; i < half; i += kLanes) {
        const int64_t n = half - i;
        const Vec c = load_upto(cosines + i, n), s = load_upto(sines + i, n);
        const Vec p = load_upto(first + i, n), q = load_upto(second + i, n);
        store_upto(first + i, n, fma(p, c, sub(zero(), mul(q, s))));
        store_upto(second + i, n, fma(q, c, mul(p, s)));
      }
    }
  }
}

void swiglu(const Swiglu& a, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; ++row) {
    const float* gate = a.x + row * a.x_stride;
    const float* up = gate + a.width;
    float* y = a.y + row * a.width;
    for (int64_t i = 0; i < a.width; i += kLanes) {
      const Vec g = load_upto(gate + i, a.width - i);
      const Vec silu = div(g, add(set1(1.0f), exp(sub(zero(), g))));
      store_upto(y + i, a.width - i, mul(silu, load_upto(up + i, a.width - i)));
    }
  }
}

void combine(const Combine& a, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; ++row) {
    for (int64_t i = 0; i < a.width; i += kLanes) {
      const int64_t n = a.width - i;
      Vec total = zero();
      for (int64_t at = a.starts[row]; at < a.starts[row + 1]; ++at) {
        const int64_t from = a.order[at];
        total = fma(set1(a.scales[from]), load_upto(a.x + from * a.x_stride + i, n), total);
      }
      store_upto(a.y + row * a.width + i, n, total);
    }
  }
}

void embedding(const Embedding& a, int64_t begin, int64_t end) {
  with_type(a.type, [&](auto* type) {
    const auto* weight = static_cast<decltype(type)>(const_cast<void*>(a.weight));
    for (int64_t row = begin; row < end; ++row) {
      float* y = a.y + row * a.width;
      const int64_t local = a.ids[row] - a.first_id;
      const bool mine = local >= 0 && local < a.count;
      for (int64_t i = 0; i < a.width; i += kLanes) {
        const int64_t n = a.width - i;
        store_upto(y + i, n, mine ? load_upto(weight + local * a.weight_stride + i, n) : zero());
      }
    }
  });
}

void cache_write(const CacheWrite& a, int64_t begin, int64_t end) {
  with_type(a.type, [&](auto* type) {
    auto* cache = static_cast<decltype(type)>(a.cache);
    for (int64_t row = begin; row < end; ++row) {
      for (int64_t head = 0; head < a.num_heads; ++head) {
        const float* x = a.x + row * a.row_stride + head * a.head_stride;
        auto* to = cache + (a.slots[row] * a.num_heads + head) * a.size;
        for (int64_t i = 0; i < a.size; i += kLanes) {
          store_upto(to + i, a.size - i, load_upto(x + i, a.size - i));
        }
      }
    }
  });
}

}  // namespace kernels::ATB_ISA
