// The sum over ranks, the residual and the norm in one pass, while each piece is in the cache.
#pragma once

#include "comm.h"
#include "kernels.h"

namespace kernels {

// x becomes the sum over ranks plus residual; normed its RMS norm. All rows follow one another.
struct AllReduceRmsNorm {
  float* x;
  const float* residual;
  const void* weight;
  DType weight_type;
  float* normed;
  int64_t rows, width;
  float eps;
};

// Collective. Throws as Comm::all_reduce does. The bits are those of the three steps.
void all_reduce_rms_norm(lcal::Comm& comm, const AllReduceRmsNorm& call);

}  // namespace kernels
