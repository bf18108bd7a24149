// Phases: publishing an epoch, waiting for peers, and everything that can end a wait.
#include <linux/futex.h>
#include <poll.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <ctime>

#include "comm.h"
#include "error.h"
#include "running.h"

namespace lcal {
namespace {

using Clock = std::chrono::steady_clock;
constexpr int kYields = 200;
constexpr long kSliceNs = 50'000'000;  // how late a death, an abort or a signal may be noticed

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

void pause_cpu() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

void sleep_on(const std::atomic<uint32_t>& word, uint32_t seen) {
  const timespec slice{0, kSliceNs};
  syscall(SYS_futex, &word, FUTEX_WAIT, seen, &slice, nullptr, 0);
}

std::string seconds_text(double seconds) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.3g s", seconds);
  return text;
}

bool is_before(uint32_t epoch, uint32_t wanted) {
  return static_cast<int32_t>(epoch - wanted) < 0;  // epochs wrap
}

}  // namespace

uint64_t Comm::what(const Call& call) const {
  return static_cast<uint64_t>(call.kind) | static_cast<uint64_t>(call.op) << 8 |
         static_cast<uint64_t>(call.dtype) << 16 | static_cast<uint64_t>(call.root) << 24 |
         static_cast<uint64_t>(number_) << 32;
}

std::string Comm::describe(uint64_t what, uint64_t bytes) const {
  const Kind kind = static_cast<Kind>(what & 0xff);
  const std::string number = "#" + std::to_string(what >> 32);
  if (kind == Kind::none) return "in no collective (its last was " + number + ")";
  std::string text = std::string("in ") + name(kind) + " " + number;
  if (bytes == 0) return text;
  text += " (" + std::to_string(bytes) + " bytes " + name(static_cast<DType>(what >> 16 & 0xff));
  const Op op = static_cast<Op>(what >> 8 & 0xff);
  if (op != Op::none) text += std::string(", ") + name(op);
  return text + ")";
}

// What a rank is in, with the size where that is known.
std::string Comm::doing(int rank) const {
  const FlagLine& line = segment_.header().flags[rank];
  const uint64_t now = line.doing.load(std::memory_order_relaxed);
  const Signature& last = line.signatures[line.epoch.load(std::memory_order_acquire) & 1];
  return who(rank) + ", which is " + describe(now, now == last.what ? last.bytes : 0);
}

// Who keeps this rank waiting: all that have not reached its phase, or the peer of a message.
std::string Comm::missing(int peer, const Call& call) const {
  constexpr int kNamed = 4;
  std::string text;
  int count = 0;
  for (int r = 0; r < size_; ++r) {
    const uint32_t epoch = segment_.header().flags[r].epoch.load(std::memory_order_acquire);
    if (r == rank_ || (is_message(call.kind) ? r != peer : !is_before(epoch, epoch_))) continue;
    if (++count <= kNamed) text += (count > 1 ? "; " : "") + doing(r);
  }
  if (count > kNamed) text += "; and " + std::to_string(count - kNamed) + " more";
  return text;
}

std::string Comm::who(int rank) const {
  return "rank " + std::to_string(labels_[rank]) + " (pid " + std::to_string(pids_[rank]) + ")";
}

void Comm::check_open() const {
  if (closed_.load()) throw PeerFailure("this lcal communicator is closed; connect again");
}

void Comm::fail(const std::string& why) {
  broken_ = why;
  abort(why);
  throw PeerFailure(why);
}

std::string Comm::abort_text() const {
  const AbortLine& line = segment_.header().abort;
  for (int i = 0; i < 1000 && line.state.load(std::memory_order_acquire) == 1; ++i) sched_yield();
  return std::string(line.reason, strnlen(line.reason, kReasonBytes));
}

void Comm::abort(const std::string& reason) {
  if (closed_.load()) return;
  AbortLine& line = segment_.header().abort;
  uint32_t none = 0;
  if (line.state.compare_exchange_strong(none, 1)) {
    line.rank = static_cast<uint32_t>(rank_);
    std::strncpy(line.reason, reason.c_str(), kReasonBytes - 1);
    line.state.store(2, std::memory_order_seq_cst);
  }
  for (int r = 0; r < size_; ++r) {
    wake_all(segment_.header().flags[r].epoch);
    ring(r);
  }
}

void Comm::publish(const Call& call, uint64_t place) {
  ++epoch_;
  FlagLine& mine = segment_.header().flags[rank_];
  mine.signatures[epoch_ & 1] = Signature{what(call), call.bytes, place};
  say(call);
  mine.epoch.store(epoch_, std::memory_order_seq_cst);
  if (segment_.header().sleepers[rank_].sleepers.load(std::memory_order_seq_cst) != 0) {
    wake_all(mine.epoch);
  }
}

