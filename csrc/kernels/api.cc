#include "api.h"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <vector>

#include "thread_pool.h"

namespace kernels {
namespace {

// A block below this many multiplications (or elements) is not worth waking a thread for.
constexpr int64_t kWorthSharing = 1 << 15;
// Blocks for each thread, so that one that started late does not hold up the rest.
constexpr int64_t kBlocksPerThread = 4;
// A multiple of every instruction set's tile width.
constexpr int64_t kColumnStep = 24;
// From so many rows on, x no longer stays in the first-level cache.
constexpr int64_t kManyRows = 16;
// Columns of W that pass by all rows of x before the next ones: they stay in the outer cache.
constexpr int64_t kMaxColumns = 96;
constexpr int64_t kPageBytes = 4096;
// Of x that is copied at once.
constexpr int64_t kMaxCopyBytes = 16 << 20;
// Rows of one sequence whose attention is computed together; up to so many count as few.
constexpr int64_t kQueryRows = 8;
constexpr int64_t kFewQueries = 2;

template <class... Parts>
[[noreturn]] void refuse(const Parts&... parts) {
  std::string text;
  const auto append = [&text](const auto& part) {
    if constexpr (std::is_arithmetic_v<std::decay_t<decltype(part)>>) {
      text += std::to_string(part);
    } else {
      text += part;
    }
  };
  (append(parts), ...);
  throw std::invalid_argument(text);
}

int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Size of a block of `count` items, when each costs `cost`.
int64_t block_of(int64_t count, int64_t cost, int64_t step) {
  const int64_t threads = ThreadPool::instance().num_threads();
  const int64_t fair = divide_up(count, threads == 1 ? 1 : threads * kBlocksPerThread);
  const int64_t least = divide_up(kWorthSharing, std::max<int64_t>(cost, 1));
  return std::max<int64_t>(divide_up(std::max(fair, least), step) * step, 1);
}

template <class F>
void share_rows(int64_t rows, int64_t cost, const F& run) {
  const int64_t block = block_of(rows, cost, 1);
  ThreadPool::instance().run(divide_up(rows, block),
                             [&](int64_t i) { run(i * block, std::min((i + 1) * block, rows)); });
}

}  // namespace

namespace {

// Copy x with rows that do not start at the same place of a page. When they do, and those of W too,
// the rows of a tile push each other out of the first-level cache (measured: 80 to 90 instead of
// 108 GFLOP/s at K = 1024 and 2048).
Linear with_spread_rows(const Linear& a) {
  Linear spread = a;
  spread.x_stride = a.k + kPageBytes / 4 / 64;
  float* to = scratch(Use::call, static_cast<size_t>(a.m * spread.x_stride));
  spread.x = to;
  share_rows(a.m, a.k, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      std::copy_n(a.x + row * a.x_stride, a.k, to + row * spread.x_stride);
    }
  });
  return spread;
}

void check_groups(const Linear& a) {
  for (int leaf = 1; leaf < a.leaves.count && a.group != 0; ++leaf) {
    if (a.leaves.border[leaf] % a.group != 0) {
      refuse("linear: leaves cut a group of ", a.group, " quantized weights at ",
             a.leaves.border[leaf], "; cut at multiples of it");
    }
  }
}

void share_columns(const Linear& a) {
  const auto kernel = active().linear;
  const int64_t fair = block_of(a.n, a.m * a.k, kColumnStep);
  const int64_t block = a.m < kManyRows ? fair : std::min(fair, kMaxColumns);
  ThreadPool::instance().run(divide_up(a.n, block), [&](int64_t i) {
    kernel(a, 0, a.m, i * block, std::min((i + 1) * block, a.n));
  });
}

}  // namespace

void linear(const Linear& a) {
  check_groups(a);
  const bool rows_meet =
      a.x_stride * 4 % kPageBytes == 0 && a.w_stride * dtype_bytes(a.w_type) % kPageBytes == 0;
  if (a.m < kManyRows || !rows_meet) return share_columns(a);
  const int64_t rows = std::max(kMaxCopyBytes / 4 / std::max<int64_t>(a.k, 1), kManyRows);
  for (int64_t m = 0; m < a.m; m += rows) {
    Linear part = a;
    part.m = std::min(rows, a.m - m);
    part.x += m * a.x_stride;
    part.y += m * a.y_stride;
    share_columns(with_spread_rows(part));
  }
}

