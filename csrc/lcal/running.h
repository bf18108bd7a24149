// What the collectives share: entry and exit (no second thread, the number of the call), copying,
// waking.
#pragma once

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>

#include "comm.h"
#include "copy.h"

namespace lcal {

inline void wake_all(const std::atomic<uint32_t>& word) {
  syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

class Comm::Running {
 public:
  Running(Comm& comm, Call call);  // throws when the communicator is closed, busy or broken
  ~Running();
  Running(const Running&) = delete;
  Running& operator=(const Running&) = delete;
  const Call& call() const { return call_; }

 private:
  Comm& comm_;
  Call call_;
};

inline uint64_t Comm::offer(const void* x, size_t bytes, size_t at) {
  const uint64_t place = bytes > 0 ? arena_.place(x, bytes) : 0;
  if (place == 0) copy_bytes(half(rank_) + at, x, bytes);
  return place;
}

inline void Comm::finish_reading(const Call& call) {
  if (lent_) phase(call);
}

}  // namespace lcal
