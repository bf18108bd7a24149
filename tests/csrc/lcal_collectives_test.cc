// Every collective with ranks as threads that share one mapping: run under ASan, UBSan and TSan.
#include <cstring>
#include <numeric>

#include "lcal_check.h"

namespace {

using Bytes = std::vector<uint64_t>;

std::vector<float> numbers(int rank, size_t count) {
  std::vector<float> values(count);
  for (size_t i = 0; i < count; ++i) values[i] = static_cast<float>((rank + 1) * (i % 97));
  return values;
}

float sum_of(int size, size_t i) { return static_cast<float>(size * (size + 1) / 2 * (i % 97)); }

void reductions(lcal::Comm& comm, size_t count) {
  const int n = comm.size();
  std::vector<float> x = numbers(comm.rank(), count);
  comm.all_reduce(x.data(), count, lcal::DType::f32, lcal::Op::sum);
  for (size_t i = 0; i < count; ++i) CHECK(x[i] == sum_of(n, i));
  x = numbers(comm.rank(), count);
  comm.reduce(x.data(), count, lcal::DType::f32, lcal::Op::max, n - 1);
  const int wanted = comm.rank() == n - 1 ? n : comm.rank() + 1;
  for (size_t i = 0; i < count; ++i) CHECK(x[i] == static_cast<float>(wanted * (i % 97)));
  Bytes counts(n);
  for (int r = 0; r < n; ++r) counts[r] = (r + 1) * count / n - r * count / n;
  std::vector<float> out(counts[comm.rank()] + 1, -1.0f);
  x = numbers(comm.rank(), count);
  comm.reduce_scatter(x.data(), out.data(), counts, lcal::DType::f32, lcal::Op::sum);
  const size_t first = comm.rank() * count / n;
  for (size_t i = 0; i + 1 < out.size(); ++i) CHECK(out[i] == sum_of(n, first + i));
  CHECK(out.back() == -1.0f);
}

void moves(lcal::Comm& comm, size_t count) {
  const int n = comm.size();
  const size_t bytes = count * sizeof(float);
  const std::vector<float> mine = numbers(comm.rank(), count);
  std::vector<float> joined(n * count + 1, -1.0f);
  comm.all_gather(mine.data(), joined.data(), Bytes(n, bytes));
  for (int r = 0; r < n; ++r) {
    CHECK(bytes == 0 || std::memcmp(&joined[r * count], numbers(r, count).data(), bytes) == 0);
  }
  CHECK(joined.back() == -1.0f);
  std::vector<float> x = mine;
  comm.broadcast(x.data(), bytes, n / 2);
  CHECK(x == numbers(n / 2, count));
  std::vector<float> part(count);
  comm.scatter(joined.data(), part.data(), bytes, 0);
  CHECK(part == mine);
  std::vector<float> swapped(n * count);
  comm.all_to_all(joined.data(), swapped.data(), Bytes(n, bytes), Bytes(n, bytes));
  for (int r = 0; r < n; ++r) {
    CHECK(bytes == 0 || std::memcmp(&swapped[r * count], mine.data(), bytes) == 0);
  }
}

void messages(lcal::Comm& comm, size_t count) {
  const int n = comm.size();
  if (n == 1) return;
  const int after = (comm.rank() + 1) % n;
  const int before = (comm.rank() + n - 1) % n;
  const std::vector<float> mine = numbers(comm.rank(), count);
  std::vector<float> theirs(count);
  if (comm.rank() % 2 == 0) comm.send(mine.data(), count * sizeof(float), after);
  comm.recv(theirs.data(), count * sizeof(float), before);
  if (comm.rank() % 2 == 1) comm.send(mine.data(), count * sizeof(float), after);
  CHECK(theirs == numbers(before, count));
}

void objects(lcal::Comm& comm, size_t size) {
  const std::string value(size, static_cast<char>('a' + comm.rank()));
  const std::vector<std::string> all = comm.all_gather_object(value);
  for (int r = 0; r < comm.size(); ++r) {
    CHECK(all[r] == std::string(size, static_cast<char>('a' + r)));
  }
  CHECK(comm.broadcast_object(value, comm.size() - 1, false) == all.back());
}

}  // namespace

int main() {
  for (int size : {1, 2, 3, 4, 8}) {
    on_ranks(size, [](lcal::Comm& comm) {
      for (size_t count : {size_t{0}, size_t{1}, size_t{63}, size_t{9000}, size_t{50001}}) {
        reductions(comm, count);
        moves(comm, count);
        messages(comm, count);
        objects(comm, count);
        comm.barrier();
      }
    });
  }
  return 0;
}
