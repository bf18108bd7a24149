#include "passing.h"

#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstddef>
#include <cstring>

#include "error.h"
#include "segment.h"

namespace lcal {

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

}  // namespace lcal
