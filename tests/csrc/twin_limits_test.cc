// The twin refuses what the device would: alignment, bounds, capacity, queues, memory not written.
#include "twin_check.h"

using namespace AscendC;

namespace {

LocalTensor<float> vector_of(uint32_t elements, uint32_t address = 0) {
  return LocalTensor<float>(TPosition::VECCALC, address, elements);
}

void capacity() {
  expect_clean([] {
    TPipe pipe;
    TBuf<> buffer;
    pipe.InitBuffer(buffer, 192 * 1024 - 256 - 8192);
  });
  expect_fault("don't fit UB", [] {
    TPipe pipe;
    TBuf<> buffer;
    pipe.InitBuffer(buffer, 192 * 1024 - 256 - 8192 + 1);
  });
  expect_fault(
      "don't fit L0A",
      [] {
        TPipe pipe;
        TQue<QuePosition::A2, 2> queue;
        pipe.InitBuffer(queue, 3, 32 * 1024);
      },
      KERNEL_TYPE_AIC_ONLY);
  expect_fault(
      "has no UB",
      [] {
        TPipe pipe;
        TBuf<> buffer;
        pipe.InitBuffer(buffer, 32);
      },
      KERNEL_TYPE_AIC_ONLY);
  expect_fault("second TPipe", [] { TPipe first, second; });
  expect_fault("ends outside", [] { vector_of(8, 192 * 1024); });
}

void queues() {
  const auto with_queue = [](int buffers,
                             const std::function<void(TQue<QuePosition::VECIN, 1>&)>& f) {
    return [=] {
      TPipe pipe;
      TQue<QuePosition::VECIN, 1> queue;
      pipe.InitBuffer(queue, buffers, 64);
      f(queue);
    };
  };
  expect_fault("all 2 buffers", with_queue(2, [](auto& queue) {
                 for (int i = 0; i < 3; ++i) queue.template AllocTensor<float>();
               }));
  expect_fault("never freed",
               with_queue(1, [](auto& queue) { queue.template AllocTensor<float>(); }));
  expect_fault("its depth is 1", with_queue(2, [](auto& queue) {
                 auto first = queue.template AllocTensor<float>(),
                      second = queue.template AllocTensor<float>();
                 queue.EnQue(first);
                 queue.EnQue(second);
               }));
  expect_fault("queue is empty", with_queue(1, [](auto& queue) { queue.template DeQue<float>(); }));
  expect_fault("not this queue's", with_queue(1, [](auto& queue) {
                 LocalTensor<float> stranger = vector_of(8, 1024);
                 queue.FreeTensor(stranger);
               }));
  // What the last round left in a buffer is not there in the next.
  expect_fault("which nobody has written", with_queue(1, [](auto& queue) {
                 for (int round = 0; round < 2; ++round) {
                   auto tensor = queue.template AllocTensor<float>();
                   if (round == 0) Duplicate(tensor, 1.0f, 8);
                   PipeBarrier<PIPE_ALL>();
                   queue.EnQue(tensor);
                   tensor = queue.template DeQue<float>();
                   Adds(tensor, tensor, 1.0f, 8);
                   queue.FreeTensor(tensor);
                 }
               }));
}

void operands() {
  expect_fault("no multiple of 32", [] { Duplicate(vector_of(64)[1], 1.0f, 8); });
  expect_fault("which has 32 from there", [] { Duplicate(vector_of(64)[56], 1.0f, 16); });
  expect_fault("which nobody has written", [] { Adds(vector_of(8), vector_of(8), 1.0f, 8); });
  expect_fault("overlap in part", [] {
    Duplicate(vector_of(64), 1.0f, 64);
    PipeBarrier<PIPE_V>();
    Adds(vector_of(32, 32), vector_of(32), 1.0f, 32);
  });
  expect_fault("no such conversion", [] {
    Cast(vector_of(16, 64), LocalTensor<half>(TPosition::VECCALC, 0, 16), RoundMode::CAST_RINT, 16);
  });
  expect_fault("nobody allocated", [] { Duplicate(LocalTensor<float>(), 1.0f, 8); });
}

// One copy of a 100-element float array.
std::string copy_fault(const std::function<void(LocalTensor<float>, GlobalTensor<float>)>& body) {
  twin::World world(1);
  twin::Buffer<float> x(world, 0, "x", std::vector<float>(100, 1.0f));
  twin::enqueue(world.stream(0), 1, [&] {
    KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_AIV_ONLY);
    GlobalTensor<float> global;
    global.SetGlobalBuffer(reinterpret_cast<__gm__ float*>(x.address()));
    body(vector_of(256), global);
  });
  try {
    world.run();
  } catch (const twin::Fault& fault) {
    return fault.what();
  }
  return {};
}

