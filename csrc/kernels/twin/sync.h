// Flags between the pipes of a core, barriers, flags between cores, and the data cache.
#pragma once

#include "tensor.h"

namespace AscendC {

enum class HardEvent : uint8_t {
  MTE2_MTE1,
  MTE1_MTE2,
  MTE1_M,
  M_MTE1,
  MTE2_V,
  V_MTE2,
  MTE3_V,
  V_MTE3,
  M_V,
  V_M,
  V_V,
  MTE3_MTE1,
  MTE1_MTE3,
  MTE1_V,
  MTE2_M,
  M_MTE2,
  V_MTE1,
  M_FIX,
  FIX_M,
  MTE3_MTE2,
  MTE2_MTE3,
  S_V,
  V_S,
  S_MTE2,
  MTE2_S,
  S_MTE3,
  MTE3_S,
  MTE2_FIX,
  FIX_MTE2,
  FIX_S,
  M_S,
  FIX_MTE3,
  MTE1_FIX,
  FIX_MTE1,
  FIX_FIX
};  // clang-format off
// clang-format on

using TEventID = int8_t;
using event_t = int32_t;

}  // namespace AscendC

constexpr int32_t EVENT_ID0 = 0, EVENT_ID1 = 1, EVENT_ID2 = 2, EVENT_ID3 = 3, EVENT_ID4 = 4,
                  EVENT_ID5 = 5, EVENT_ID6 = 6, EVENT_ID7 = 7;

