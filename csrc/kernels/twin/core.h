// One core of a running kernel: who it is, its memories, its pipes' clocks, and every check of an
// access.
#pragma once

#include <array>
#include <deque>
#include <memory>
#include <optional>
#include <unordered_map>

#include "memory.h"
#include "scheduler.h"

enum pipe_t { PIPE_S, PIPE_V, PIPE_M, PIPE_MTE1, PIPE_MTE2, PIPE_MTE3, PIPE_FIX, PIPE_ALL };

namespace twin {

constexpr int kPipes = PIPE_ALL;
constexpr int kCrossFlags = 16;
constexpr int kSyncAllFlag = kCrossFlags;  // the twin's own, beside the 16

inline const char* name(pipe_t pipe) {
  constexpr const char* names[] = {"S", "V", "M", "MTE1", "MTE2", "MTE3", "FIX", "ALL"};
  return names[pipe];
}

struct Core;

// What the cores of one launch share.
struct Launch {
  int rank = 0, blocks = 0, vectors = 0;  // vector cores a block
  bool cubes = false, can_sync = false;
  std::vector<Core*> cores;
  DeviceMemory* memory = nullptr;
  Scheduler* scheduler = nullptr;
  std::vector<std::string>* actors = nullptr;
  // Sets that wait for the other cores of a group: by (mode, group, flag), a queue for each member.
  std::map<std::array<int, 3>, std::map<Core*, std::deque<Clock>>> arrivals;
};

struct Op {
  pipe_t pipe;
  uint32_t time;
  Site site;
  const char* name;
};

struct Core {
  Core(Launch& launch, int block, int sub, int first_actor, const Clock& start)
      : launch(launch), block(block), sub(sub), first_actor(first_actor) {
    clocks.fill(start);
    for (int p = 0; p < kPipes; ++p) {
      clocks[p].resize(std::max(clocks[p].size(), static_cast<size_t>(first_actor + kPipes)));
      counts[p] = clocks[p][first_actor + p];
    }
  }

  bool is_cube() const { return sub < 0; }
  std::string name() const {
    return concat("rank ", launch.rank, " block ", block, is_cube() ? " AIC" : " AIV",
                  is_cube() ? "" : std::to_string(sub));
  }

  LocalMemory& local(Local which, const Site& site) {
    const bool of_cube = which != kUB;
    if (of_cube != is_cube()) {
      fail(site, is_cube() ? "an AIC core has no UB" : "an AIV core has no L1 or L0");
    }
    if (!locals[which]) locals[which] = make_local(which);
    return *locals[which];
  }

  [[noreturn]] void fail(const Site& site, const std::string& text) const {
    throw Fault(concat(name(), " at ", site.text(), ": ", text));
  }

  // An instruction is issued to a pipe: it knows what the scalar unit has waited for, not what the
  // scalar unit has itself stored.
  Op begin(pipe_t pipe, const Site& site, const char* op) {
    launch.scheduler->maybe_yield();
    if (++num_ops > kMaxOps) fail(site, concat(op, ": 20 million operations and no end"));
    inherit(pipe);
    const uint32_t time = ++counts[pipe];
    if (pipe == PIPE_S) clocks[PIPE_S][first_actor] = time;
    return {pipe, time, site, op};
  }

  void inherit(pipe_t pipe) {
    if (pipe == PIPE_S || inherited[pipe] == scalar_version) return;
    const uint32_t stores = clocks[pipe][first_actor + PIPE_S];
    join(clocks[pipe], clocks[PIPE_S]);
    clocks[pipe][first_actor + PIPE_S] = stores;
    inherited[pipe] = scalar_version;
  }

  // The clock of all that a pipe has done and waited for.
  Clock finished(pipe_t pipe) {
    inherit(pipe);
    Clock clock = clocks[pipe];
    clock[first_actor + pipe] = counts[pipe];
    return clock;
  }

  void learn(pipe_t pipe, const Clock& clock) {
    join(clocks[pipe], clock);
    if (pipe == PIPE_S) ++scalar_version;
  }

  // The wait for all pipes.
  Clock drain() {
    Clock all;
    for (int p = 0; p < kPipes; ++p) join(all, finished(static_cast<pipe_t>(p)));
    clocks.fill(all);
    ++scalar_version;
    return all;
  }

  void touch(LocalMemory& memory, size_t begin, size_t bytes, Kind kind, const Op& op,
             const std::string& buffer, bool must_be_written = true) {
    if (!bytes) return;
    const Access access{actor(op.pipe), op.time, op.site.line, 0, 0, kind, op.site.file};
    const Access* earlier = memory.shadow.stamp(begin, begin + bytes, access, clocks[op.pipe]);
    if (earlier) unordered(op, kind, concat(memory.name, " ", buffer), *earlier);
    if (kind == Kind::write) return memory.shadow.set_written(begin, begin + bytes, true);
    if (!must_be_written) return;
    const size_t bad = memory.shadow.first_unwritten(begin, begin + bytes);
    if (bad < begin + bytes) {
      fail(op.site,
           concat(op.name, " on pipe ", twin::name(op.pipe), " reads byte ", bad - begin, " of ",
                  bytes, " of ", memory.name, " ", buffer, ", which nobody has written"));
    }
  }

