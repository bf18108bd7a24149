// The shared segment: one anonymous memory file that all ranks of a communicator map.
//
//   header      nonce, abort word and reason; a flag line, a sleeper line and a bell a rank
//   halves      per rank two buffers of half_bytes: one round fills one, the next the other
//   mailboxes   per ordered pair of ranks, backed by memory when first used
//   arena       what Comm::empty hands out (arena.h), added as it is asked for
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "types.h"

namespace lcal {

constexpr size_t kLine = 64;  // one cache line: ranks never write the same one
constexpr size_t kPage = 4096;
constexpr size_t kMailboxBytes = 64 << 10;
constexpr size_t kReasonBytes = 480;

// What a rank says about a round, so that peers can see that they do the same thing.
struct Signature {
  uint64_t what;   // kind | op << 8 | dtype << 16 | root << 24 | number << 32
  uint64_t bytes;  // over all ranks where they differ
  uint64_t place;  // where in the segment the rank's own data lie, 0 for its half; may differ
};

// Written by its rank only. epoch counts phases and never goes back; it wraps.
struct alignas(kLine) FlagLine {
  std::atomic<uint32_t> epoch;
  Signature signatures[2];      // of the phases with even and odd epoch
  std::atomic<uint64_t> doing;  // as Signature::what; kind none between collectives
};
static_assert(sizeof(FlagLine) == kLine, "one line a rank");

// Written by peers: how many of them sleep on this rank's epoch.
struct alignas(kLine) SleeperLine {
  std::atomic<uint32_t> sleepers;
};

// What a rank sleeps on while it waits for a message: peers that write or read its mailboxes ring.
struct alignas(kLine) BellLine {
  std::atomic<uint32_t> rings;
  std::atomic<uint32_t> sleepers;
};

struct alignas(kLine) AbortLine {
  std::atomic<uint32_t> state;  // 0 none, 1 being written, 2 valid
  uint32_t rank;
  char reason[kReasonBytes];
};

// Bytes in flight from one rank to another: a ring, written and read count up and wrap.
struct alignas(kLine) Mailbox {
  std::atomic<uint32_t> written;
  alignas(kLine) std::atomic<uint32_t> read;
  alignas(kLine) unsigned char data[kMailboxBytes];
};

struct Header {
  uint64_t nonce;
  AbortLine abort;
  FlagLine flags[kMaxRanks];
  SleeperLine sleepers[kMaxRanks];
  BellLine bells[kMaxRanks];
};

class Segment {
 public:
  // Create the memory and reserve the header. Throws SetupError when the host can't give it.
  static Segment create(int ranks, size_t half_bytes);
  // Map what another rank created. Throws SetupError when it is not what the nonce says.
  static Segment map(int descriptor, int ranks, size_t half_bytes, uint64_t nonce);
  Segment(Segment&& other) noexcept;
  Segment& operator=(Segment&&) = delete;
  ~Segment();

  Header& header() const { return *static_cast<Header*>(base_); }
  unsigned char* half(int rank, int which) const;
  Mailbox& mailbox(int from, int to) const;
  // Back this rank's halves with memory, from the NUMA node this rank runs on. Throws SetupError
  // when there is none left: now, instead of SIGBUS at the first touch.
  void reserve_halves(int rank) const;
  // Back a mailbox with memory. Throws SetupError when there is none left.
  void reserve_mailbox(int from, int to) const;
  size_t half_bytes() const { return half_bytes_; }
  size_t bytes() const { return bytes_; }
  int descriptor() const { return descriptor_; }

 private:
  Segment(int descriptor, int ranks, size_t half_bytes);
  size_t mailbox_offset(int from, int to) const;
  void* base_ = nullptr;
  size_t bytes_ = 0;
  int descriptor_ = -1;
  int ranks_ = 0;
  size_t half_bytes_ = 0;
};

}  // namespace lcal