namespace twin {

using AscendC::HardEvent;

struct PipePair {
  pipe_t from, to;
  const char* name;
};

constexpr PipePair pair_of(HardEvent event) {
  constexpr pipe_t S = PIPE_S, V = PIPE_V, M = PIPE_M, M1 = PIPE_MTE1, M2 = PIPE_MTE2,
                   M3 = PIPE_MTE3, F = PIPE_FIX;
  constexpr PipePair pairs[] = {
      {M2, M1, "MTE2_MTE1"}, {M1, M2, "MTE1_MTE2"}, {M1, M, "MTE1_M"}, {M, M1, "M_MTE1"},
      {M2, V, "MTE2_V"},     {V, M2, "V_MTE2"},     {M3, V, "MTE3_V"}, {V, M3, "V_MTE3"},
      {M, V, "M_V"},         {V, M, "V_M"},         {V, V, "V_V"},     {M3, M1, "MTE3_MTE1"},
      {M1, M3, "MTE1_MTE3"}, {M1, V, "MTE1_V"},     {M2, M, "MTE2_M"}, {M, M2, "M_MTE2"},
      {V, M1, "V_MTE1"},     {M, F, "M_FIX"},       {F, M, "FIX_M"},   {M3, M2, "MTE3_MTE2"},
      {M2, M3, "MTE2_MTE3"}, {S, V, "S_V"},         {V, S, "V_S"},     {S, M2, "S_MTE2"},
      {M2, S, "MTE2_S"},     {S, M3, "S_MTE3"},     {M3, S, "MTE3_S"}, {M2, F, "MTE2_FIX"},
      {F, M2, "FIX_MTE2"},   {F, S, "FIX_S"},       {M, S, "M_S"},     {F, M3, "FIX_MTE3"},
      {M1, F, "MTE1_FIX"},   {F, M1, "FIX_MTE1"},   {F, F, "FIX_FIX"}};
  return pairs[static_cast<int>(event)];
}

constexpr bool on_cube(pipe_t pipe) { return pipe != PIPE_V; }
constexpr bool on_vector(pipe_t pipe) {
  return pipe == PIPE_V || pipe == PIPE_MTE2 || pipe == PIPE_MTE3 || pipe == PIPE_S;
}

inline void check_flag(const PipePair& pair, int id, const char* call, const Site& site) {
  Core& me = core();
  const bool exists = me.is_cube() ? on_cube(pair.from) && on_cube(pair.to)
                                   : on_vector(pair.from) && on_vector(pair.to);
  require(exists, site, concat(call, "<", pair.name, ">: this core has no such pair of pipes"));
  require(id >= 0 && id < 8, site, concat(call, "<", pair.name, ">(", id, "): ids are 0 to 7"));
  const std::array<int, 2> key{pair.from, pair.to};
  require(!me.has_pipe || (me.event_ids[key] | me.fetched_ids[key]) >> id & 1, site,
          concat(call, "<", pair.name, ">(", id, "): TPipe has not allocated that id"));
}

inline void set_flag(const PipePair& pair, int id, const Site& site) {
  check_flag(pair, id, "SetFlag", site);
  Core& me = core();
  me.launch.scheduler->maybe_yield();
  const bool fresh = me.flags
                         .emplace(std::array<int, 3>{pair.from, pair.to, id},
                                  std::make_pair(me.finished(pair.from), site))
                         .second;
  require(fresh, site, concat("SetFlag<", pair.name, ">(", id, "): set twice without a WaitFlag"));
}

inline void wait_flag(const PipePair& pair, int id, const Site& site) {
  check_flag(pair, id, "WaitFlag", site);
  Core& me = core();
  const auto found = me.flags.find({pair.from, pair.to, id});
  require(found != me.flags.end(), site,
          concat("WaitFlag<", pair.name, ">(", id, "): nobody has set it; the core hangs"));
  me.inherit(pair.to);
  me.learn(pair.to, found->second.first);
  me.flags.erase(found);
}

// Which cores a set in a mode waits for, and whom it then releases.
struct CrossGroup {
  std::vector<Core*> setters, waiters;
  int number;  // tells groups of one mode apart
};

inline CrossGroup cross_group(int mode) {
  Core& me = core();
  CrossGroup group{{}, {}, 0};
  for (Core* other : me.launch.cores) {
    const bool same_kind = other->is_cube() == me.is_cube();
    const bool same_block = other->block == me.block;
    const bool sets = mode == 0 ? same_kind : same_kind && same_block;
    if (sets) group.setters.push_back(other);
    if (mode == 2 ? same_block && !same_kind : sets) group.waiters.push_back(other);
  }
  group.number = (mode == 0 ? 0 : 2 * me.block) + me.is_cube();
  return group;
}

inline void arrive(int mode, int flag, const Clock& clock, const CrossGroup& group,
                   const Site& site) {
  Core& me = core();
  auto& arrivals = me.launch.arrivals[{mode, group.number, flag}];
  arrivals[&me].push_back(clock);
  require(arrivals[&me].size() <= 15, site, concat("CrossCoreSetFlag(", flag, "): 15 are waiting"));
  Clock all;
  for (Core* setter : group.setters) {
    if (arrivals[setter].empty()) return;
  }
  for (Core* setter : group.setters) {
    join(all, arrivals[setter].front());
    arrivals[setter].pop_front();
  }
  for (Core* waiter : group.waiters) {
    waiter->cross[flag].push_back(all);
    require(waiter->cross[flag].size() <= 15, site,
            concat("CrossCoreSetFlag(", flag, "): the counter of ", waiter->name(), " passes 15"));
  }
}

inline void cross_wait(int flag, const char* call, const Site& site) {
  Core& me = core();
  me.launch.scheduler->maybe_yield();
  auto& arrived = me.cross[flag];
  me.launch.scheduler->block(concat(call, "(", flag, ")"), site,
                             [&arrived] { return !arrived.empty(); });
  for (int p = 0; p < kPipes; ++p) me.learn(static_cast<pipe_t>(p), arrived.front());
  arrived.pop_front();
}

inline void sync_all(bool vectors_only, const Site& site) {
  Core& me = core();
  require(me.launch.can_sync, site, "SyncAll: the kernel type must be one of KERNEL_TYPE_MIX_*");
  require(!vectors_only || !me.is_cube(), site, "SyncAll<true> on an AIC core; it must be <false>");
  require(vectors_only || me.launch.cubes, site,
          "SyncAll<false> in a kernel without AIC cores; it must be <true>");
  CrossGroup group{{}, {}, vectors_only};
  for (Core* other : me.launch.cores) {
    if (!vectors_only || !other->is_cube()) group.setters.push_back(other);
  }
  group.waiters = group.setters;
  arrive(3, kSyncAllFlag, me.drain(), group, site);
  cross_wait(kSyncAllFlag, "SyncAll", site);
}

}  // namespace twin