void grouped_linear(const Linear& a, const Groups& groups) {
  check_groups(a);
  const int64_t rows = groups.starts[groups.count];
  Linear whole = a;
  if (groups.gather != nullptr) {
    whole.x_stride = a.k + kPageBytes / 4 / 64;
    float* to = scratch(Use::call, static_cast<size_t>(rows * whole.x_stride));
    whole.x = to;
    for (int64_t i = 0; i < rows; ++i) {
      if (groups.gather[i] < 0 || groups.gather[i] >= a.m) {
        refuse("grouped_matmul: row ", groups.gather[i], " is outside the ", a.m, " rows of x");
      }
    }
    share_rows(rows, a.k, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        std::copy_n(a.x + groups.gather[i] * a.x_stride, a.k, to + i * whole.x_stride);
      }
    });
  }
  std::vector<Linear> calls;
  for (int64_t g = 0; g < groups.count; ++g) {
    Linear call = whole;
    const int64_t begin = groups.starts[g];
    call.m = groups.starts[g + 1] - begin;
    if (call.m == 0) continue;
    call.x = whole.x + begin * whole.x_stride;
    call.y = a.y + begin * a.y_stride;
    call.w = reinterpret_cast<const void*>(groups.weights[g]);
    if (groups.scales != nullptr) call.scales = reinterpret_cast<const float*>(groups.scales[g]);
    calls.push_back(call);
  }
  // Blocks of columns, group after group: groups are ragged, so they are claimed, not dealt.
  const int64_t block =
      std::min(block_of(a.n, divide_up(rows, groups.count) * a.k, kColumnStep), kMaxColumns);
  const int64_t blocks = divide_up(a.n, block);
  const auto kernel = active().linear;
  ThreadPool::instance().run(static_cast<int64_t>(calls.size()) * blocks, [&](int64_t i) {
    const Linear& call = calls[static_cast<size_t>(i / blocks)];
    const int64_t n = i % blocks * block;
    kernel(call, 0, call.m, n, std::min(n + block, a.n));
  });
}

void combine(const Combine& a) {
  share_rows(a.rows, a.width * 4,
             [&](int64_t begin, int64_t end) { active().combine(a, begin, end); });
}

void linear_w8a8(const Linear& a) {
  LeafOffsets offsets = {};
  for (int leaf = 0; leaf < a.leaves.count; ++leaf) {
    const int64_t features = a.leaves.border[leaf + 1] - a.leaves.border[leaf];
    offsets.at[leaf + 1] = offsets.at[leaf] + divide_up(features, kInt8Padding) * kInt8Padding;
  }
  // A line more than the row: rows that start at the same place of a page displace each other.
  const int64_t stride = offsets.at[a.leaves.count] + kInt8Padding, entries = a.m * a.leaves.count;
  float* scales = scratch(Use::call, static_cast<size_t>(2 * entries + 16 + a.m * stride / 4));
  int32_t* sums = reinterpret_cast<int32_t*>(scales + entries);
  int8_t* x = reinterpret_cast<int8_t*>(scales + divide_up(2 * entries, 16) * 16);
  const RowQuantize quantize = {a.x, a.x_stride, a.leaves, offsets, x, stride, scales, sums};
  share_rows(a.m, a.k * 4,
             [&](int64_t begin, int64_t end) { active().quantize_rows(quantize, begin, end); });
  const Int8Linear call = {x,
                           stride,
                           scales,
                           sums,
                           offsets,
                           static_cast<const int8_t*>(a.w),
                           a.w_stride,
                           a.scales,
                           a.scale_stride,
                           static_cast<const float*>(a.bias),
                           a.y,
                           a.y_stride,
                           a.m,
                           a.leaves,
                           has_vnni()};
  const int64_t fair = block_of(a.n, a.m * a.k / 4, kColumnStep);
  const int64_t block = a.m < kManyRows ? fair : std::min(fair, kMaxColumns);
  ThreadPool::instance().run(divide_up(a.n, block), [&](int64_t i) {
    active().int8_linear(call, i * block, std::min((i + 1) * block, a.n));
  });
}

