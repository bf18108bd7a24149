// linear against sums in double, at sizes around every tile, leaf and block border.
#include <cstring>
#include <vector>

#include "api.h"
#include "kernels_check.h"
#include "thread_pool.h"

using namespace kernels;

namespace {

struct Problem {
  int64_t m, n, k;
  Buffer<float> x, w, bias, y;

  Problem(int64_t m, int64_t n, int64_t k)
      : m(m),
        n(n),
        k(k),
        x(Noise{1}.floats(m * k)),
        w(Noise{2}.floats(n * k)),
        bias(Noise{3}.floats(n)),
        y(m * n) {}

  void run(const std::vector<int64_t>& leaves, bool biased) {
    linear({x.get(), k, w.get(), k, DType::fp32, biased ? bias.get() : nullptr, DType::fp32,
            y.get(), n, m, n, k, plan_leaves(leaves.data(), leaves.size(), k), nullptr, 0, 0,
            false});
  }

  void check(bool biased) {
    for (int64_t i = 0; i < m; ++i) {
      for (int64_t j = 0; j < n; ++j) {
        double wanted = biased ? bias[j] : 0.0;
        for (int64_t e = 0; e < k; ++e) wanted += double{x[i * k + e]} * double{w[j * k + e]};
        CHECK(std::fabs(y[i * n + j] - wanted) <= 1e-6 * std::sqrt(double(k)) + 1e-6);
      }
    }
  }
};

void sizes_around_the_tiles() {
  for (int64_t m : {0, 1, 2, 3, 4, 5, 9, 17, 33}) {
    for (int64_t n : {0, 1, 2, 5, 6, 7, 13, 49}) {
      for (int64_t k : {0, 1, 15, 16, 17, 64, 100}) {
        Problem p(m, n, k);
        p.run({}, m % 2 == 1);
        p.check(m % 2 == 1);
      }
    }
  }
}

void leaves_of_any_size() {
  Problem p(5, 9, 103);
  p.run({0, 103}, true);
  p.check(true);
  p.run({0, 0, 1, 16, 16, 50, 103, 103, 103}, true);
  p.check(true);
  std::vector<int64_t> many(kMaxLeaves + 1, 103);
  for (size_t i = 0; i < 100; ++i) many[i] = static_cast<int64_t>(i);
  p.run(many, false);
  p.check(false);
}

void the_tree_joins_neighbours_of_equal_height() {
  const int64_t borders[] = {0, 1, 2, 3, 4, 5};
  const Leaves leaves = plan_leaves(borders, 6, 5);  // (0 + 1) + (2 + (3 + 4))
  CHECK(leaves.count == 5);
  const int wanted[] = {0, 1, 0, 0, 3};
  for (int i = 0; i < 5; ++i) CHECK(leaves.joins[i] == wanted[i]);
}

void wrong_leaves_are_refused() {
  const auto refused = [](std::vector<int64_t> borders) {
    return refusal_of([&] { plan_leaves(borders.data(), borders.size(), 8); });
  };
  CHECK(refused({0}).find("2 to 129") != std::string::npos);
  CHECK(refused(std::vector<int64_t>(130, 0)).find("130 borders") != std::string::npos);
  CHECK(refused({1, 8}).find("border 0 is 1") != std::string::npos);
  CHECK(refused({0, 7}).find("border 1 is 7") != std::string::npos);
  CHECK(refused({0, 6, 5, 8}).find("border 2 is 5") != std::string::npos);
  CHECK(refused({0, 3, 8}).empty());
}

// Integer weights against their values in double; packed rows end where the last run does.
void quantized(DType type, int64_t group, int64_t m, int64_t n, int64_t k) {
  const int64_t stride = type == DType::int4 ? (k + 31) / 32 * 16 : k;
  const int64_t groups = group == 0 ? 1 : (k + group - 1) / group;
  Buffer<float> x = Noise{1}.floats(m * k), scales = Noise{2}.floats(n * groups), y(m * n);
  Buffer<uint8_t> w(n * stride);
  for (int64_t i = 0; i < n * stride; ++i) w[i] = static_cast<uint8_t>(i * 37 + i / 7);
  Linear call = {};
  call.x = x.get();
  call.x_stride = k;
  call.w = w.get();
  call.w_stride = stride;
  call.w_type = type;
  call.y = y.get();
  call.y_stride = n;
  call.m = m;
  call.n = n;
  call.k = k;
  call.leaves = plan_leaves(nullptr, 0, k);
  call.scales = scales.get();
  call.scale_stride = groups;
  call.group = group;
  linear(call);
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      double wanted = 0;
      for (int64_t e = 0; e < k; ++e) {
        const uint8_t* row = w.get() + j * stride;
        const int nibble = row[e / 32 * 16 + e % 16] >> (e % 32 / 16 * 4) & 15;
        const int value = type == DType::int4 ? nibble - 8 : static_cast<int8_t>(row[e]);
        const double scale = scales[j * groups + (group == 0 ? 0 : e / group)];
        wanted += double{x[i * k + e]} * value * scale;
      }
      const double largest = type == DType::int4 ? 8 : 128;
      CHECK(std::fabs(y[i * n + j] - wanted) <= 2e-6 * largest * std::sqrt(double(k)));
    }
  }
}