void copies() {
  const auto refuses = [](const char* text, auto body) {
    const std::string found = copy_fault(body);
    if (found.find(text) != std::string::npos) return;
    std::fprintf(stderr, "wanted \"%s\", found \"%s\"\n", text, found.c_str());
    std::exit(1);
  };
  refuses("must be a multiple of 32", [](auto l, auto g) { DataCopy(l, g, 7); });
  refuses("no multiple of 32", [](auto l, auto g) { DataCopy(l[1], g, 8); });
  refuses("bytes 384 to 416 of GM x of rank 0, which has 400",
          [](auto l, auto g) { DataCopy(l, g[96], 8); });
  refuses("blockCount 4096", [](auto l, auto g) {
    DataCopyPad(l, g, DataCopyExtParams{4096, 4, 0, 0, 0}, DataCopyPadExtParams<float>{});
  });
  refuses("blockLen 6 bytes", [](auto l, auto g) {
    DataCopyPad(l, g, DataCopyExtParams{1, 6, 0, 0, 0}, DataCopyPadExtParams<float>{});
  });
  refuses("which nobody has written", [](auto l, auto g) {  // the tail of a block
    DataCopyPad(l, g, DataCopyExtParams{1, 20, 0, 0, 0}, DataCopyPadExtParams<float>{});
    PipeBarrier<PIPE_ALL>();
    Adds(l, l, 1.0f, 8);
  });
  refuses("", [](auto l, auto g) {  // padded, it is defined
    DataCopyPad(l, g, DataCopyExtParams{1, 20, 0, 0, 0},
                DataCopyPadExtParams<float>{true, 0, 3, 9.0f});
    PipeBarrier<PIPE_ALL>();
    CHECK(l.GetValue(4) == 1.0f && l.GetValue(5) == 9.0f && l.GetValue(7) == 9.0f);
  });
}

// Device memory belongs to a rank, unless it is shared; the host reads only what was written.
void device_memory() {
  twin::World world(2);
  twin::Buffer<float> x(world, 1, "x", std::vector<float>(8, 1.0f));
  twin::enqueue(world.stream(0), 1, [&] {
    KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_AIV_ONLY);
    GlobalTensor<float> global;
    global.SetGlobalBuffer(reinterpret_cast<__gm__ float*>(x.address()), 8);
    DataCopy(vector_of(8), global, 8);
  });
  std::string found;
  try {
    world.run();
  } catch (const twin::Fault& fault) {
    found = fault.what();
  }
  CHECK(found.find("x of rank 1, which is not shared") != std::string::npos);
  found.clear();
  try {
    twin::Buffer<float>(world, 0, "y", 8).read();
  } catch (const twin::Fault& fault) {
    found = fault.what();
  }
  CHECK(found == "element 0 of GM y of rank 0 was never written");
}

void launches() {
  CHECK(fault_of(KERNEL_TYPE_AIV_ONLY, [] {}, 3, 2).empty());
  twin::World world(1);
  twin::enqueue(world.stream(0), 1, [] { TPipe pipe; });
  std::string found;
  try {
    world.run();
  } catch (const twin::Fault& fault) {
    found = fault.what();
  }
  CHECK(!found.empty());
  found.clear();
  try {
    twin::enqueue(world.stream(0), 26, [] {});
  } catch (const twin::Fault& fault) {
    found = fault.what();
  }
  CHECK(found == "a launch of 26 blocks; 1 to 25");
}

}  // namespace

int main() {
  capacity();
  queues();
  operands();
  copies();
  device_memory();
  launches();
}
