// The reduction's loops, compiled once for each instruction set (CMakeLists.txt): same source, same
// bits, wider vectors.
#pragma once

#include <cstddef>

#include "types.h"

namespace lcal {

using ReduceFunction = void (*)(void* out, const void* const* sources, int ranks, size_t count,
                                DType dtype, Op op);

namespace portable {
void reduce_ranks(void* out, const void* const* sources, int ranks, size_t count, DType dtype,
                  Op op);
}
namespace avx2 {
void reduce_ranks(void* out, const void* const* sources, int ranks, size_t count, DType dtype,
                  Op op);
}
namespace avx512 {
void reduce_ranks(void* out, const void* const* sources, int ranks, size_t count, DType dtype,
                  Op op);
}

}  // namespace lcal
