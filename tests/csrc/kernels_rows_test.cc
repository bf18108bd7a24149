// The kernels beside linear: sizes that fill no vector, exact ends of buffers, refusals.
#include <algorithm>
#include <vector>

#include "api.h"
#include "kernels_check.h"
#include "thread_pool.h"

using namespace kernels;

namespace {

bool near(double found, double wanted, double tolerance = 1e-5) {
  return std::fabs(found - wanted) <= tolerance * (1 + std::fabs(wanted));
}

void norm_and_swiglu() {
  for (int64_t width : {1, 7, 16, 33, 100}) {
    Buffer<float> x = Noise{1}.floats(3 * 2 * width), weight = Noise{2}.floats(width);
    Buffer<float> y(3 * width);
    rms_norm({x.get(), 2 * width, weight.get(), DType::fp32, y.get(), 3, width, 1e-5f});
    for (int64_t row = 0; row < 3; ++row) {
      const float* from = x.get() + row * 2 * width;
      double squares = 0;
      for (int64_t i = 0; i < width; ++i) squares += double{from[i]} * from[i];
      for (int64_t i = 0; i < width; ++i) {
        const double wanted = from[i] / std::sqrt(squares / width + 1e-5) * weight[i];
        CHECK(near(y[row * width + i], wanted));
      }
    }
    swiglu({x.get(), 2 * width, y.get(), 3, width});
    for (int64_t row = 0; row < 3; ++row) {
      for (int64_t i = 0; i < width; ++i) {
        const double gate = x[row * 2 * width + i], up = x[row * 2 * width + width + i];
        CHECK(near(y[row * width + i], gate / (1 + std::exp(-gate)) * up));
      }
    }
  }
}

void rope_turns_pairs() {
  constexpr int64_t kSize = 10, kHeads = 3;
  Buffer<float> heads = Noise{1}.floats(2 * kHeads * kSize), table = Noise{2}.floats(4 * kSize);
  const std::vector<float> before(heads.get(), heads.get() + 2 * kHeads * kSize);
  const int64_t positions[] = {3, 0};
  rope({heads.get(), kHeads * kSize, kSize, positions, table.get(), 2, kHeads, kSize}, 4);
  for (int64_t row = 0; row < 2; ++row) {
    for (int64_t head = 0; head < kHeads; ++head) {
      for (int64_t i = 0; i < kSize / 2; ++i) {
        const int64_t a = (row * kHeads + head) * kSize + i, b = a + kSize / 2;
        const double c = table[positions[row] * kSize + i];
        const double s = table[positions[row] * kSize + kSize / 2 + i];
        CHECK(near(heads[a], before[a] * c - before[b] * s));
        CHECK(near(heads[b], before[b] * c + before[a] * s));
      }
    }
  }
  const auto refused = refusal_of([&] {
    const int64_t outside[] = {0, 4};
    rope({heads.get(), kHeads * kSize, kSize, outside, table.get(), 2, kHeads, kSize}, 4);
  });
  CHECK(refused == "rope: position 4 of row 1 is outside the table of 4 positions");
}

template <class T>
void cache_and_embedding(DType type) {
  constexpr int64_t kSize = 19, kHeads = 2;
  Buffer<float> x = Noise{1}.floats(3 * kHeads * kSize), back(4 * kHeads * kSize);
  Buffer<T> cache(4 * kHeads * kSize);
  std::fill_n(reinterpret_cast<char*>(cache.get()), 4 * kHeads * kSize * sizeof(T), 0);
  const int32_t slots[] = {3, 0, 2};
  cache_write({x.get(), kHeads * kSize, kSize, cache.get(), type, slots, 3, kHeads, kSize}, 4);
  // Reading the cache as an embedding widens it again.
  const int64_t ids[] = {13, 10, 12, 11};
  embedding({ids, cache.get(), kHeads * kSize, type, back.get(), 4, kHeads * kSize, 10, 4});
  for (int64_t i = 0; i < 3 * kHeads * kSize; ++i) CHECK(near(back[i], x[i], 4e-3));
  for (int64_t i = 0; i < kHeads * kSize; ++i) CHECK(back[3 * kHeads * kSize + i] == 0.0f);
  const int32_t outside[] = {0, 4, 1};
  const auto refused = refusal_of([&] {
    cache_write({x.get(), kHeads * kSize, kSize, cache.get(), type, outside, 3, kHeads, kSize}, 4);
  });
  CHECK(refused == "reshape_and_cache: slot 4 of row 1 is outside the cache of 4 slots");
}

struct Sequence {
  int64_t size, heads = 4, kv_heads = 2, block_size = 5, blocks = 5, rows = 3, context = 18;
  Buffer<float> q, k, v, out;
  int32_t table[4] = {4, 1, 3, 0};  // block 2 belongs to nobody
  int32_t starts[2] = {0, 3};
  int32_t contexts[1] = {18};

