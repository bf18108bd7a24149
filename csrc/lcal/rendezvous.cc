#include "rendezvous.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>

#include "error.h"
#include "passing.h"

namespace lcal {
namespace {

using Clock = std::chrono::steady_clock;
constexpr uint32_t kProtocol = 0x6c63616c;
constexpr int kSliceMs = 50;
constexpr double kPatienceS = 1;  // beyond the limit: rank 0 knows better who is missing

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

// What a rank that gives up tells rank 0 first, so that the cause is named and not its consequence.
struct Farewell {
  uint32_t protocol;
  char reason[256];
};

struct Deadline {
  Clock::time_point end;
  explicit Deadline(double seconds)
      : end(Clock::now() +
            std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds))) {}
  bool passed() const { return Clock::now() >= end; }
};

std::string seconds_text(double seconds) {
  char text[32];
  std::snprintf(text, sizeof(text), "%g s", seconds);
  return text;
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

struct Guest {
  Descriptor socket;
  Descriptor alive;
  uint32_t pid = 0;
};

// Rank 0's side: who has come, and who has connected without having said a word.
struct Lobby {
  const Party& party;
  std::vector<Guest> guests;
  std::vector<Descriptor> silent;
};

std::string who(const Party& party, int rank, uint32_t pid) {
  return "rank " + std::to_string(party.labels[rank]) + " (pid " + std::to_string(pid) + ")";
}

std::string me(const Party& party) {
  return who(party, party.rank, static_cast<uint32_t>(getpid()));
}

std::string missing_ranks(const Lobby& lobby) {
  std::string text;
  for (size_t r = 1; r < lobby.guests.size(); ++r) {
    if (lobby.guests[r].socket.value >= 0) continue;
    text += (text.empty() ? "" : ", ") + std::to_string(lobby.party.labels[r]);
  }
  return text;
}

void refuse(const Lobby& lobby, const std::string& why) {
  Welcome welcome{};
  welcome.protocol = kProtocol;
  std::strncpy(welcome.refusal, why.c_str(), sizeof(welcome.refusal) - 1);
  for (const Guest& guest : lobby.guests) {
    if (guest.socket.value >= 0) {
      send(guest.socket.value, &welcome, sizeof(welcome), MSG_NOSIGNAL | MSG_DONTWAIT);
    }
  }
}

// Hears out one connection that has something to say; returns the reason to give up, or "".
std::string admit(Lobby* lobby, Descriptor socket) {
  const Party& party = lobby->party;
  const uint32_t pid = peer_pid(socket.value);
  Hello hello{};
  std::vector<Descriptor> alive;
  if (!receive_with(socket.value, &hello, sizeof(hello), &alive) || hello.protocol != kProtocol ||
      pid == 0 || alive.size() != 1 || hello.rank < 1) {
    return "";  // a stranger: drop it
  }
  if (hello.size != party.size || hello.half_bytes != party.half_bytes ||
      hello.rank >= party.size) {
    const std::string why = "rank " + std::to_string(hello.rank) + " (pid " + std::to_string(pid) +
                            ") expects " + std::to_string(hello.size) + " ranks, " + me(party) +
                            " expects " + std::to_string(party.size) +
                            "; start all ranks with one launcher";
    Guest stray;
    stray.socket = std::move(socket);
    lobby->guests.push_back(std::move(stray));  // to be told why
    return why;
  }
  Guest& guest = lobby->guests[hello.rank];
  if (guest.socket.value >= 0) {
    return "pids " + std::to_string(guest.pid) + " and " + std::to_string(pid) +
           " both say they are rank " + std::to_string(party.labels[hello.rank]);
  }
  guest.socket = std::move(socket);
  guest.alive = std::move(alive[0]);
  guest.pid = pid;
  return "";
}

// Waits for one slice, then takes connections and whatever they say.
std::string receive_guests(Lobby* lobby, int listener) {
  std::vector<pollfd> watched{{listener, POLLIN, 0}};
  for (const Descriptor& each : lobby->silent) watched.push_back({each.value, POLLIN, 0});
  if (poll(watched.data(), watched.size(), kSliceMs) <= 0) return "";
  for (size_t i = watched.size() - 1; i > 0; --i) {
    if (watched[i].revents == 0) continue;
    Descriptor socket = std::move(lobby->silent[i - 1]);
    lobby->silent.erase(lobby->silent.begin() + static_cast<ptrdiff_t>(i - 1));
    const std::string trouble = admit(lobby, std::move(socket));
    if (!trouble.empty()) return trouble;
  }
  if (watched[0].revents != 0) {
    Descriptor socket(accept4(listener, nullptr, nullptr, SOCK_CLOEXEC));
    if (socket.value >= 0) lobby->silent.push_back(std::move(socket));
  }
  return "";
}

// A rank that left while others were still expected.
std::string find_dead(const Lobby& lobby) {
  for (size_t r = 1; r < lobby.guests.size(); ++r) {
    const Guest& guest = lobby.guests[r];
    if (guest.socket.value < 0 || !readable(guest.socket.value, 0)) continue;
    Farewell farewell{};
    std::vector<Descriptor> none;
    if (receive_with(guest.socket.value, &farewell, sizeof(farewell), &none) &&
        farewell.protocol == kProtocol) {
      return farewell.reason;
    }
    return who(lobby.party, static_cast<int>(r), guest.pid) + " died while ranks met";
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

// Waits until all have come. Throws PeerFailure, and whatever the watch throws.
void gather_guests(Lobby* lobby, int listener) {
  const Party& party = lobby->party;
  const Deadline deadline(party.timeout_s);
  for (std::string missing; !(missing = missing_ranks(*lobby)).empty(); party.watch()) {
    std::string trouble = receive_guests(lobby, listener);
    if (trouble.empty()) trouble = find_dead(*lobby);
    if (trouble.empty() && deadline.passed()) {
      const bool one = missing.find(',') == std::string::npos;
      trouble = me(party) + " waited " + seconds_text(party.timeout_s) + " in connect for " +
                (one ? "rank " : "ranks ") + missing + ", which did not come";
    }
    if (!trouble.empty()) throw PeerFailure(trouble);
  }
}

Meeting host(const Party& party) {
  Descriptor listener = listen_on(party.session, party.size);
  auto [alive, own_end] = make_liveness();
  Segment segment = Segment::create(party.size, party.half_bytes);
  segment.reserve_halves(0);
  Lobby lobby{party, std::vector<Guest>(party.size), {}};
  try {
    gather_guests(&lobby, listener.value);
  } catch (const std::exception& error) {
    refuse(lobby, error.what());
    throw;
  }
  Welcome welcome{};
  welcome.protocol = kProtocol;
  welcome.ok = 1;
  welcome.nonce = segment.header().nonce;
  welcome.pids[0] = static_cast<uint32_t>(getpid());
  std::vector<int> handed{segment.descriptor(), alive.value};
  for (int r = 1; r < party.size; ++r) {
    welcome.pids[r] = lobby.guests[r].pid;
    handed.push_back(lobby.guests[r].alive.value);
  }
  for (int r = 1; r < party.size; ++r) {
    send_with(lobby.guests[r].socket.value, &welcome, sizeof(welcome), handed);
  }
  Meeting meeting{std::move(segment), std::vector<int>(party.size, -1), {}, own_end.release()};
  meeting.pids.assign(welcome.pids, welcome.pids + party.size);
  for (int r = 1; r < party.size; ++r) meeting.alive[r] = lobby.guests[r].alive.release();
  return meeting;
}

Descriptor call(const Party& party, const Deadline& deadline) {
  sockaddr_un address;
  const socklen_t length = make_address(party.session, &address);
  for (;;) {
    Descriptor line(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    if (line.value < 0) throw SetupError(std::string("socket: ") + std::strerror(errno));
    if (connect(line.value, reinterpret_cast<sockaddr*>(&address), length) == 0) return line;
    if (errno != ECONNREFUSED && errno != EAGAIN && errno != EINTR) {
      throw SetupError("session " + party.session + " can't be reached: " + std::strerror(errno));
    }
    if (deadline.passed()) {
      throw PeerFailure(me(party) + " waited " + seconds_text(party.timeout_s) +
                        " in connect for rank " + std::to_string(party.labels[0]) +
                        ", which did not come");
    }
    party.watch();
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
}

void await_answer(const Party& party, int line, const std::string& host) {
  const Deadline deadline(party.timeout_s + kPatienceS);
  try {
    while (!readable(line, kSliceMs)) {
      if (deadline.passed()) {
        throw PeerFailure(me(party) + " waited " + seconds_text(party.timeout_s) +
                          " in connect for " + host);
      }
      party.watch();
    }
  } catch (const std::exception& error) {
    Farewell farewell{kProtocol, {}};
    std::strncpy(farewell.reason, error.what(), sizeof(farewell.reason) - 1);
    send(line, &farewell, sizeof(farewell), MSG_NOSIGNAL | MSG_DONTWAIT);
    throw;
  }
}

Meeting visit(const Party& party) {
  Descriptor line = call(party, Deadline(party.timeout_s));
  auto [alive, own_end] = make_liveness();
  const Hello hello{kProtocol, party.rank, party.size, static_cast<uint32_t>(getpid()),
                    party.half_bytes};
  send_with(line.value, &hello, sizeof(hello), {alive.value});
  const std::string host = who(party, 0, peer_pid(line.value));
  await_answer(party, line.value, host);
  Welcome welcome{};
  std::vector<Descriptor> handed;
  if (!receive_with(line.value, &welcome, sizeof(welcome), &handed) ||
      welcome.protocol != kProtocol) {
    party.watch();  // knows more where the ranks have met before
    throw PeerFailure(me(party) + ": " + host + " died or refused while ranks met");
  }
  if (!welcome.ok) throw PeerFailure(welcome.refusal);
  if (handed.size() != static_cast<size_t>(party.size) + 1) {
    throw SetupError(me(party) + " got " + std::to_string(handed.size()) + " of " +
                     std::to_string(party.size + 1) + " descriptors; raise ulimit -n");
  }
  Meeting meeting{Segment::map(handed[0].release(), party.size, party.half_bytes, welcome.nonce),
                  std::vector<int>(party.size, -1),
                  {},
                  own_end.release()};
  meeting.segment.reserve_halves(party.rank);
  meeting.pids.assign(welcome.pids, welcome.pids + party.size);
  for (int r = 0; r < party.size; ++r) {
    if (r != party.rank) meeting.alive[r] = handed[r + 1].release();
  }
  return meeting;
}

}  // namespace

Meeting meet(const Party& party) { return party.rank == 0 ? host(party) : visit(party); }

}  // namespace lcal
