// Compiled once for each instruction set, in a namespace of its name (LCAL_ISA).
#include <algorithm>
#include <string>

#include "error.h"
#include "isa_halves.h"
#include "reduce_isa.h"

namespace lcal {
namespace LCAL_ISA {
namespace {

// Adding 1.5 * 2^23 leaves the integer nearest to a small number in the low bits of the mantissa.
constexpr float kRound = 12582912.0f;
constexpr float kTop = 127.0f;

template <class T>
void quantize_typed(const T* x, size_t count, int8_t* codes, float* scales) {
  for (size_t first = 0; first < count; first += kWireBlock) {
    const size_t n = std::min(kWireBlock, count - first);
    float values[kWireBlock] = {};
    for (size_t i = 0; i < n; ++i) values[i] = widen(x[first + i]);
    float most[16] = {};
    float odd[16] = {};  // becomes NaN where a value is not finite
    for (size_t i = 0; i < kWireBlock; i += 16) {
      for (size_t j = 0; j < 16; ++j) {
        const float size = from_bits(to_bits(values[i + j]) & 0x7fffffffu);
        most[j] = size > most[j] ? size : most[j];
        odd[j] += values[i + j] * 0.0f;
      }
    }
    for (size_t half = 8; half > 0; half /= 2) {
      for (size_t j = 0; j < half; ++j) {
        most[j] = most[j + half] > most[j] ? most[j + half] : most[j];
        odd[j] += odd[j + half];
      }
    }
    const float scale = most[0] / kTop + odd[0];
    // The smallest numbers have no inverse: they are too small to matter.
    const float inverse = most[0] > 0x1p-120f ? kTop / most[0] : 0.0f;
    int8_t block[kWireBlock];
    for (size_t i = 0; i < kWireBlock; ++i) {
      block[i] = static_cast<int8_t>(to_bits(values[i] * inverse + kRound) & 0xffu);
    }
    std::memcpy(codes + first, block, n);
    scales[first / kWireBlock] = scale;
  }
}

void tree(float* result, const WirePiece* pieces, int low, int high, size_t block, size_t count) {
  if (high - low == 1) {
    const int8_t* codes = pieces[low].codes + block * kWireBlock;
    const float scale = pieces[low].scales[block];
    for (size_t i = 0; i < count; ++i) result[i] = static_cast<float>(codes[i]) * scale;
    return;
  }
  const int middle = (low + high) / 2;
  float right[kWireBlock];
  tree(result, pieces, low, middle, block, count);
  tree(right, pieces, middle, high, block, count);
  for (size_t i = 0; i < count; ++i) result[i] += right[i];
}

template <class T>
void sum_typed(T* out, const WirePiece* pieces, int ranks, size_t count) {
  float result[kWireBlock];
  for (size_t first = 0; first < count; first += kWireBlock) {
    const size_t n = std::min(kWireBlock, count - first);
    tree(result, pieces, 0, ranks, first / kWireBlock, n);
    for (size_t i = 0; i < n; ++i) narrow(result[i], &out[first + i]);
  }
}

[[noreturn]] void refuse(DType dtype) {
  throw UsageError(std::string("elements of type ") + name(dtype) +
                   " can't travel as int8; use float32, float16 or bfloat16");
}

}  // namespace

void quantize(const void* x, size_t count, DType dtype, int8_t* codes, float* scales) {
  switch (dtype) {
    case DType::f32:
      return quantize_typed(static_cast<const float*>(x), count, codes, scales);
    case DType::f16:
      return quantize_typed(static_cast<const Half*>(x), count, codes, scales);
    case DType::bf16:
      return quantize_typed(static_cast<const BFloat*>(x), count, codes, scales);
    default:
      refuse(dtype);
  }
}

void sum_quantized(void* out, const WirePiece* pieces, int ranks, size_t count, DType dtype) {
  switch (dtype) {
    case DType::f32:
      return sum_typed(static_cast<float*>(out), pieces, ranks, count);
    case DType::f16:
      return sum_typed(static_cast<Half*>(out), pieces, ranks, count);
    case DType::bf16:
      return sum_typed(static_cast<BFloat*>(out), pieces, ranks, count);
    default:
      refuse(dtype);
  }
}

}  // namespace LCAL_ISA
}  // namespace lcal
