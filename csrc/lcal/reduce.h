// Reduction over ranks, in one order: a balanced binary tree over rank numbers.
//
//   value(lo, hi) = value(lo, mid) op value(mid, hi),  mid = (lo + hi) / 2
//
// Half types are widened to fp32, combined, and rounded once at the end (to nearest even).
#pragma once

#include <cstddef>

#include "types.h"

namespace lcal {

// out[i] = sources[0][i] op ... op sources[ranks - 1][i]. out may be one of the sources.
// Throws UsageError for boolean and object elements.
void reduce_ranks(void* out, const void* const* sources, int ranks, size_t count, DType dtype,
                  Op op);

}  // namespace lcal