  explicit Sequence(int64_t size)
      : size(size),
        q(Noise{1}.floats(3 * 4 * size)),
        k(Noise{2}.floats(5 * 5 * 2 * size)),
        v(Noise{3}.floats(5 * 5 * 2 * size)),
        out(3 * 4 * size) {
    // What nobody may read: the rest of the last block, and the block that is not in the table.
    for (int64_t slot : {3, 4, 10, 11, 12, 13, 14}) {
      std::fill_n(k.get() + slot * 2 * size, 2 * size, NAN);
      std::fill_n(v.get() + slot * 2 * size, 2 * size, NAN);
    }
  }

  void run() {
    paged_attention({q.get(), heads * size, size, k.get(), v.get(), DType::fp32, table, 4, starts,
                     contexts, out.get(), 1, heads, kv_heads, size, block_size, 0.3f},
                    rows, 4, blocks);
  }

  const float* cached(Buffer<float>& cache, int64_t position, int64_t head) {
    const int64_t slot = table[position / block_size] * block_size + position % block_size;
    return cache.get() + (slot * kv_heads + head / (heads / kv_heads)) * size;
  }

  void check() {
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t head = 0; head < heads; ++head) {
        std::vector<double> weights;
        double total = 0;
        for (int64_t j = 0; j <= context - rows + row; ++j) {
          double score = 0;
          for (int64_t e = 0; e < size; ++e) {
            score += double{q[(row * heads + head) * size + e]} * cached(k, j, head)[e];
          }
          weights.push_back(std::exp(score * 0.3));
          total += weights.back();
        }
        for (int64_t e = 0; e < size; ++e) {
          double wanted = 0;
          for (size_t j = 0; j < weights.size(); ++j) wanted += weights[j] * cached(v, j, head)[e];
          CHECK(near(out[(row * heads + head) * size + e], wanted / total));
        }
      }
    }
  }
};

void attention() {
  for (int64_t size : {1, 10, 16, 64, 140, 300}) {
    Sequence s(size);
    s.run();
    s.check();
  }
  Sequence s(8);
  const auto refused = [&] { return refusal_of([&] { s.run(); }); };
  s.table[3] = 5;
  CHECK(refused() == "paged_attention: block 5 of sequence 0 is outside the cache of 5 blocks");
  s.contexts[0] = 21;
  CHECK(refused().find("needs 5 blocks for a context of 21") != std::string::npos);
  s.contexts[0] = 2;
  CHECK(refused().find("has 3 rows but a context of 2") != std::string::npos);
  s.starts[1] = 2;
  CHECK(refused().find("must run from 0 to 3") != std::string::npos);
}

}  // namespace

int main() {
  ThreadPool::instance().set_num_threads(3);
  norm_and_swiglu();
  rope_turns_pairs();
  cache_and_embedding<float>(DType::fp32);
  cache_and_embedding<bf16>(DType::bf16);
  cache_and_embedding<fp16>(DType::fp16);
  attention();
}
