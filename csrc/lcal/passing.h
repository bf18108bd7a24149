// Packets over an abstract unix socket, with open files as part of them.
#pragma once

#include <sys/un.h>
#include <unistd.h>

#include <string>
#include <vector>

namespace lcal {

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

// The address of a session: a name that lives as long as the socket. Throws SetupError.
socklen_t make_address(const std::string& session, sockaddr_un* address);

// Throws PeerFailure when nobody is there to receive it.
void send_with(int socket, const void* data, size_t bytes, const std::vector<int>& descriptors);

// Receives one packet; false when the peer has closed. Packets arrive whole (SOCK_SEQPACKET).
bool receive_with(int socket, void* data, size_t bytes, std::vector<Descriptor>* descriptors);

bool readable(int descriptor, int timeout_ms);

// Who is at the other end; 0 for another user.
uint32_t peer_pid(int socket);

}  // namespace lcal
