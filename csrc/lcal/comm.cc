// Life of a communicator, and entry to and exit from a collective.
#include "comm.h"

#include <sched.h>
#include <unistd.h>

#include "error.h"
#include "running.h"

namespace lcal {
namespace {

constexpr int kSpins = 200;  // then yield: see wait.cc

int allowed_cpus() {
  cpu_set_t set;
  CPU_ZERO(&set);
  return sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 1;
}

int online_cpus() { return static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN)); }

void check(const Options& options) {
  if (options.size < 1 || options.size > kMaxRanks) {
    throw SetupError("lcal serves 1 to " + std::to_string(kMaxRanks) + " ranks of one host, not " +
                     std::to_string(options.size) + "; use backend=gloo");
  }
  if (options.rank < 0 || options.rank >= options.size) {
    throw SetupError("rank " + std::to_string(options.rank) + " does not exist among " +
                     std::to_string(options.size));
  }
  if (options.half_bytes < kPage || options.half_bytes % kPage != 0) {
    throw SetupError("a buffer of " + std::to_string(options.half_bytes) +
                     " bytes is not a multiple of 4096");
  }
}

Meeting checked_meet(const Options& options) {
  check(options);
  return meet(options.session, options.rank, options.size, options.half_bytes, options.timeout_s,
              options.interrupt);
}

}  // namespace

Comm::Comm(const Options& options) : Comm(options, checked_meet(options)) {}

Comm::Comm(const Options& options, Meeting meeting)
    : segment_(std::move(meeting.segment)),
      alive_(std::move(meeting.alive)),
      pids_(std::move(meeting.pids)),
      own_end_(meeting.own_end),
      rank_(options.rank),
      size_(options.size),
      timeout_s_(options.timeout_s),
      interrupt_(options.interrupt),
      // With fewer CPUs than ranks a spinning rank keeps the one it waits for from running.
      spins_(options.size <= online_cpus() && allowed_cpus() > 0 ? kSpins : 0) {
  segment_.header().flags[rank_].pid.store(pids_[rank_]);
  Running running(*this, Call{Kind::connect});
  phase(running.call());
}

Comm::~Comm() { close(); }

void Comm::close() {
  if (closed_.exchange(true)) return;
  for (int descriptor : alive_) {
    if (descriptor >= 0) ::close(descriptor);
  }
  if (own_end_ >= 0) ::close(own_end_);
}

Comm::Running::Running(Comm& comm, Call call) : comm_(comm), call_(call) {
  if (comm.closed_.load()) throw PeerFailure("this lcal communicator is closed; connect again");
  if (comm.busy_.exchange(true)) {
    throw UsageError(std::string(name(call.kind)) +
                     ": another thread is inside a collective of this communicator; use one "
                     "thread, or a communicator each (split)");
  }
  try {
    comm.check_abort(call_);
  } catch (...) {
    comm.busy_.store(false);
    throw;
  }
  // Messages concern two ranks; the number that all compare counts what all take part in.
  if (!is_message(call.kind)) ++comm.number_;
}

Comm::Running::~Running() {
  Call none = call_;
  none.kind = Kind::none;
  comm_.segment_.header().flags[comm_.rank_].doing.store(comm_.what(none) & ~uint64_t{0xffffff00},
                                                         std::memory_order_relaxed);
  comm_.busy_.store(false);
}

}  // namespace lcal