void rms_norm(const RmsNorm& a) {
  share_rows(a.rows, a.width,
             [&](int64_t begin, int64_t end) { active().rms_norm(a, begin, end); });
}

void rope(const Rope& a, int64_t max_position) {
  for (int64_t row = 0; row < a.rows; ++row) {
    if (a.positions[row] < 0 || a.positions[row] >= max_position) {
      refuse("rope: position ", a.positions[row], " of row ", row, " is outside the table of ",
             max_position, " positions");
    }
  }
  share_rows(a.rows, a.num_heads * a.size,
             [&](int64_t begin, int64_t end) { active().rope(a, begin, end); });
}

void swiglu(const Swiglu& a) {
  share_rows(a.rows, a.width * 16,
             [&](int64_t begin, int64_t end) { active().swiglu(a, begin, end); });
}

void embedding(const Embedding& a) {
  share_rows(a.rows, a.width,
             [&](int64_t begin, int64_t end) { active().embedding(a, begin, end); });
}

void cache_write(const CacheWrite& a, int64_t num_slots) {
  for (int64_t row = 0; row < a.rows; ++row) {
    if (a.slots[row] < 0 || a.slots[row] >= num_slots) {
      refuse("reshape_and_cache: slot ", a.slots[row], " of row ", row, " is outside the cache of ",
             num_slots, " slots");
    }
  }
  share_rows(a.rows, a.num_heads * a.size,
             [&](int64_t begin, int64_t end) { active().cache_write(a, begin, end); });
}

namespace {

void check_attention(const Attention& a, int64_t rows, int64_t table_width, int64_t num_blocks) {
  if (a.query_starts[0] != 0 || a.query_starts[a.sequences] != rows) {
    refuse("paged_attention: query_starts must run from 0 to ", rows, ", the rows of q; they run ",
           a.query_starts[0], " to ", a.query_starts[a.sequences]);
  }
  for (int64_t s = 0; s < a.sequences; ++s) {
    const int64_t queries = a.query_starts[s + 1] - a.query_starts[s];
    const int64_t context = a.context_lens[s], blocks = divide_up(context, a.block_size);
    if (queries < 0 || context < queries) {
      refuse("paged_attention: sequence ", s, " has ", queries, " rows but a context of ", context);
    }
    if (blocks > table_width) {
      refuse("paged_attention: sequence ", s, " needs ", blocks, " blocks for a context of ",
             context, ", its block table has ", table_width);
    }
    for (int64_t i = 0; queries > 0 && i < blocks; ++i) {
      const int64_t block = a.block_tables[s * a.table_stride + i];
      if (block < 0 || block >= num_blocks) {
        refuse("paged_attention: block ", block, " of sequence ", s, " is outside the cache of ",
               num_blocks, " blocks");
      }
    }
  }
}

}  // namespace

void paged_attention(const Attention& a, int64_t rows, int64_t table_width, int64_t num_blocks) {
  check_attention(a, rows, table_width, num_blocks);
  // Many rows (prefill): each KV head alone, its scores stay in the cache. Few (decode): as many KV
  // heads together as leaves work for every thread, since they lie side by side in memory.
  const int64_t threads = ThreadPool::instance().num_threads();
  const int64_t shares = divide_up(threads == 1 ? 1 : threads * 2, a.sequences + 1);
  std::vector<AttentionBlock> blocks;
  for (int64_t s = 0; s < a.sequences; ++s) {
    const int64_t begin = a.query_starts[s], end = a.query_starts[s + 1];
    const int64_t heads = end - begin > kFewQueries ? 1 : divide_up(a.kv_heads, shares);
    for (int64_t row = begin; row < end; row += kQueryRows) {
      for (int64_t head = 0; head < a.kv_heads; head += heads) {
        blocks.push_back(
            {s, row, std::min(row + kQueryRows, end), head, std::min(head + heads, a.kv_heads)});
      }
    }
  }
  ThreadPool::instance().run(static_cast<int64_t>(blocks.size()), [&](int64_t i) {
    active().attention(a, blocks[static_cast<size_t>(i)]);
  });
}

}  // namespace kernels