void Comm::phase(const Call& call, uint64_t place) {
  publish(call, place);
  places_[rank_] = place;
  lent_ = lent_ || place != 0;
  for (int step = 1; step < size_; ++step) {
    const int peer = (rank_ + step) % size_;
    wait_for(peer, call);
    take_signature(peer, call);
  }
}

void Comm::wait_for(int peer, const Call& call) {
  const std::atomic<uint32_t>& word = segment_.header().flags[peer].epoch;
  const uint32_t wanted = epoch_;
  if (!is_before(word.load(std::memory_order_acquire), wanted)) return;
  wait_word(
      word, segment_.header().sleepers[peer].sleepers,
      [&] { return !is_before(word.load(std::memory_order_acquire), wanted); }, peer, call);
}

void Comm::wait_word(const std::atomic<uint32_t>& word, std::atomic<uint32_t>& sleepers,
                     const std::function<bool()>& ready, int peer, const Call& call) {
  for (int i = 0; i < spins_; ++i) {
    if (ready()) return;
    pause_cpu();
  }
  for (int i = 0; i < kYields; ++i) {
    if (ready()) return;
    sched_yield();
  }
  const Clock::time_point begin = Clock::now();
  while (!ready()) {
    check_while_waiting(peer, call, seconds_since(begin));
    sleepers.fetch_add(1, std::memory_order_seq_cst);
    const uint32_t seen = word.load(std::memory_order_seq_cst);
    const bool aborted = segment_.header().abort.state.load(std::memory_order_seq_cst) != 0;
    if (!ready() && !aborted) sleep_on(word, seen);
    sleepers.fetch_sub(1, std::memory_order_seq_cst);
  }
}

void Comm::check_abort(const Call& call) {
  if (!broken_.empty()) throw PeerFailure(broken_);
  const AbortLine& line = segment_.header().abort;
  if (line.state.load(std::memory_order_acquire) == 0) return;
  const std::string reason = abort_text();  // waits until rank and reason are written
  broken_ = who(static_cast<int>(line.rank)) + " aborted: " + reason;
  throw PeerFailure(broken_ + " [seen by " + who(rank_) + " " + describe(what(call), call.bytes) +
                    "]");
}

void Comm::check_while_waiting(int peer, const Call& call, double waited_s) {
  check_open();
  check_abort(call);
  check_peers_live(peer, call);
  if (interrupt_) check_interrupt(call);
  if (call.idle || waited_s <= timeout_s_) return;
  fail(who(rank_) + " waited " + seconds_text(waited_s) + " " + describe(what(call), call.bytes) +
       " for " + missing(peer, call) + "; ATB_DIST_TIMEOUT_S changes the limit");
}

// Which of these ranks have died, by name; "" when none has.
std::string Comm::dead(const std::function<bool(int)>& concerns) const {
  pollfd watched[kMaxRanks];
  for (int r = 0; r < size_; ++r) {
    watched[r] = {concerns(r) ? alive_[r] : -1, POLLIN, 0};  // poll passes over what is -1
  }
  if (poll(watched, static_cast<nfds_t>(size_), 0) <= 0) return "";
  std::string names;
  for (int r = 0; r < size_; ++r) {
    if (watched[r].revents != 0) names += (names.empty() ? "" : ", ") + who(r);
  }
  return names;
}

void Comm::check_peers_live(int peer, const Call& call) {
  const std::string names = dead([&](int r) { return !is_message(call.kind) || r == peer; });
  if (names.empty()) return;
  check_abort(call);  // who ended after another did has left word of it
  fail(names + " died; " + who(rank_) + " was " + describe(what(call), call.bytes));
}

void Comm::check_alive(const std::vector<int>& labels) const {
  const std::string names = dead(
      [&](int r) { return std::find(labels.begin(), labels.end(), labels_[r]) != labels.end(); });
  if (segment_.header().abort.state.load(std::memory_order_acquire) != 0) {
    throw PeerFailure(abort_text());
  }
  if (!names.empty()) throw PeerFailure(names + " died while ranks met");
}

void Comm::check_interrupt(const Call& call) {
  try {
    interrupt_();
  } catch (...) {
    broken_ = who(rank_) + " was interrupted " + describe(what(call), call.bytes);
    abort(broken_);
    throw;
  }
}

void Comm::take_signature(int peer, const Call& call) {
  const Signature theirs = segment_.header().flags[peer].signatures[epoch_ & 1];
  places_[peer] = theirs.place;
  lent_ = lent_ || theirs.place != 0;
  if (theirs.what == what(call) && theirs.bytes == call.bytes) return;
  fail("ranks issued different collectives: " + who(rank_) + " is " +
       describe(what(call), call.bytes) + ", " + who(peer) + " is " +
       describe(theirs.what, theirs.bytes));
}

}  // namespace lcal
