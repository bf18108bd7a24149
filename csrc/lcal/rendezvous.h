// How ranks meet: an abstract unix socket, over which rank 0 hands out the segment.
//
// Each rank sends rank 0 a descriptor that becomes readable when that rank's process ends; rank 0
// sends everyone the memory file and all those descriptors. Nothing has a name in a file system.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "segment.h"

namespace lcal {

using Hook = std::function<void()>;  // called now and then while waiting; throws to stop

struct Meeting {
  Segment segment;
  std::vector<int> alive;      // per rank: readable once its process has ended; -1 for oneself
  std::vector<uint32_t> pids;  // per rank, as rank 0's kernel knows them
  int own_end;                 // what must stay open while this rank lives; -1 for a pidfd
};

struct Party {
  std::string session;
  int rank;
  int size;
  size_t half_bytes;
  double timeout_s;
  Hook watch;
  std::vector<int> labels;  // what errors call each rank
};

// Collective. Throws SetupError or PeerFailure; then nothing stays open.
Meeting meet(const Party& party);

}  // namespace lcal
