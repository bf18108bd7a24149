// Memory in the segment: collectives in place, beside ordinary tensors, given back and used again.
#include <cstring>

#include "error.h"
#include "lcal_check.h"

namespace {

using Bytes = std::vector<uint64_t>;
constexpr lcal::DType kFloat = lcal::DType::f32;

float number(int rank, size_t i) { return static_cast<float>((rank + 1) * (i % 97)); }
float sum_of(int size, size_t i) { return static_cast<float>(size * (size + 1) / 2 * (i % 97)); }

struct Floats {
  lcal::Comm& comm;
  uint64_t place;
  float* data;
  Floats(lcal::Comm& owner, size_t count)
      : comm(owner),
        place(owner.empty(count * sizeof(float))),
        data(reinterpret_cast<float*>(owner.own_block(place))) {}
  ~Floats() { comm.release(place); }
};

void fill(float* data, int rank, size_t count) {
  for (size_t i = 0; i < count; ++i) data[i] = number(rank, i);
}

void reductions_in_place(lcal::Comm& comm, size_t count) {
  const int n = comm.size();
  const Floats x(comm, count + 3);
  // All in the segment; each rank at another offset; one rank outside.
  for (int shift : {0, comm.rank() % 3}) {
    fill(x.data + shift, comm.rank(), count);
    comm.all_reduce(x.data + shift, count, kFloat, lcal::Op::sum);
    for (size_t i = 0; i < count; ++i) CHECK(x.data[shift + i] == sum_of(n, i));
  }
  std::vector<float> outside(count);
  float* mixed = comm.rank() == n - 1 ? outside.data() : x.data;
  fill(mixed, comm.rank(), count);
  comm.all_reduce(mixed, count, kFloat, lcal::Op::sum);
  for (size_t i = 0; i < count; ++i) CHECK(mixed[i] == sum_of(n, i));
  fill(x.data, comm.rank(), count);
  comm.reduce(x.data, count, kFloat, lcal::Op::sum, 0);
  for (size_t i = 0; i < count && comm.rank() == 0; ++i) CHECK(x.data[i] == sum_of(n, i));
  Bytes counts(n);
  for (int r = 0; r < n; ++r) counts[r] = (r + 1) * count / n - r * count / n;
  std::vector<float> out(counts[comm.rank()] + 1);
  fill(x.data, comm.rank(), count);
  comm.reduce_scatter(x.data, out.data(), counts, kFloat, lcal::Op::sum);
  std::memset(x.data, 0xff, count * sizeof(float));  // peers must have read it
  for (size_t i = 0; i < counts[comm.rank()]; ++i) {
    CHECK(out[i] == sum_of(n, comm.rank() * count / n + i));
  }
}

void moves_in_place(lcal::Comm& comm, size_t count) {
  const int n = comm.size();
  const size_t bytes = count * sizeof(float);
  const Floats x(comm, n * count);
  std::vector<float> out(n * count + 1);
  fill(x.data, comm.rank(), count);
  comm.all_gather(x.data, out.data(), Bytes(n, bytes));
  std::memset(x.data, 0xff, bytes);
  for (int r = 0; r < n; ++r) {
    for (size_t i = 0; i < count; ++i) CHECK(out[r * count + i] == number(r, i));
  }
  fill(x.data, comm.rank(), count);
  comm.broadcast(x.data, bytes, n - 1);
  for (size_t i = 0; i < count; ++i) CHECK(x.data[i] == number(n - 1, i));
  for (int r = 0; r < n; ++r) fill(x.data + r * count, comm.rank() + r, count);
  comm.all_to_all(x.data, out.data(), Bytes(n, bytes), Bytes(n, bytes));
  std::memset(x.data, 0xff, n * bytes);
  for (int r = 0; r < n; ++r) {
    for (size_t i = 0; i < count; ++i) CHECK(out[r * count + i] == number(r + comm.rank(), i));
  }
  for (int r = 0; r < n; ++r) fill(x.data + r * count, r, count);
  comm.scatter(x.data, out.data(), bytes, 0);
  std::memset(x.data, 0xff, n * bytes);
  for (size_t i = 0; i < count; ++i) CHECK(out[i] == number(comm.rank(), i));
}

// A block is used again once all ranks have let go of it, and not before.
void blocks_come_back(lcal::Comm& comm) {
  const uint64_t first = comm.empty(1000);
  const uint64_t second = comm.empty(1000);
  CHECK(first != 0 && second != first);
  if (comm.rank() == 0) comm.release(first);
  const uint64_t third = comm.empty(1000);
  CHECK((third == first) == (comm.size() == 1) && third != second);
  if (comm.rank() != 0) comm.release(first);
  if (comm.size() > 1) CHECK(comm.empty(1000) == first);
  comm.release(second);
  CHECK(comm.empty(100000) != second);  // another size: the memory goes back
}

void no_memory_is_said_by_all(lcal::Comm& comm) {
  bool refused = false;
  try {
    comm.empty(size_t{1} << 45);
  } catch (const lcal::SetupError& error) {
    refused = std::strstr(error.what(), "KiB of shared memory") != nullptr;
  }
  CHECK(refused);
  comm.barrier();  // still usable
  const Floats x(comm, 10);
  x.data[9] = 1;
  comm.all_reduce(x.data + 9, 1, kFloat, lcal::Op::sum);
  CHECK(x.data[9] == static_cast<float>(comm.size()));
}

void other_sizes_are_named(lcal::Comm& comm) {
  std::string said;
  try {
    comm.empty(comm.rank() == 0 ? 1 : 5000);
  } catch (const lcal::PeerFailure& error) {
    said = error.what();
  }
  CHECK(comm.size() == 1 || said.find("empty") != std::string::npos);
}

}  // namespace

int main() {
  for (int size : {1, 2, 3, 4, 8}) {
    on_ranks(size, [](lcal::Comm& comm) {
      for (size_t count : {size_t{1}, size_t{63}, size_t{9000}, size_t{50001}}) {
        reductions_in_place(comm, count);
        moves_in_place(comm, count);
      }
      blocks_come_back(comm);
      no_memory_is_said_by_all(comm);
      other_sizes_are_named(comm);
    });
  }
  return 0;
}
