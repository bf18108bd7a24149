// The tree over leaves, as the number of joins that follow each leaf.
#include <stdexcept>
#include <string>

#include "kernels.h"

namespace kernels {
namespace {

// sum(low, high) = sum(low, mid) + sum(mid, high): the join follows the last leaf of the range.
void plan_joins(Leaves& leaves, int low, int high) {
  if (high - low < 2) return;
  const int mid = (low + high) / 2;
  plan_joins(leaves, low, mid);
  plan_joins(leaves, mid, high);
  ++leaves.joins[high - 1];
}

}  // namespace

Leaves plan_leaves(const int64_t* borders, size_t count, int64_t k) {
  Leaves leaves;
  leaves.border[1] = k;
  if (count == 0) return leaves;
  if (count < 2 || count > kMaxLeaves + 1) {
    throw std::invalid_argument("linear: leaves has " + std::to_string(count) +
                                " borders; give 2 to " + std::to_string(kMaxLeaves + 1));
  }
  for (size_t i = 0; i < count; ++i) {
    const bool falls = i > 0 && borders[i] < borders[i - 1];
    if (falls || (i == 0 && borders[i] != 0) || (i + 1 == count && borders[i] != k)) {
      throw std::invalid_argument("linear: leaves must rise from 0 to " + std::to_string(k) +
                                  ", the input features; border " + std::to_string(i) + " is " +
                                  std::to_string(borders[i]));
    }
    leaves.border[i] = borders[i];
  }
  leaves.count = static_cast<int>(count) - 1;
  plan_joins(leaves, 0, leaves.count);
  return leaves;
}

}  // namespace kernels
