#include "all_reduce_rms_norm.h"

#include "api.h"

namespace kernels {

void all_reduce_rms_norm(lcal::Comm& comm, const AllReduceRmsNorm& a) {
  const size_t width = static_cast<size_t>(a.width);
  const size_t rows = static_cast<size_t>(a.rows);
  size_t done = 0;  // rows that are finished
  const auto finish = [&](size_t first, size_t count) {
    float* x = a.x + first;
    const float* residual = a.residual + first;
    for (size_t i = 0; i < count; ++i) x[i] += residual[i];
    const size_t complete = (first + count) / width;
    rms_norm({a.x + done * width, a.width, a.weight, a.weight_type, a.normed + done * width,
              static_cast<int64_t>(complete - done), a.width, a.eps});
    done = complete;
  };
  comm.all_reduce(a.x, rows * width, lcal::DType::f32, lcal::Op::sum, finish);
}

}  // namespace kernels
