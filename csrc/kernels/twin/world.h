// Ranks, their device memory, and the launch of kernels on their streams.
#pragma once

#include <functional>
#include <list>

#include "cube.h"

namespace twin {

// KERNEL_TYPE_*: which cores a block has, and whether cores can wait for each other.
struct KernelType {
  bool cubes;
  int vectors;
  bool can_sync;
};

// The first run of a kernel, to the line that says its type.
struct Probe {
  KernelType type;
};
inline thread_local bool probing = false;

inline void say_type(const KernelType& type) {
  if (probing) throw Probe{type};
}

// Kernels of one rank, which run one after the other.
struct Stream {
  struct Kernel {
    std::function<void()> body;
    int blocks;
    KernelType type{};
    std::unique_ptr<Launch> launch;
    int running = 0;
  };
  int rank = 0;
  std::deque<Kernel> kernels;
};

class World {
 public:
  explicit World(int ranks, uint64_t seed = 1) : seed_(seed), streams_(ranks) {
    for (int r = 0; r < ranks; ++r) streams_[r].rank = r;
  }

  int size() const { return static_cast<int>(streams_.size()); }
  Stream* stream(int rank) { return &streams_[rank]; }
  DeviceMemory& memory() { return memory_; }
  int preempt_one_in = 64;

  // New device memory, poisoned.
  uint8_t* allocate(int rank, const std::string& name, size_t bytes) {
    storage_.emplace_back(bytes + 512, kPoison);
    auto base = reinterpret_cast<uintptr_t>(storage_.back().data());
    uint8_t* aligned = reinterpret_cast<uint8_t*>((base + 511) / 512 * 512);
    memory_.add(rank, name, aligned, bytes);
    return aligned;
  }

  // Runs what was launched, all ranks together, to its end. Throws Fault, one line.
  void run() {
    int cores_a_rank = 0;
    for (Stream& stream : streams_) {
      for (Stream::Kernel& kernel : stream.kernels) {
        prepare(stream, kernel);
        const int cores = kernel.blocks * (kernel.type.cubes + kernel.type.vectors);
        cores_a_rank = std::max(cores_a_rank, cores);
      }
    }
    Scheduler scheduler(seed_++);
    scheduler.preempt_one_in = preempt_one_in;
    std::vector<Clock> now(streams_.size(), history_);
    actors_.resize(std::max(actors_.size(), now.size() * cores_a_rank));
    for (Stream& stream : streams_) {
      for (Stream::Kernel& kernel : stream.kernels) kernel.launch->scheduler = &scheduler;
      for (int core = 0; core < cores_a_rank; ++core) {
        const int index = stream.rank * cores_a_rank + core;
        scheduler.add(concat("rank ", stream.rank, " core ", core),
                      [this, &stream, &now, core, index] {
                        for (Stream::Kernel& kernel : stream.kernels) {
                          run_core(stream, kernel, now[stream.rank], core, index);
                        }
                      });
      }
    }
    try {
      scheduler.run();
    } catch (...) {
      for (Stream& stream : streams_) stream.kernels.clear();
      throw;
    }
    for (const Clock& clock : now) join(history_, clock);
    for (Stream& stream : streams_) stream.kernels.clear();
  }

 private:
  static KernelType type_of(const Stream::Kernel& kernel) {
    probing = true;
    try {
      kernel.body();
    } catch (const Probe& probe) {
      probing = false;
      return probe.type;
    } catch (...) {
      probing = false;
      throw;
    }
    probing = false;
    throw Fault("a kernel must say KERNEL_TASK_TYPE_DEFAULT first of all");
  }

  void prepare(Stream& stream, Stream::Kernel& kernel) {
    kernel.type = type_of(kernel);
    kernel.launch = std::make_unique<Launch>();
    Launch& launch = *kernel.launch;
    launch.rank = stream.rank;
    launch.blocks = kernel.blocks;
    launch.cubes = kernel.type.cubes;
    launch.vectors = kernel.type.vectors;
    launch.can_sync = kernel.type.can_sync;
    launch.memory = &memory_;
    launch.actors = &actors_;
    kernel.running = kernel.blocks * (launch.cubes + launch.vectors);
  }

  // Core number `number` of a rank, if the kernel uses it; starts with the rank's last kernel done.
  void run_core(Stream& stream, Stream::Kernel& kernel, Clock& now, int number, int index) {
    Launch& launch = *kernel.launch;
    const int a_block = launch.cubes + launch.vectors;
    if (number >= launch.blocks * a_block) return;
    const auto mine = std::find_if(stream.kernels.begin(), stream.kernels.end(),
                                   [&](const auto& each) { return &each == &kernel; });
    if (mine != stream.kernels.begin()) {
      launch.scheduler->block("the kernel before", Site("stream", 0),
                              [before = mine - 1] { return before->running == 0; });
    }
    if (launch.cores.empty()) create_cores(launch, index - number, now);
    Core& core = *launch.cores[number];
    actors_[index] = core.name();
    current_core = &core;
    kernel.body();
    finish(core);
    join(now, core.drain());
    if (--kernel.running == 0) cores_.clear_of(launch);
    current_core = nullptr;
  }

  void create_cores(Launch& launch, int first, const Clock& now) {
    for (int block = 0; block < launch.blocks; ++block) {
      for (int sub = launch.cubes ? -1 : 0; sub < launch.vectors; ++sub) {
        const int actor = (first + static_cast<int>(launch.cores.size())) * kPipes;
        launch.cores.push_back(cores_.make(launch, block, sub, actor, now));
      }
    }
  }

  // What must not be left at the end of a kernel.
  static void finish(Core& core) {
    for (const auto& [key, flag] : core.flags) {
      core.fail(flag.second, concat("SetFlag<", name(static_cast<pipe_t>(key[0])), "_",
                                    name(static_cast<pipe_t>(key[1])), ">(", key[2],
                                    ") that no WaitFlag takes"));
    }
    const Site end("the end of the kernel", 0);
    if (!core.open_tensors.empty()) {
      core.fail(end, concat(core.open_tensors[0], " is allocated and never freed"));
    }
    for (int flag = 0; flag <= kCrossFlags; ++flag) {
      if (core.cross[flag].empty()) continue;
      core.fail(end, concat("CrossCoreSetFlag(", flag, ") that no CrossCoreWaitFlag takes"));
    }
    for (const auto& [line, state] : core.cache) {
      if (state.second)
        core.fail(end, concat("a SetValue to GM ", line.first->name, " never cleaned"));
    }
    if (core.atomic_add) core.fail(end, "SetAtomicAdd without SetAtomicNone");
  }

  // Cores live as long as their launch.
  struct Cores {
    std::list<std::pair<Launch*, Core>> all;
    Core* make(Launch& launch, int block, int sub, int actor, const Clock& now) {
      all.emplace_back(std::piecewise_construct, std::forward_as_tuple(&launch),
                       std::forward_as_tuple(launch, block, sub, actor, now));
      return &all.back().second;
    }
    void clear_of(Launch& launch) {
      all.remove_if([&](const auto& each) { return each.first == &launch; });
    }
  };

  uint64_t seed_;
  std::vector<Stream> streams_;
  DeviceMemory memory_;
  std::list<std::vector<uint8_t>> storage_;
  std::vector<std::string> actors_;
  Clock history_;  // of all that was run before
  Cores cores_;
};

}  // namespace twin
