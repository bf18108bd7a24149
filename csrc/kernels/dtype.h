// Element types of weights and caches. Activations are always fp32.
#pragma once

#include <cstdint>

namespace kernels {

// The numbers are part of the Python interface (atb_dist/ops/cpu.py).
// int4: sixteen bytes hold 32 features, i and i + 16 in byte i, each plus 8.
enum class DType : int { fp32 = 0, bf16 = 1, fp16 = 2, int8 = 3, int4 = 4 };

struct bf16 {
  uint16_t bits;
};
struct fp16 {
  uint16_t bits;
};

// Of floating types.
inline int64_t dtype_bytes(DType type) { return type == DType::fp32 ? 4 : 2; }

}  // namespace kernels
