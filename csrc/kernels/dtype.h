// Element types of weights and caches. Activations are always fp32.
#pragma once

#include <cstdint>

namespace kernels {

// The numbers are part of the Python interface (atb_dist/ops/cpu.py).
enum class DType : int { fp32 = 0, bf16 = 1, fp16 = 2 };

struct bf16 {
  uint16_t bits;
};
struct fp16 {
  uint16_t bits;
};

inline const char* dtype_name(DType type) {
  return type == DType::fp32 ? "fp32" : type == DType::bf16 ? "bf16" : "fp16";
}
inline int64_t dtype_bytes(DType type) { return type == DType::fp32 ? 4 : 2; }

}  // namespace kernels
