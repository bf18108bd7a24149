// Sums whose addends travel as int8: the stated bound, the same bits everywhere; and the tail.
#include <cmath>
#include <cstring>

#include "lcal_check.h"
#include "wire.h"

namespace {

std::vector<float> noise(int rank, size_t count) {
  std::vector<float> values(count);
  uint32_t state = 77u + static_cast<uint32_t>(rank);
  for (float& value : values) {
    state = state * 1664525u + 1013904223u;
    value = static_cast<float>(static_cast<int32_t>(state)) * 0x1p-28f;
  }
  return values;
}

constexpr double kRounding = 8 * 0x1p-23;  // of a sum of numbers below 8 in fp32

// What rank r's element may be off by: half a step of its block's scale, as fp32 has it.
double bound(const std::vector<float>& values, size_t i) {
  const size_t first = i / lcal::kWireBlock * lcal::kWireBlock;
  double most = 0;
  for (size_t j = first; j < std::min(first + lcal::kWireBlock, values.size()); ++j) {
    most = std::max(most, std::fabs(static_cast<double>(values[j])));
  }
  return most / 254 * (1 + 1e-5);
}

void sums_stay_within_the_bound(lcal::Comm& comm, size_t count) {
  std::vector<float> x = noise(comm.rank(), count);
  comm.all_reduce_int8(x.data(), count, lcal::DType::f32);
  std::vector<double> exact(count), allowed(count);
  for (int r = 0; r < comm.size(); ++r) {
    const std::vector<float> theirs = noise(r, count);
    for (size_t i = 0; i < count; ++i) {
      exact[i] += theirs[i];
      allowed[i] += bound(theirs, i);
    }
  }
  bool lossy = false;
  for (size_t i = 0; i < count; ++i) {
    CHECK(std::fabs(x[i] - exact[i]) <= allowed[i] + kRounding * comm.size());
    lossy = lossy || x[i] != static_cast<float>(exact[i]);
  }
  CHECK(count < 63 || lossy);
  std::vector<float> root = x;
  comm.broadcast(root.data(), count * sizeof(float), 0);
  CHECK(count == 0 || std::memcmp(root.data(), x.data(), count * sizeof(float)) == 0);
}

void what_is_not_finite_shows(lcal::Comm& comm) {
  std::vector<float> x(130, 1.0f);
  if (comm.rank() == 0) x[70] = INFINITY;
  comm.all_reduce_int8(x.data(), x.size(), lcal::DType::f32);
  for (size_t i = 0; i < x.size(); ++i) {
    const bool hit = i / lcal::kWireBlock == 1;
    CHECK(hit ? std::isnan(x[i]) : std::fabs(x[i] - comm.size()) < 1e-4);
  }
}

// The tail sees every element once, in order, when its result is there.
void the_tail_sees_results(lcal::Comm& comm, size_t count) {
  std::vector<float> x(count, static_cast<float>(comm.rank()));
  const float wanted = static_cast<float>(comm.size() * (comm.size() - 1) / 2);
  size_t seen = 0;
  comm.all_reduce(x.data(), count, lcal::DType::f32, lcal::Op::sum, [&](size_t first, size_t part) {
    CHECK(first == seen);
    for (size_t i = first; i < first + part; ++i) CHECK(x[i] == wanted);
    seen += part;
  });
  CHECK(seen == count);
}

}  // namespace

int main() {
  for (int size : {1, 2, 3, 8}) {
    on_ranks(size, [](lcal::Comm& comm) {
      for (size_t count : {size_t{0}, size_t{1}, size_t{63}, size_t{9001}, size_t{200001}}) {
        sums_stay_within_the_bound(comm, count);
        the_tail_sees_results(comm, count);
      }
      what_is_not_finite_shows(comm);
    });
  }
  return 0;
}