  void touch(Gm& gm, size_t begin, size_t bytes, Kind kind, const Op& op,
             bool must_be_written = true) {
    if (!bytes) return;
    if (gm.rank != launch.rank && !gm.shared) {
      fail(op.site, concat(op.name, " ", twin::name(kind), " ", gm.name, " of rank ", gm.rank,
                           ", which is not shared"));
    }
    if (gm.is_flag(begin)) {
      touch_flag(gm, begin, bytes, kind, op);
    } else {
      const Access access{actor(op.pipe), op.time, op.site.line, 0, 0, kind, op.site.file};
      const Access* earlier = gm.shadow.stamp(begin, begin + bytes, access, clocks[op.pipe]);
      if (earlier) unordered(op, kind, concat("GM ", gm.name, " of rank ", gm.rank), *earlier);
    }
    if (kind == Kind::write) return gm.shadow.set_written(begin, begin + bytes, true);
    const size_t bad = gm.shadow.first_unwritten(begin, begin + bytes);
    if (must_be_written && bad < begin + bytes) {
      fail(op.site, concat(op.name, " on pipe ", twin::name(op.pipe), " reads byte ", bad,
                           " of GM ", gm.name, " of rank ", gm.rank, ", which nobody has written"));
    }
  }

  uint32_t actor(pipe_t pipe) const { return static_cast<uint32_t>(first_actor + pipe); }

  static constexpr long kMaxOps = 20'000'000;

  Launch& launch;
  int block, sub;  // sub: -1 on the cube core
  int first_actor;
  std::array<Clock, kPipes> clocks;
  std::array<uint32_t, kPipes> counts{};
  std::array<long, kPipes> inherited{};
  long scalar_version = 1, num_ops = 0;
  std::array<std::unique_ptr<LocalMemory>, kLocals> locals;
  std::map<std::array<int, 3>, std::pair<Clock, Site>> flags;    // set, not waited for
  std::map<std::array<int, 2>, uint8_t> event_ids, fetched_ids;  // a bit each
  std::array<std::deque<Clock>, kCrossFlags + 1> cross;          // arrived, not waited for
  std::map<std::pair<Gm*, size_t>, std::pair<std::array<uint8_t, 64>, uint64_t>> cache;
  std::vector<std::string> open_tensors;  // labels of queue tensors that are not freed
  bool has_pipe = false, atomic_add = false;

 private:
  void touch_flag(Gm& gm, size_t begin, size_t bytes, Kind kind, const Op& op) {
    Clock& released = gm.released[begin / Shadow::kBlock];
    if (kind != Kind::read) {
      Clock mine = clocks[op.pipe];
      mine[actor(op.pipe)] = op.time;
      join(released, mine);
      polls = 0;
      return;
    }
    const uint8_t* at = gm.base + begin;
    std::vector<uint8_t> content(at, at + bytes);
    const bool again = polled == at && content == poll_content;
    polls = again ? polls + 1 : 0;
    if (polls > 3) {  // a loop that reads nothing else: asleep until the flag changes
      launch.scheduler->block(
          concat("flag ", begin, " of GM ", gm.name, " of rank ", gm.rank), op.site,
          [at, content] { return !std::equal(content.begin(), content.end(), at); });
      content.assign(at, at + bytes);
      polls = 0;
    }
    polled = at;
    poll_content = std::move(content);
    learn(op.pipe, released);
  }

  [[noreturn]] void unordered(const Op& op, Kind kind, const std::string& where,
                              const Access& earlier) const {
    const pipe_t pipe = static_cast<pipe_t>(earlier.actor % kPipes);
    const Site site(earlier.file, earlier.line);
    fail(op.site,
         concat(op.name, " on pipe ", twin::name(op.pipe), " ", twin::name(kind), " ", where,
                ", which ", (*launch.actors)[earlier.actor / kPipes], " pipe ", twin::name(pipe),
                " ", twin::name(earlier.kind), " at ", site.text(), ": no flag orders the two"));
  }

  const uint8_t* polled = nullptr;
  std::vector<uint8_t> poll_content;
  int polls = 0;
};

inline thread_local Core* current_core = nullptr;

inline Core& core() {
  if (!current_core) throw Fault("an AscendC call outside of a kernel that the twin runs");
  return *current_core;
}

inline void require(bool holds, const Site& site, const std::string& text) {
  if (!holds) core().fail(site, text);
}

}  // namespace twin
