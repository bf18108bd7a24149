#include "segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "error.h"

namespace lcal {
namespace {

size_t pages(size_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }

size_t halves_offset() { return pages(sizeof(Header)); }

size_t mailboxes_offset(int ranks, size_t half_bytes) {
  return halves_offset() + 2 * static_cast<size_t>(ranks) * half_bytes;
}

size_t total_bytes(int ranks, size_t half_bytes) {
  return mailboxes_offset(ranks, half_bytes) +
         static_cast<size_t>(ranks) * ranks * pages(sizeof(Mailbox));
}

[[noreturn]] void out_of_memory(size_t bytes, int error) {
  throw SetupError("lcal can't get " + std::to_string(bytes >> 10) + " KiB of shared memory: " +
                   std::strerror(error) + "; free memory, use fewer ranks, or backend=gloo");
}

}  // namespace

Segment::Segment(int descriptor, int ranks, size_t half_bytes)
    : bytes_(total_bytes(ranks, half_bytes)),
      descriptor_(descriptor),
      ranks_(ranks),
      half_bytes_(half_bytes) {
  base_ = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, descriptor, 0);
  if (base_ == MAP_FAILED) {
    const int error = errno;
    close(descriptor);
    out_of_memory(bytes_, error);
  }
}

Segment::Segment(Segment&& other) noexcept
    : base_(other.base_),
      bytes_(other.bytes_),
      descriptor_(other.descriptor_),
      ranks_(other.ranks_),
      half_bytes_(other.half_bytes_) {
  other.base_ = nullptr;
  other.descriptor_ = -1;
}

Segment::~Segment() {
  if (base_ != nullptr) munmap(base_, bytes_);
  if (descriptor_ >= 0) close(descriptor_);
}

Segment Segment::create(int ranks, size_t half_bytes) {
  const int descriptor = memfd_create("atb_dist.lcal", MFD_CLOEXEC);
  if (descriptor < 0) out_of_memory(total_bytes(ranks, half_bytes), errno);
  const size_t reserved = halves_offset();
  int error = 0;
  if (ftruncate(descriptor, static_cast<off_t>(total_bytes(ranks, half_bytes))) != 0) {
    error = errno;
  } else if (fallocate(descriptor, 0, 0, static_cast<off_t>(reserved)) != 0) {
    error = errno;  // now, instead of SIGBUS at the first touch
  }
  if (error != 0) {
    close(descriptor);
    out_of_memory(reserved, error);
  }
  Segment segment(descriptor, ranks, half_bytes);
  uint64_t nonce = 0;
  while (nonce == 0) {
    if (getrandom(&nonce, sizeof(nonce), 0) != sizeof(nonce)) {
      throw SetupError(std::string("getrandom failed: ") + std::strerror(errno));
    }
  }
  segment.header().nonce = nonce;
  return segment;
}

Segment Segment::map(int descriptor, int ranks, size_t half_bytes, uint64_t nonce) {
  Segment segment(descriptor, ranks, half_bytes);
  if (segment.header().nonce != nonce) {
    throw SetupError("the ranks do not share memory: the segment is not the one rank 0 made");
  }
  return segment;
}

unsigned char* Segment::half(int rank, int which) const {
  return static_cast<unsigned char*>(base_) + halves_offset() +
         (2 * static_cast<size_t>(rank) + which) * half_bytes_;
}

size_t Segment::mailbox_offset(int from, int to) const {
  return mailboxes_offset(ranks_, half_bytes_) +
         (static_cast<size_t>(from) * ranks_ + to) * pages(sizeof(Mailbox));
}

void Segment::reserve_halves(int rank) const {
  const size_t offset = halves_offset() + 2 * static_cast<size_t>(rank) * half_bytes_;
  if (fallocate(descriptor_, 0, static_cast<off_t>(offset), static_cast<off_t>(2 * half_bytes_)) !=
      0) {
    out_of_memory(2 * half_bytes_, errno);
  }
}

Mailbox& Segment::mailbox(int from, int to) const {
  return *reinterpret_cast<Mailbox*>(static_cast<unsigned char*>(base_) + mailbox_offset(from, to));
}

void Segment::reserve_mailbox(int from, int to) const {
  if (fallocate(descriptor_, 0, static_cast<off_t>(mailbox_offset(from, to)),
                static_cast<off_t>(pages(sizeof(Mailbox)))) != 0) {
    out_of_memory(sizeof(Mailbox), errno);
  }
}

}  // namespace lcal
