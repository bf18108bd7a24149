// The reduction: its order, its rounding of half types, and NaN.
#include <cmath>
#include <cstring>

#include "lcal_check.h"
#include "reduce.h"

namespace {

float tree(const std::vector<std::vector<float>>& values, int low, int high, size_t i) {
  if (high - low == 1) return values[low][i];
  const int middle = (low + high) / 2;
  return tree(values, low, middle, i) + tree(values, middle, high, i);
}

void sums_follow_the_tree() {
  for (int ranks : {1, 2, 3, 5, 8, 64}) {
    const size_t count = 1037;
    std::vector<std::vector<float>> values(ranks, std::vector<float>(count));
    uint32_t state = 1;
    for (auto& each : values) {
      for (float& value : each) {
        state = state * 1664525u + 1013904223u;
        value = static_cast<float>(static_cast<int32_t>(state)) * 0x1p-20f;
      }
    }
    std::vector<const void*> sources;
    for (auto& each : values) sources.push_back(each.data());
    std::vector<float> out(count);
    lcal::reduce_ranks(out.data(), sources.data(), ranks, count, lcal::DType::f32, lcal::Op::sum);
    for (size_t i = 0; i < count; ++i) CHECK(out[i] == tree(values, 0, ranks, i));
  }
}

// One rank's reduction widens and narrows: every 16-bit number must come back.
void halves_round_trip(lcal::DType type, uint32_t exponent_mask, uint32_t mantissa_mask) {
  std::vector<uint16_t> in(1 << 16);
  for (size_t i = 0; i < in.size(); ++i) in[i] = static_cast<uint16_t>(i);
  std::vector<uint16_t> out(in.size());
  const void* source = in.data();
  lcal::reduce_ranks(out.data(), &source, 1, in.size(), type, lcal::Op::sum);
  for (size_t i = 0; i < in.size(); ++i) {
    const bool nan = (i & exponent_mask) == exponent_mask && (i & mantissa_mask) != 0;
    if (nan) {
      CHECK((out[i] & exponent_mask) == exponent_mask && (out[i] & mantissa_mask) != 0);
    } else {
      CHECK(out[i] == in[i]);
    }
  }
}

void halves_round_to_even() {
  // 2048 + 1 lies between two fp16 numbers: the even one is 2048. 2050 + 1 goes up to 2052.
  const uint16_t big[2] = {0x6800, 0x6801};
  const uint16_t one[2] = {0x3c00, 0x3c00};
  const void* sources[2] = {big, one};
  uint16_t out[2];
  lcal::reduce_ranks(out, sources, 2, 2, lcal::DType::f16, lcal::Op::sum);
  CHECK(out[0] == 0x6800 && out[1] == 0x6802);
  const uint16_t top[1] = {0x7bff};  // 65504 twice is infinity
  const void* tops[2] = {top, top};
  lcal::reduce_ranks(out, tops, 2, 1, lcal::DType::f16, lcal::Op::sum);
  CHECK(out[0] == 0x7c00);
}

void nan_wins_from_either_side() {
  const float nan = std::nanf("");
  const float a[2] = {nan, 1.0f};
  const float b[2] = {1.0f, nan};
  const void* sources[2] = {a, b};
  float out[2];
  for (lcal::Op op : {lcal::Op::max, lcal::Op::min, lcal::Op::sum}) {
    lcal::reduce_ranks(out, sources, 2, 2, lcal::DType::f32, op);
    CHECK(std::isnan(out[0]) && std::isnan(out[1]));
  }
}

}  // namespace

int main() {
  sums_follow_the_tree();
  halves_round_trip(lcal::DType::f16, 0x7c00, 0x03ff);
  halves_round_trip(lcal::DType::bf16, 0x7f80, 0x007f);
  halves_round_to_even();
  nan_wins_from_either_side();
  return 0;
}
