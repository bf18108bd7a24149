// A communicator: collectives of the ranks of one host over a shared segment.
//
// A collective is a sequence of rounds; a round is one or two phases. In a phase a rank publishes
// its epoch, with a signature of what it does, and waits until every peer has published that epoch.
// Rounds alternate between two buffers a rank, so a round needs no closing barrier: whoever starts
// round r + 2 has seen everyone start round r + 1, and thus finish reading round r.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "arena.h"
#include "rendezvous.h"
#include "segment.h"
#include "types.h"

namespace lcal {

class Comm;

struct Options {
  std::string session;
  int rank = 0;
  int size = 1;
  size_t half_bytes = 1 << 20;
  double timeout_s = 300;
  Hook interrupt = nullptr;
  std::vector<int> labels;       // what errors call each rank; empty: 0, 1, 2, ...
  const Comm* parent = nullptr;  // whose ranks these are, by label: their deaths end the meeting
};

// Where all_reduce changes its algorithm. It decides about speed only, never about bits.
struct Choice {
  size_t one_shot_bytes = 32 << 10;  // up to here every rank reads everything: one phase
  size_t piece_bytes = 256 << 10;    // of a two-shot step: all pieces stay in second-level caches
};

// What a collective is about. root is the rank that gives or takes, 0 where there is none.
struct Call {
  Kind kind;
  Op op = Op::none;
  DType dtype = DType::u8;
  int root = 0;
  uint64_t bytes = 0;
  bool idle = false;  // no deadline
};

// Told about elements [first, first + count) of the result while they are in the cache.
using Tail = std::function<void(size_t first, size_t count)>;

class Comm {
 public:
  explicit Comm(const Options& options);  // collective; throws as meet does
  ~Comm();
  Comm(const Comm&) = delete;
  Comm& operator=(const Comm&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  const Choice& choice() const { return choice_; }
  // The same on every rank, between collectives. Throws UsageError when it does not fit.
  void choose(const Choice& choice);

  // counts are in bytes, by rank. x and out must not overlap unless they are the same.
  void all_reduce(void* x, size_t count, DType dtype, Op op, const Tail& tail = nullptr);
  // A sum whose addends travel as int8 with one scale for 64 elements (wire.h): lossy.
  void all_reduce_int8(void* x, size_t count, DType dtype);
  void all_gather(const void* x, void* out, const std::vector<uint64_t>& bytes);
  void reduce_scatter(const void* x, void* out, const std::vector<uint64_t>& counts, DType dtype,
                      Op op);
  void all_to_all(const void* x, void* out, const std::vector<uint64_t>& send,
                  const std::vector<uint64_t>& recv);
  void broadcast(void* x, size_t bytes, int src);
  std::string broadcast_object(const std::string& value, int src, bool idle);
  std::vector<std::string> all_gather_object(const std::string& value);
  void reduce(void* x, size_t count, DType dtype, Op op, int dst);
  void gather(const void* x, void* out, const std::vector<uint64_t>& bytes, int dst);
  void scatter(const void* x, void* out, size_t bytes, int src);
  void send(const void* x, size_t bytes, int dst);
  void recv(void* x, size_t bytes, int src);
  void barrier();
  // As many barriers: what a phase costs, without what calls it.
  void barriers(int count);

  // A block of that size in the segment of every rank (arena.h); its place. Throws SetupError, on
  // every rank alike, when one can't have the memory; the communicator stays usable.
  uint64_t empty(size_t bytes);
  unsigned char* own_block(uint64_t offset) const { return arena_.own(offset); }
  void release(uint64_t offset) { arena_.release(offset); }

  // Throw PeerFailure when one of these ranks, by label, has died, or any has aborted.
  void check_alive(const std::vector<int>& labels) const;

  // Wake every waiting peer with this reason. Safe from any thread.
  void abort(const std::string& reason);
  // Let go of the segment. Later calls throw. Never waits.
  void close();

 private:
  class Running;  // one collective, from entry to exit
  Comm(const Options& options, Meeting meeting);
  friend class Running;

  // Publish the next epoch and wait for all peers to reach it. place: see Signature.
  void phase(const Call& call, uint64_t place = 0);
  void publish(const Call& call, uint64_t place);
  void wait_for(int peer, const Call& call);
  void take_signature(int peer, const Call& call);
  // Wait until ready(). Whoever makes it so changes word, then wakes its sleepers; peer is that
  // rank.
  void wait_word(const std::atomic<uint32_t>& word, std::atomic<uint32_t>& sleepers,
                 const std::function<bool()>& ready, int peer, const Call& call);
  // Throw when this communicator is broken or any rank has aborted.
  void check_abort(const Call& call);
  void check_while_waiting(int peer, const Call& call, double waited_s);
  void check_peers_live(int peer, const Call& call);
  std::string dead(const std::function<bool(int)>& concerns) const;
  void check_interrupt(const Call& call);
  void begin_round() { ++round_; }
  unsigned char* half(int rank) const { return segment_.half(rank, round_ & 1); }
  size_t half_bytes() const { return segment_.half_bytes(); }
  uint64_t what(const Call& call) const;
  std::string describe(uint64_t what, uint64_t bytes) const;
  std::string doing(int rank) const;
  std::string missing(int peer, const Call& call) const;
  std::string who(int rank) const;
  [[noreturn]] void fail(const std::string& why);
  std::string abort_text() const;
  void learn_cpus();
  void check_open() const;
  void let_go();

  // Make this rank's bytes readable to peers: where x lies when that is in the segment, which is
  // what is returned; else copied into the half at `at`, and 0.
  uint64_t offer(const void* x, size_t bytes, size_t at = 0);
  // Where the rank's data of the last phase lie: in place, else in its half.
  const unsigned char* offered(int rank) const {
    return places_[rank] != 0 ? arena_.at(places_[rank]) : half(rank);
  }
  // Data that peers read in place may not change before all have read.
  void finish_reading(const Call& call);

  void all_reduce_one_shot(unsigned char* x, size_t count, const Call& call, const Tail& tail);
  bool all_reduce_two_shot(unsigned char* x, size_t count, const Call& call, const Tail& tail,
                           uint64_t place);
  void all_reduce_in_place(unsigned char* x, size_t count, const Call& call, const Tail& tail);
  // Give each rank's bytes to all, or to the root alone.
  void join(const void* x, void* out, const std::vector<uint64_t>& bytes, bool keep,
            const Call& call);
  void push(const void* data, size_t bytes, int dst, const Call& call);
  void pull(void* data, size_t bytes, int src, const Call& call);
  void ring(int rank);
  // Tell peers what this rank is doing.
  void say(const Call& call) {
    segment_.header().flags[rank_].doing.store(what(call), std::memory_order_relaxed);
  }
  void exchange_counts(const std::vector<uint64_t>& send, const std::vector<uint64_t>& recv,
                       const Call& call);

  Segment segment_;
  Arena arena_;
  std::vector<int> alive_;
  std::vector<uint32_t> pids_;
  std::vector<int> labels_;
  int own_end_;
  int rank_;
  int size_;
  double timeout_s_;
  Hook interrupt_;
  Choice choice_;
  int spins_ = 0;
  uint32_t epoch_ = 0;
  uint32_t round_ = 0;
  uint32_t number_ = 0;
  uint64_t places_[kMaxRanks] = {};  // of the last phase, by rank
  bool lent_ = false;                // some rank's data were read in place in this collective
  std::atomic<bool> busy_{false};
  std::atomic<bool> closed_{false};
  std::string broken_;  // why no further collective can run
};

}  // namespace lcal
