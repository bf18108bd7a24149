// Sums whose addends travel as int8, symmetric, with one fp32 scale for kWireBlock elements.
//
//   scale = max |x| / 127 of the block     code = round(x / scale), to nearest even
//
// An addend differs from what is added by at most scale / 2 = max |x| / 254 of its block, so a sum
// over N ranks by at most the N such bounds together. A block that holds a NaN or an infinity
// arrives as NaN. The addends are summed in fp32 along the rank tree: the same bits on every rank.
#pragma once

#include <cstddef>
#include <cstdint>

#include "types.h"

namespace lcal {

constexpr size_t kWireBlock = 64;

struct WirePiece {
  const int8_t* codes;
  const float* scales;
};

inline size_t wire_blocks(size_t count) { return (count + kWireBlock - 1) / kWireBlock; }

// x has elements of a floating-point type of at most 32 bits. Throws UsageError for others.
void quantize(const void* x, size_t count, DType dtype, int8_t* codes, float* scales);
void sum_quantized(void* out, const WirePiece* pieces, int ranks, size_t count, DType dtype);

}  // namespace lcal
