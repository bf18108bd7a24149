// The twin reports what no flag orders, flags that don't pair, and deadlocks.
#include "twin_check.h"

using namespace AscendC;

namespace {

// A copy in, an addition, a copy out; each synchronisation can be left out.
struct Chain {
  bool into_vector = true, in_vector = true, out_of_vector = true;
  uint32_t shrink = 0;

  void operator()(GM_ADDR x, GM_ADDR y) const {
    TPipe pipe;
    TBuf<TPosition::VECCALC> buffer;
    pipe.InitBuffer(buffer, 256);
    GlobalTensor<float> from, to;
    from.SetGlobalBuffer(reinterpret_cast<__gm__ float*>(x), 64);
    to.SetGlobalBuffer(reinterpret_cast<__gm__ float*>(y), 64);
    LocalTensor<float> local = buffer.Get<float>(64 - shrink);
    const auto loaded = pipe.AllocEventID<HardEvent::MTE2_V>();
    const auto added = pipe.AllocEventID<HardEvent::V_MTE3>();
    DataCopy(local, from, 64);
    SetFlag<HardEvent::MTE2_V>(loaded);
    WaitFlag<HardEvent::MTE2_V>(loaded);
    if (!into_vector) WaitFlag<HardEvent::MTE2_V>(loaded);
    Adds(local, local, 1.0f, 64);
    if (in_vector) PipeBarrier<PIPE_V>();
    Muls(local, local, 2.0f, 64);
    SetFlag<HardEvent::V_MTE3>(added);
    if (out_of_vector) WaitFlag<HardEvent::V_MTE3>(added);
    DataCopy(to, local, 64);
  }
};

std::string run(const Chain& chain) {
  twin::World world(1);
  twin::Buffer<float> x(world, 0, "x", std::vector<float>(64, 3.0f));
  twin::Buffer<float> y(world, 0, "y", 64);
  twin::enqueue(world.stream(0), 1, [&] {
    KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_AIV_ONLY);
    chain(x.address(), y.address());
  });
  try {
    world.run();
  } catch (const twin::Fault& fault) {
    return fault.what();
  }
  CHECK(y.read() == std::vector<float>(64, 8.0f));
  return {};
}

bool has(const std::string& text, const char* part) { return text.find(part) != std::string::npos; }

void flags_order_pipes() {
  CHECK(run({}).empty());
  const std::string barrier = run({true, false, true});
  CHECK(has(barrier, "rank 0 block 0 AIV0") && has(barrier, "Muls on pipe V") &&
        has(barrier, "twin_sync_test.cc:") && has(barrier, "no flag orders the two"));
  CHECK(has(run({true, true, false}), "DataCopy on pipe MTE3 reads UB buffer"));
  CHECK(has(run({false, true, true}), "nobody has set it"));
  CHECK(has(run({true, true, true, 8}), "DataCopy writes bytes 0 to 256"));
}

void flags_pair() {
  expect_fault("set twice", [] {
    SetFlag<HardEvent::MTE2_V>(0);
    SetFlag<HardEvent::MTE2_V>(0);
  });
  expect_fault("that no WaitFlag takes", [] { SetFlag<HardEvent::MTE2_V>(0); });
  expect_fault("ids are 0 to 7", [] { SetFlag<HardEvent::MTE2_V>(8); });
  expect_fault("no such pair of pipes", [] { SetFlag<HardEvent::M_FIX>(0); });
  expect_fault("TPipe has not allocated", [] {
    TPipe pipe;
    SetFlag<HardEvent::MTE2_V>(0);
  });
  expect_fault("all 8 used", [] {
    TPipe pipe;
    for (int i = 0; i < 9; ++i) pipe.AllocEventID<HardEvent::MTE2_V>();
  });
}

