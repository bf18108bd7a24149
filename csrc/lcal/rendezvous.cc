#include "rendezvous.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>

#include "error.h"

namespace lcal {
namespace {

using Clock = std::chrono::steady_clock;
constexpr uint32_t kProtocol = 0x6c63616c;
constexpr int kSliceMs = 50;

struct Hello {
  uint32_t protocol;
  int32_t rank;
  int32_t size;
  uint32_t pid;
  uint64_t half_bytes;
};

struct Welcome {
  uint32_t protocol;
  uint32_t ok;
  uint64_t nonce;
  uint32_t pids[kMaxRanks];
  char refusal[256];
};

// Closes what it holds unless it is released.
struct Descriptor {
  int value = -1;
  Descriptor() = default;
  explicit Descriptor(int descriptor) : value(descriptor) {}
  Descriptor(Descriptor&& other) noexcept : value(other.release()) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    if (value >= 0) close(value);
    value = other.release();
    return *this;
  }
  ~Descriptor() {
    if (value >= 0) close(value);
  }
  int release() {
    const int result = value;
    value = -1;
    return result;
  }
};

struct Deadline {
  Clock::time_point end;
  Hook interrupt;
  explicit Deadline(double seconds, Hook hook)
      : end(Clock::now() +
            std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds))),
        interrupt(hook) {}
  bool passed() const { return Clock::now() >= end; }
  void check_interrupt() const {
    if (interrupt != nullptr) interrupt();
  }
};

std::string seconds_text(double seconds) {
  char text[32];
  std::snprintf(text, sizeof(text), "%g s", seconds);
  return text;
}

socklen_t make_address(const std::string& session, sockaddr_un* address) {
  std::memset(address, 0, sizeof(*address));
  address->sun_family = AF_UNIX;
  const std::string path = "atb_dist." + session;
  if (path.size() + 1 > sizeof(address->sun_path)) {
    throw SetupError("session name " + session + " is too long for a socket; use <= 90 characters");
  }
  std::memcpy(address->sun_path + 1, path.data(), path.size());  // leading 0: abstract
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + path.size());
}

// A pair (what peers poll, what this rank keeps): a pidfd, or on kernels before 5.3 a pipe.
std::pair<Descriptor, Descriptor> make_liveness() {
#ifdef SYS_pidfd_open
  const long pidfd = syscall(SYS_pidfd_open, getpid(), 0);
  if (pidfd >= 0) return {Descriptor(static_cast<int>(pidfd)), Descriptor()};
#endif
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) throw SetupError(std::string("pipe: ") + std::strerror(errno));
  return {Descriptor(ends[0]), Descriptor(ends[1])};
}

void send_with(int socket, const void* data, size_t bytes, const std::vector<int>& descriptors) {
  iovec part{const_cast<void*>(data), bytes};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  std::vector<char> control(CMSG_SPACE(sizeof(int) * descriptors.size()));
  if (!descriptors.empty()) {
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int) * descriptors.size());
    std::memcpy(CMSG_DATA(header), descriptors.data(), sizeof(int) * descriptors.size());
  }
  if (sendmsg(socket, &message, MSG_NOSIGNAL) != static_cast<ssize_t>(bytes)) {
    throw PeerFailure(std::string("a rank went away while ranks met: ") + std::strerror(errno));
  }
}

// Receives one packet; false when the peer has closed. Packets arrive whole (SOCK_SEQPACKET).
bool receive_with(int socket, void* data, size_t bytes, std::vector<Descriptor>* descriptors) {
  iovec part{data, bytes};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  std::vector<char> control(CMSG_SPACE(sizeof(int) * (kMaxRanks + 1)));
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  const ssize_t count = recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
  for (cmsghdr* h = CMSG_FIRSTHDR(&message); h != nullptr; h = CMSG_NXTHDR(&message, h)) {
    if (h->cmsg_level != SOL_SOCKET || h->cmsg_type != SCM_RIGHTS) continue;
    const size_t found = (h->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < found; ++i) {
      int descriptor;
      std::memcpy(&descriptor, CMSG_DATA(h) + i * sizeof(int), sizeof(int));
      descriptors->emplace_back(descriptor);
    }
  }
  return count == static_cast<ssize_t>(bytes);
}