void quantized_sizes() {
  for (int64_t m : {1, 2, 3, 5, 8, 11}) {
    for (int64_t n : {1, 5, 13}) {
      for (int64_t k : {1, 16, 31, 32, 33, 49, 64, 200}) {
        quantized(DType::int8, 0, m, n, k);
        quantized(DType::int8, 32, m, n, k);
        quantized(DType::int4, 32, m, n, k);
        quantized(DType::int4, 128, m, n, k);
      }
    }
  }
}

// Activations of eight bits too: |x| is 127 somewhere in each leaf, so rounding is known.
void both_of_eight_bits(int64_t m, int64_t n, int64_t k, const std::vector<int64_t>& leaves) {
  Buffer<float> x(m * k), scales = Noise{2}.floats(n), bias = Noise{3}.floats(n), y(m * n);
  Buffer<int8_t> w(n * k);
  for (int64_t i = 0; i < m * k; ++i) x[i] = static_cast<float>(i * 31 % 255 - 127) * 0.5f;
  for (int64_t i = 0; i < m; ++i) {
    for (size_t leaf = 0; leaf + 1 < leaves.size(); ++leaf) {
      if (leaves[leaf] < leaves[leaf + 1]) x[i * k + leaves[leaf]] = 63.5f;
    }
  }
  for (int64_t i = 0; i < n * k; ++i) w[i] = static_cast<int8_t>(i * 37 + i / 7);
  Linear call = {};
  call.x = x.get();
  call.x_stride = k;
  call.w = w.get();
  call.w_stride = k;
  call.bias = bias.get();
  call.y = y.get();
  call.y_stride = n;
  call.m = m;
  call.n = n;
  call.k = k;
  call.leaves = plan_leaves(leaves.data(), leaves.size(), k);
  call.scales = scales.get();
  call.scale_stride = 1;
  linear_w8a8(call);
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      double wanted = 0;
      for (int64_t e = 0; e < k; ++e) wanted += double{x[i * k + e]} * w[j * k + e];
      wanted = wanted * scales[j] + bias[j];
      CHECK(std::fabs(y[i * n + j] - wanted) <= 1e-5 * (1 + std::fabs(wanted)) + 0.01);
    }
  }
}

void both_of_eight_bits_sizes() {
  for (int64_t m : {1, 2, 4, 7, 20}) {
    for (int64_t n : {1, 6, 8, 15}) {
      for (int64_t k : {1, 15, 16, 17, 63, 64, 65, 200}) {
        both_of_eight_bits(m, n, k, {0, k});
        both_of_eight_bits(m, n, k, {0, k / 3, k / 2, k / 2, k});
      }
    }
  }
}

void threads_change_no_bit() {
  Problem p(150, 97, 333);
  ThreadPool::instance().set_num_threads(1);
  p.run({0, 100, 333}, true);
  std::vector<float> alone(p.y.get(), p.y.get() + 150 * 97);
  for (int threads : {2, 3, 5}) {
    ThreadPool::instance().set_num_threads(threads);
    std::memset(p.y.get(), 0xff, 150 * 97 * sizeof(float));
    p.run({0, 100, 333}, true);
    CHECK(std::memcmp(alone.data(), p.y.get(), alone.size() * sizeof(float)) == 0);
  }
}

}  // namespace

int main() {
  ThreadPool::instance().set_num_threads(2);
  sizes_around_the_tiles();
  leaves_of_any_size();
  the_tree_joins_neighbours_of_equal_height();
  wrong_leaves_are_refused();
  quantized_sizes();
  both_of_eight_bits_sizes();
  threads_change_no_bit();
}