// A write of the scalar unit needs a flag before the vector unit reads it; what it has waited for
// holds for all it issues.
void scalar_unit() {
  const auto body = [](bool flag) {
    TPipe pipe;
    TBuf<> buffer;
    pipe.InitBuffer(buffer, 32);
    LocalTensor<float> local = buffer.Get<float>();
    const auto stored = pipe.AllocEventID<HardEvent::S_V>();
    const auto added = pipe.AllocEventID<HardEvent::V_S>();
    for (int i = 0; i < 8; ++i) local.SetValue(i, 1.0f);
    SetFlag<HardEvent::S_V>(stored);
    WaitFlag<HardEvent::S_V>(stored);
    Adds(local, local, 1.0f, 8);
    SetFlag<HardEvent::V_S>(added);
    WaitFlag<HardEvent::V_S>(added);
    if (!flag) Adds(local, local, 1.0f, 8);
    CHECK(local.GetValue(7) == 2.0f || !flag);
  };
  expect_clean([&] { body(true); });
  expect_fault("GetValue on pipe S reads UB buffer", [&] { body(false); });
}

void cores_wait_for_each_other() {
  // Mode 2 both ways, mode 1, mode 0.
  expect_clean(
      [] {
        if ASCEND_IS_AIC {
          CrossCoreSetFlag<2, PIPE_FIX>(0);
          CrossCoreWaitFlag(1);
        } else {
          CrossCoreWaitFlag(0);
          CrossCoreSetFlag<1, PIPE_MTE3>(2);
          CrossCoreWaitFlag(2);
          CrossCoreSetFlag<0, PIPE_MTE3>(3);
          CrossCoreWaitFlag(3);
          SyncAll<true>();
          CrossCoreSetFlag<2, PIPE_MTE3>(1);
        }
        SyncAll<false>();
      },
      KERNEL_TYPE_MIX_AIC_1_2, 3);
  // The cube core waits for both vector cores.
  expect_fault(
      "rank 0 core 0 waits for CrossCoreWaitFlag(1)",
      [] {
        if ASCEND_IS_AIC {
          CrossCoreWaitFlag(1);
        } else if (GetSubBlockIdx() == 0) {
          CrossCoreSetFlag<2, PIPE_MTE3>(1);
        }
      },
      KERNEL_TYPE_MIX_AIC_1_2);
  expect_fault(
      "that no CrossCoreWaitFlag takes", [] { CrossCoreSetFlag<0, PIPE_V>(0); },
      KERNEL_TYPE_MIX_AIV_1_0);
  expect_fault(
      "passes 15",
      [] {
        for (int i = 0; i < 16; ++i) CrossCoreSetFlag<0, PIPE_V>(0);
      },
      KERNEL_TYPE_MIX_AIV_1_0);
  expect_fault("kernel type", [] { SyncAll(); }, KERNEL_TYPE_AIV_ONLY, 2);
  expect_fault("must be <true>", [] { SyncAll<false>(); }, KERNEL_TYPE_MIX_AIV_1_0, 2);
  expect_fault("must be <false>", [] { SyncAll(); }, KERNEL_TYPE_MIX_AIC_1_2, 2);
  expect_fault("0 to 10 and 15", [] { CrossCoreSetFlag<0, PIPE_V>(12); }, KERNEL_TYPE_MIX_AIV_1_0);
}

// Two cores that touch one place of device memory: an error unless SyncAll stands between them.
void cores_race() {
  for (const bool synchronised : {true, false}) {
    twin::World world(1);
    twin::Buffer<float> x(world, 0, "x", std::vector<float>(16, 9.0f));
    twin::enqueue(world.stream(0), 2, [&] {
      KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_MIX_AIV_1_0);
      TPipe pipe;
      TBuf<> buffer;
      pipe.InitBuffer(buffer, 32);
      LocalTensor<float> local = buffer.Get<float>();
      GlobalTensor<float> global;
      global.SetGlobalBuffer(reinterpret_cast<__gm__ float*>(x.address()), 16);
      Duplicate(local, static_cast<float>(GetBlockIdx()), 8);
      PipeBarrier<PIPE_ALL>();
      DataCopy(global[8 * GetBlockIdx()], local, 8);
      if (synchronised) {
        SyncAll();
      } else {
        PipeBarrier<PIPE_ALL>();
      }
      DataCopy(local, global[8 - 8 * GetBlockIdx()], 8);
      PipeBarrier<PIPE_ALL>();
      CHECK(local.GetValue(0) == static_cast<float>(1 - GetBlockIdx()) || !synchronised);
    });
    std::string found;
    try {
      world.run();
    } catch (const twin::Fault& fault) {
      found = fault.what();
    }
    CHECK(synchronised ? found.empty() : has(found, "GM x of rank 0"));
  }
}

