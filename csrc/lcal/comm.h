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

#include "rendezvous.h"
#include "segment.h"
#include "types.h"

namespace lcal {

struct Options {
  std::string session;
  int rank = 0;
  int size = 1;
  size_t half_bytes = 1 << 20;
  double timeout_s = 300;
  Hook interrupt = nullptr;
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

class Comm {
 public:
  explicit Comm(const Options& options);  // collective; throws as meet does
  ~Comm();
  Comm(const Comm&) = delete;
  Comm& operator=(const Comm&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  const std::vector<uint32_t>& pids() const { return pids_; }

  // counts are in bytes, by rank. x and out must not overlap unless they are the same.
  void all_reduce(void* x, size_t count, DType dtype, Op op);
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

  // Wake every waiting peer with this reason. Safe from any thread.
  void abort(const std::string& reason);
  // Let go of the segment. Later calls throw. Never waits.
  void close();

 private:
  class Running;  // one collective, from entry to exit
  Comm(const Options& options, Meeting meeting);
  friend class Running;

  // Publish the next epoch and wait for all peers to reach it.
  void phase(const Call& call);
  void publish(const Call& call);
  void wait_for(int peer, const Call& call);
  void check_signature(int peer, const Call& call) const;
  // Wait until word is no longer `old`; the peer is the one that changes it.
  void wait_word(const std::atomic<uint32_t>& word, std::atomic<uint32_t>& sleepers,
                 const std::function<bool()>& ready, int peer, const Call& call);
  // Throw when this communicator is broken or any rank has aborted.
  void check_abort(const Call& call);
  void check_while_waiting(int peer, const Call& call, double waited_s);
  void begin_round() { ++round_; }
  unsigned char* half(int rank) const { return segment_.half(rank, round_ & 1); }
  size_t half_bytes() const { return segment_.half_bytes(); }
  uint64_t what(const Call& call) const;
  std::string describe(uint64_t what, uint64_t bytes) const;
  std::string who(int rank) const;
  [[noreturn]] void fail(const std::string& why);
  std::string abort_text() const;

  void reduce_one_shot(unsigned char* x, size_t count, const Call& call, bool keep);
  void reduce_two_shot(unsigned char* x, size_t count, const Call& call);
  void push(const void* data, size_t bytes, int dst, const Call& call);
  void pull(void* data, size_t bytes, int src, const Call& call);
  // Tell peers what this rank is doing.
  void say(const Call& call) {
    segment_.header().flags[rank_].doing.store(what(call), std::memory_order_relaxed);
  }
  void exchange_counts(const std::vector<uint64_t>& send, const std::vector<uint64_t>& recv,
                       const Call& call);

  Segment segment_;
  std::vector<int> alive_;
  std::vector<uint32_t> pids_;
  int own_end_;
  int rank_;
  int size_;
  double timeout_s_;
  Hook interrupt_;
  int spins_;
  uint32_t epoch_ = 0;
  uint32_t round_ = 0;
  uint32_t number_ = 0;
  std::atomic<bool> busy_{false};
  std::atomic<bool> closed_{false};
  std::string broken_;  // why no further collective can run
};

}  // namespace lcal