namespace AscendC {

template <HardEvent event>
void SetFlag(int32_t id, const twin::Site& site = twin::Site()) {
  twin::set_flag(twin::pair_of(event), id, site);
}

template <HardEvent event>
void WaitFlag(int32_t id, const twin::Site& site = twin::Site()) {
  twin::wait_flag(twin::pair_of(event), id, site);
}

template <pipe_t pipe>
void PipeBarrier(const twin::Site& site = twin::Site()) {
  twin::Core& me = twin::core();
  if (pipe == PIPE_ALL) {
    me.drain();
  } else {
    twin::require(pipe != PIPE_S, site, "PipeBarrier<PIPE_S> does not exist");
    twin::require(me.is_cube() ? twin::on_cube(pipe) : twin::on_vector(pipe), site,
                  twin::concat("PipeBarrier: this core has no pipe ", twin::name(pipe)));
    me.clocks[pipe] = me.finished(pipe);
  }
}

template <uint8_t mode, pipe_t pipe>
void CrossCoreSetFlag(uint16_t flag, const twin::Site& site = twin::Site()) {
  static_assert(mode <= 2, "modes are 0, 1 and 2");
  static_assert(pipe != PIPE_S && pipe != PIPE_ALL, "pipe is one of V, M, MTE1 to 3, FIX");
  twin::Core& me = twin::core();
  twin::require(me.launch.can_sync, site, "CrossCoreSetFlag needs a kernel type KERNEL_TYPE_MIX_*");
  twin::require(flag < 11 || flag == 15, site,
                twin::concat("CrossCoreSetFlag(", flag, "): 0 to 10 and 15 are free for kernels"));
  twin::require(mode != 2 || me.launch.cubes, site, "CrossCoreSetFlag<2>: there are no AIC cores");
  me.launch.scheduler->maybe_yield();
  twin::arrive(mode, flag, me.finished(pipe), twin::cross_group(mode), site);
}

template <uint8_t mode = 0, pipe_t pipe = PIPE_S>
void CrossCoreWaitFlag(uint16_t flag, const twin::Site& site = twin::Site()) {
  twin::require(flag < twin::kCrossFlags, site,
                twin::concat("CrossCoreWaitFlag(", flag, "): flags are 0 to 15"));
  twin::cross_wait(flag, "CrossCoreWaitFlag", site);
}

template <bool isAIVOnly = true>
void SyncAll(const twin::Site& site = twin::Site()) {
  twin::sync_all(isAIVOnly, site);
}

enum class CacheLine { SINGLE_CACHE_LINE, ENTIRE_DATA_CACHE };
enum class DcciDst { CACHELINE_ALL, CACHELINE_UB, CACHELINE_OUT, CACHELINE_ATOMIC };

template <class T, CacheLine line, DcciDst dst = DcciDst::CACHELINE_OUT>
void DataCacheCleanAndInvalid(const GlobalTensor<T>& tensor,
                              const twin::Site& site = twin::Site()) {
  static_assert(line == CacheLine::SINGLE_CACHE_LINE, "the twin cleans single lines");
  const twin::Op op = twin::core().begin(PIPE_S, site, "DataCacheCleanAndInvalid");
  tensor.clean(0, op);
}

inline int64_t GetBlockIdx() {
  const twin::Core& me = twin::core();
  const int ratio = me.launch.cubes ? me.launch.vectors : 1;
  return me.is_cube() ? me.block : me.block * ratio + me.sub;
}
inline int64_t GetBlockNum() { return twin::core().launch.blocks; }
inline int64_t GetSubBlockIdx() { return twin::core().is_cube() ? 0 : twin::core().sub; }
inline int64_t GetSubBlockNum() {
  return twin::core().is_cube() ? 1 : std::max(twin::core().launch.vectors, 1);
}
inline int64_t GetTaskRatio() { return GetSubBlockNum(); }

}  // namespace AscendC

#define ASCEND_IS_AIC (twin::core().is_cube())
#define ASCEND_IS_AIV (!twin::core().is_cube())