// Scalar accesses to device memory go through a cache that is stale until it is cleaned.
void scalar_cache() {
  twin::World world(1);
  twin::Buffer<int32_t> x(world, 0, "x", std::vector<int32_t>(32, 7));
  const auto launch = [&](bool clean) {
    twin::enqueue(world.stream(0), 1, [&, clean] {
      KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_AIV_ONLY);
      GlobalTensor<int32_t> global;
      global.SetGlobalBuffer(reinterpret_cast<__gm__ int32_t*>(x.address()), 32);
      CHECK(global.GetValue(3) == 7);
      global.SetValue(3, 8);
      using Tensor = GlobalTensor<int32_t>;
      if (clean) {
        DataCacheCleanAndInvalid<Tensor::PrimType, CacheLine::SINGLE_CACHE_LINE,
                                 DcciDst::CACHELINE_OUT>(global[3]);
      }
      CHECK(global.GetValue(3) == 8);
    });
  };
  launch(true);
  world.run();
  CHECK(x.read()[3] == 8 && x.read()[4] == 7);
  x.write(std::vector<int32_t>(32, 7));
  launch(false);
  try {
    world.run();
    CHECK(false);
  } catch (const twin::Fault& fault) {
    CHECK(has(fault.what(), "never cleaned"));
  }
}

// Ranks poll each other's flags; data behind a flag is in order, a flag too few is not.
void ranks_poll() {
  for (const int wanted : {1, 0, 2}) {
    twin::World world(2);
    std::vector<twin::Buffer<int32_t>> windows;
    for (int rank = 0; rank < 2; ++rank) {
      windows.emplace_back(world, rank, "window", 32);
      windows.back().share(0, 64);
    }
    for (int rank = 0; rank < 2; ++rank) {
      twin::enqueue(world.stream(rank), 1, [&, rank] {
        KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_AIV_ONLY);
        LocalTensor<int32_t> local(TPosition::VECCALC, 0, 8);
        GlobalTensor<int32_t> mine, peer;
        mine.SetGlobalBuffer(reinterpret_cast<__gm__ int32_t*>(windows[rank].address()), 32);
        peer.SetGlobalBuffer(reinterpret_cast<__gm__ int32_t*>(windows[1 - rank].address()), 32);
        Duplicate(local, 1, 8);
        PipeBarrier<PIPE_ALL>();
        DataCopy(mine[16], local, 8);
        PipeBarrier<PIPE_MTE3>();
        DataCopy(mine, local, 8);
        PipeBarrier<PIPE_ALL>();
        int32_t seen = wanted == 0 ? 0 : -1;
        while (seen < wanted) {
          DataCopy(local, peer, 8);
          PipeBarrier<PIPE_ALL>();
          seen = local.GetValue(0);
          PipeBarrier<PIPE_ALL>();
        }
        DataCopy(local, peer[16], 8);
      });
    }
    std::string found;
    try {
      world.run();
    } catch (const twin::Fault& fault) {
      found = fault.what();
    }
    if (wanted == 1) CHECK(found.empty());
    if (wanted == 0) CHECK(has(found, "GM window of rank"));
    if (wanted == 2) CHECK(has(found, "deadlock: rank") && has(found, "waits for flag 0 of GM"));
  }
}

}  // namespace

int main() {
  flags_order_pipes();
  flags_pair();
  scalar_unit();
  cores_wait_for_each_other();
  cores_race();
  scalar_cache();
  ranks_poll();
}
