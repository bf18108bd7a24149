// send and recv: one ring of bytes for each ordered pair of ranks.
#include <algorithm>

#include "comm.h"
#include "error.h"
#include "running.h"

namespace lcal {
namespace {

// What the sender says first, so that a receiver of another size notices.
struct Envelope {
  uint64_t bytes;
};

}  // namespace

// Wake a rank that waits for a message, or for room in one of its mailboxes.
void Comm::ring(int rank) {
  BellLine& bell = segment_.header().bells[rank];
  bell.rings.fetch_add(1, std::memory_order_seq_cst);
  if (bell.sleepers.load(std::memory_order_seq_cst) != 0) wake_all(bell.rings);
}

void Comm::push(const void* data, size_t bytes, int dst, const Call& call) {
  Mailbox& box = segment_.mailbox(rank_, dst);
  BellLine& bell = segment_.header().bells[rank_];
  const unsigned char* in = static_cast<const unsigned char*>(data);
  while (bytes > 0) {
    const uint32_t written = box.written.load(std::memory_order_relaxed);
    const auto room = [&] {
      return kMailboxBytes - (written - box.read.load(std::memory_order_acquire));
    };
    if (room() == 0) wait_word(bell.rings, bell.sleepers, [&] { return room() > 0; }, dst, call);
    const size_t at = written % kMailboxBytes;
    const size_t part = std::min({bytes, static_cast<size_t>(room()), kMailboxBytes - at});
    copy_bytes(box.data + at, in, part);
    box.written.store(written + static_cast<uint32_t>(part), std::memory_order_seq_cst);
    ring(dst);
    in += part;
    bytes -= part;
  }
}

void Comm::pull(void* data, size_t bytes, int src, const Call& call) {
  Mailbox& box = segment_.mailbox(src, rank_);
  BellLine& bell = segment_.header().bells[rank_];
  unsigned char* out = static_cast<unsigned char*>(data);
  while (bytes > 0) {
    const uint32_t read = box.read.load(std::memory_order_relaxed);
    const auto ready = [&] { return box.written.load(std::memory_order_acquire) - read; };
    if (ready() == 0) wait_word(bell.rings, bell.sleepers, [&] { return ready() > 0; }, src, call);
    const size_t at = read % kMailboxBytes;
    const size_t part = std::min({bytes, static_cast<size_t>(ready()), kMailboxBytes - at});
    copy_bytes(out, box.data + at, part);
    box.read.store(read + static_cast<uint32_t>(part), std::memory_order_seq_cst);
    ring(src);
    out += part;
    bytes -= part;
  }
}

void Comm::send(const void* x, size_t bytes, int dst) {
  Running running(*this, Call{Kind::send, Op::none, DType::u8, dst, bytes});
  segment_.reserve_mailbox(rank_, dst);
  say(running.call());
  const Envelope envelope{bytes};
  push(&envelope, sizeof(envelope), dst, running.call());
  push(x, bytes, dst, running.call());
}

void Comm::recv(void* x, size_t bytes, int src) {
  Running running(*this, Call{Kind::recv, Op::none, DType::u8, src, bytes});
  segment_.reserve_mailbox(src, rank_);
  say(running.call());
  Envelope envelope{};
  pull(&envelope, sizeof(envelope), src, running.call());
  if (envelope.bytes != bytes) {
    fail(who(src) + " sent " + std::to_string(envelope.bytes) + " bytes to " + who(rank_) +
         ", which expects " + std::to_string(bytes));
  }
  pull(x, bytes, src, running.call());
}

}  // namespace lcal
