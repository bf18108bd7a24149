// Life of a communicator, entry to and exit from a collective, and memory in the segment.
#include "comm.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <numeric>

#include "error.h"
#include "running.h"

namespace lcal {
namespace {

constexpr int kSpins = 200;  // then yield: see wait.cc

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
  if (!options.labels.empty() && options.labels.size() != static_cast<size_t>(options.size)) {
    throw SetupError(std::to_string(options.labels.size()) + " labels for " +
                     std::to_string(options.size) + " ranks");
  }
}

std::vector<int> labels_of(const Options& options) {
  std::vector<int> labels = options.labels;
  if (labels.empty()) {
    labels.resize(options.size);
    std::iota(labels.begin(), labels.end(), 0);
  }
  return labels;
}

Meeting checked_meet(const Options& options) {
  check(options);
  const std::vector<int> labels = labels_of(options);
  const auto watch = [&] {
    if (options.interrupt) options.interrupt();
    if (options.parent != nullptr) options.parent->check_alive(labels);
  };
  return meet({options.session, options.rank, options.size, options.half_bytes, options.timeout_s,
               watch, labels});
}

}  // namespace

Comm::Comm(const Options& options) : Comm(options, checked_meet(options)) {}

Comm::Comm(const Options& options, Meeting meeting)
    : segment_(std::move(meeting.segment)),
      arena_(segment_, options.rank, options.size),
      alive_(std::move(meeting.alive)),
      pids_(std::move(meeting.pids)),
      labels_(labels_of(options)),
      own_end_(meeting.own_end),
      rank_(options.rank),
      size_(options.size),
      timeout_s_(options.timeout_s),
      interrupt_(options.interrupt) {
  choice_.piece_bytes = std::min(choice_.piece_bytes, options.half_bytes / 2);
  learn_cpus();
}

Comm::~Comm() { let_go(); }

// With fewer CPUs than ranks a spinning rank keeps the one it waits for from running. What counts
// are the CPUs that the ranks may use together: each of them may be pinned to one.
void Comm::learn_cpus() {
  Running running(*this, Call{Kind::connect});
  cpu_set_t mine;
  CPU_ZERO(&mine);
  if (sched_getaffinity(0, sizeof(mine), &mine) != 0) CPU_SET(0, &mine);
  begin_round();
  copy_bytes(half(rank_), &mine, sizeof(mine));
  phase(running.call());
  cpu_set_t all = mine;
  for (int r = 0; r < size_; ++r) {
    cpu_set_t theirs;
    copy_bytes(&theirs, half(r), sizeof(theirs));
    CPU_OR(&all, &all, &theirs);
  }
  spins_ = size_ <= CPU_COUNT(&all) ? kSpins : 0;
}

void Comm::choose(const Choice& choice) {
  if (choice.piece_bytes < kPage || choice.piece_bytes % kPage != 0 ||
      choice.piece_bytes > half_bytes() / 2) {
    throw UsageError("piece_bytes=" + std::to_string(choice.piece_bytes) +
                     " is not a multiple of 4096 up to " + std::to_string(half_bytes() / 2));
  }
  if (choice.one_shot_bytes > half_bytes()) {
    throw UsageError("one_shot_bytes=" + std::to_string(choice.one_shot_bytes) +
                     " is more than a buffer of " + std::to_string(half_bytes()));
  }
  choice_ = choice;
}

uint64_t Comm::empty(size_t bytes) {
  const size_t stride = (std::max(bytes, size_t{1}) + kPage - 1) / kPage * kPage;
  Running running(*this, Call{Kind::empty, Op::none, DType::u8, 0, stride});
  struct Note {
    uint64_t failed;
    uint64_t count;
  };
  const std::vector<uint64_t> gone =
      arena_.take_released((half_bytes() - sizeof(Note)) / sizeof(uint64_t));
  const Note told{0, gone.size()};
  begin_round();
  copy_bytes(half(rank_), &told, sizeof(told));
  copy_bytes(half(rank_) + sizeof(told), gone.data(), gone.size() * sizeof(uint64_t));
  phase(running.call());
  for (int r = 0; r < size_; ++r) {
    Note note;
    copy_bytes(&note, half(r), sizeof(note));
    for (uint64_t i = 0; i < note.count; ++i) {
      uint64_t offset;
      copy_bytes(&offset, half(r) + sizeof(note) + i * sizeof(offset), sizeof(offset));
      arena_.note_released(offset);
    }
  }
  uint64_t offset = 0;
  const bool fresh = arena_.choose(stride, &offset);
  arena_.trim();
  Note mine{0, 0};
  if (fresh && !arena_.back(stride, offset)) mine.failed = static_cast<uint64_t>(errno);
  begin_round();
  copy_bytes(half(rank_), &mine, sizeof(mine));
  phase(running.call());
  for (int r = 0; r < size_; ++r) {
    Note note;
    copy_bytes(&note, half(r), sizeof(note));
    if (note.failed == 0) continue;
    arena_.unback(offset);
    throw SetupError("empty: " + who(r) + " can't get " + std::to_string(stride >> 10) +
                     " KiB of shared memory: " + std::strerror(static_cast<int>(note.failed)) +
                     "; free memory, or ask for less");
  }
  return offset;
}

void Comm::close() {
  closed_.store(true);
  if (busy_.exchange(true)) return;  // a thread waits on these: it, or the destructor, lets go
  let_go();
}

void Comm::let_go() {
  for (int& descriptor : alive_) {
    if (descriptor >= 0) ::close(descriptor);
    descriptor = -1;
  }
  if (own_end_ >= 0) ::close(own_end_);
  own_end_ = -1;
}

Comm::Running::Running(Comm& comm, Call call) : comm_(comm), call_(call) {
  comm.check_open();
  if (comm.busy_.exchange(true)) {
    comm.check_open();
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
  comm.lent_ = false;
  // Messages concern two ranks; the number that all compare counts what all take part in.
  if (!is_message(call.kind)) ++comm.number_;
}

Comm::Running::~Running() {
  Call none = call_;
  none.kind = Kind::none;
  comm_.segment_.header().flags[comm_.rank_].doing.store(comm_.what(none) & ~uint64_t{0xffffff00},
                                                         std::memory_order_relaxed);
  if (comm_.closed_.load()) {
    comm_.let_go();  // closed meanwhile: stays busy for good
  } else {
    comm_.busy_.store(false);
  }
}

}  // namespace lcal