bool readable(int descriptor, int timeout_ms) {
  pollfd poll_one{descriptor, POLLIN, 0};
  return poll(&poll_one, 1, timeout_ms) > 0;
}

uint32_t peer_pid(int socket) {
  ucred credentials{};
  socklen_t length = sizeof(credentials);
  getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &credentials, &length);
  if (credentials.uid != geteuid()) return 0;
  return static_cast<uint32_t>(credentials.pid);
}

struct Guest {
  Descriptor socket;
  Descriptor alive;
  uint32_t pid = 0;
};

std::string missing_ranks(const std::vector<Guest>& guests) {
  std::string text;
  for (size_t r = 1; r < guests.size(); ++r) {
    if (guests[r].socket.value < 0) text += (text.empty() ? "" : ", ") + std::to_string(r);
  }
  return text;
}

void refuse(const std::vector<Guest>& guests, const std::string& why) {
  Welcome welcome{};
  welcome.protocol = kProtocol;
  std::strncpy(welcome.refusal, why.c_str(), sizeof(welcome.refusal) - 1);
  for (const Guest& guest : guests) {
    if (guest.socket.value >= 0) {
      send(guest.socket.value, &welcome, sizeof(welcome), MSG_NOSIGNAL | MSG_DONTWAIT);
    }
  }
}

// Takes one connection; returns the reason to give up, or "".
std::string admit(int listener, int size, size_t half_bytes, std::vector<Guest>* guests) {
  Descriptor socket(accept4(listener, nullptr, nullptr, SOCK_CLOEXEC));
  if (socket.value < 0) return "";
  const uint32_t pid = peer_pid(socket.value);
  Hello hello{};
  std::vector<Descriptor> alive;
  if (!readable(socket.value, 1000) || !receive_with(socket.value, &hello, sizeof(hello), &alive) ||
      hello.protocol != kProtocol || pid == 0 || alive.size() != 1) {
    return "";  // a stranger: drop it
  }
  if (hello.size != size || hello.half_bytes != half_bytes) {
    return "rank " + std::to_string(hello.rank) + " (pid " + std::to_string(pid) + ") expects " +
           std::to_string(hello.size) + " ranks, rank 0 expects " + std::to_string(size);
  }
  if (hello.rank < 1 || hello.rank >= size) return "";
  Guest& guest = (*guests)[hello.rank];
  if (guest.socket.value >= 0) {
    return "pids " + std::to_string(guest.pid) + " and " + std::to_string(pid) +
           " both say they are rank " + std::to_string(hello.rank);
  }
  guest.socket = std::move(socket);
  guest.alive = std::move(alive[0]);
  guest.pid = pid;
  return "";
}

// A rank that left while others were still expected.
std::string find_dead(const std::vector<Guest>& guests) {
  for (size_t r = 1; r < guests.size(); ++r) {
    if (guests[r].socket.value >= 0 && readable(guests[r].socket.value, 0)) {
      return "rank " + std::to_string(r) + " (pid " + std::to_string(guests[r].pid) +
             ") died while ranks met";
    }
  }
  return "";
}

