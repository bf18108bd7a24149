// The loops over elements, compiled once for each instruction set (CMakeLists.txt): same source,
// same bits, wider vectors.
#pragma once

#include <cstddef>

#include "types.h"
#include "wire.h"

namespace lcal {

#define LCAL_DECLARE_ISA(isa)                                                                    \
  namespace isa {                                                                                \
  void reduce_ranks(void* out, const void* const* sources, int ranks, size_t count, DType dtype, \
                    Op op);                                                                      \
  void quantize(const void* x, size_t count, DType dtype, int8_t* codes, float* scales);         \
  void copy_past_cache(void* to, const void* from, size_t bytes);                                \
  void sum_quantized(void* out, const WirePiece* pieces, int ranks, size_t count, DType dtype);  \
  }
LCAL_DECLARE_ISA(portable)
LCAL_DECLARE_ISA(avx2)
LCAL_DECLARE_ISA(avx512)
#undef LCAL_DECLARE_ISA

}  // namespace lcal