Descriptor listen_on(const std::string& session, int size) {
  sockaddr_un address;
  const socklen_t length = make_address(session, &address);
  Descriptor listener(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  if (listener.value < 0 ||
      bind(listener.value, reinterpret_cast<sockaddr*>(&address), length) != 0 ||
      listen(listener.value, size) != 0) {
    throw SetupError("session " + session + " can't be opened: " + std::strerror(errno) +
                     "; is another job using it (ATB_DIST_SESSION)?");
  }
  return listener;
}

Meeting host(const std::string& session, int size, size_t half_bytes, double timeout_s,
             const Deadline& deadline) {
  Descriptor listener = listen_on(session, size);
  auto [alive, own_end] = make_liveness();
  Segment segment = Segment::create(size, half_bytes);
  segment.reserve_halves(0);
  std::vector<Guest> guests(size);
  for (std::string missing; !(missing = missing_ranks(guests)).empty();) {
    std::string trouble;
    if (readable(listener.value, kSliceMs))
      trouble = admit(listener.value, size, half_bytes, &guests);
    if (trouble.empty()) trouble = find_dead(guests);
    if (trouble.empty() && deadline.passed()) {
      trouble = "rank 0 (pid " + std::to_string(getpid()) + ") waited " + seconds_text(timeout_s) +
                " in connect for ranks " + missing + ", which did not come";
    }
    if (!trouble.empty()) {
      refuse(guests, trouble);
      throw PeerFailure(trouble);
    }
    deadline.check_interrupt();
  }
  Welcome welcome{};
  welcome.protocol = kProtocol;
  welcome.ok = 1;
  welcome.nonce = segment.header().nonce;
  welcome.pids[0] = static_cast<uint32_t>(getpid());
  std::vector<int> handed{segment.descriptor(), alive.value};
  for (int r = 1; r < size; ++r) {
    welcome.pids[r] = guests[r].pid;
    handed.push_back(guests[r].alive.value);
  }
  for (int r = 1; r < size; ++r) {
    send_with(guests[r].socket.value, &welcome, sizeof(welcome), handed);
  }
  Meeting meeting{std::move(segment), std::vector<int>(size, -1), {}, own_end.release()};
  meeting.pids.assign(welcome.pids, welcome.pids + size);
  for (int r = 1; r < size; ++r) meeting.alive[r] = guests[r].alive.release();
  return meeting;
}

Descriptor call(const std::string& session, int rank, double timeout_s, const Deadline& deadline) {
  sockaddr_un address;
  const socklen_t length = make_address(session, &address);
  for (;;) {
    Descriptor line(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    if (line.value < 0) throw SetupError(std::string("socket: ") + std::strerror(errno));
    if (connect(line.value, reinterpret_cast<sockaddr*>(&address), length) == 0) return line;
    if (errno != ECONNREFUSED && errno != EAGAIN && errno != EINTR) {
      throw SetupError("session " + session + " can't be reached: " + std::strerror(errno));
    }
    if (deadline.passed()) {
      throw PeerFailure("rank " + std::to_string(rank) + " (pid " + std::to_string(getpid()) +
                        ") waited " + seconds_text(timeout_s) +
                        " in connect for rank 0, which did not come");
    }
    deadline.check_interrupt();
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
}

Meeting visit(const std::string& session, int rank, int size, size_t half_bytes, double timeout_s,
              const Deadline& deadline) {
  Descriptor line = call(session, rank, timeout_s, deadline);
  auto [alive, own_end] = make_liveness();
  const Hello hello{kProtocol, rank, size, static_cast<uint32_t>(getpid()), half_bytes};
  send_with(line.value, &hello, sizeof(hello), {alive.value});
  const uint32_t host_pid = peer_pid(line.value);
  const std::string me = "rank " + std::to_string(rank) + " (pid " + std::to_string(getpid()) + ")";
  while (!readable(line.value, kSliceMs)) {
    if (deadline.passed()) {
      throw PeerFailure(me + " waited " + seconds_text(timeout_s) + " in connect for rank 0 (pid " +
                        std::to_string(host_pid) + ")");
    }
    deadline.check_interrupt();
  }
  Welcome welcome{};
  std::vector<Descriptor> handed;
  if (!receive_with(line.value, &welcome, sizeof(welcome), &handed) ||
      welcome.protocol != kProtocol) {
    throw PeerFailure(me + ": rank 0 (pid " + std::to_string(host_pid) +
                      ") died or refused while ranks met");
  }
  if (!welcome.ok) throw PeerFailure(welcome.refusal);
  if (handed.size() != static_cast<size_t>(size) + 1) {
    throw SetupError(me + " got " + std::to_string(handed.size()) + " of " +
                     std::to_string(size + 1) + " descriptors; raise ulimit -n");
  }
  Meeting meeting{Segment::map(handed[0].release(), size, half_bytes, welcome.nonce),
                  std::vector<int>(size, -1),
                  {},
                  own_end.release()};
  meeting.segment.reserve_halves(rank);
  meeting.pids.assign(welcome.pids, welcome.pids + size);
  for (int r = 0; r < size; ++r) {
    if (r != rank) meeting.alive[r] = handed[r + 1].release();
  }
  return meeting;
}

}  // namespace

Meeting meet(const std::string& session, int rank, int size, size_t half_bytes, double timeout_s,
             Hook interrupt) {
  const Deadline deadline(timeout_s, interrupt);
  if (rank == 0) return host(session, size, half_bytes, timeout_s, deadline);
  return visit(session, rank, size, half_bytes, timeout_s, deadline);
}

}  // namespace lcal
