/* Datagrams many at once. */
#pragma once
#include <arpa/inet.h>
#include <cerrno>
#include <ctime>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>

namespace sumwire::packets {

constexpr int BATCH = 64;
constexpr int SOCKET_BUFFER = 8 << 20;

inline uint64_t now_ns() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return uint64_t(t.tv_sec) * 1000000000 + uint64_t(t.tv_nsec);
}

inline sockaddr_in address_of(uint32_t address, uint16_t port) {
  sockaddr_in out{};
  out.sin_family = AF_INET;
  out.sin_addr.s_addr = address;
  out.sin_port = htons(port);
  return out;
}

/* A UDP socket with room for windows of packets; -1 with errno. */
inline int open_socket(uint32_t address, uint16_t port) {
  int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return -1;
  int size = SOCKET_BUFFER;
  /* The first needs a privilege, the second is capped by the system; neither is needed. */
  if (setsockopt(fd, SOL_SOCKET, SO_RCVBUFFORCE, &size, sizeof size))
    setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &size, sizeof size);
  if (setsockopt(fd, SOL_SOCKET, SO_SNDBUFFORCE, &size, sizeof size))
    setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &size, sizeof size);
  int never = IP_PMTUDISC_DO; /* fragments: aggregators in the kernel do not take them */
  setsockopt(fd, IPPROTO_IP, IP_MTU_DISCOVER, &never, sizeof never);
  sockaddr_in where = address_of(address, port);
  if (bind(fd, reinterpret_cast<sockaddr *>(&where), sizeof where)) {
    int error = errno;
    close(fd);
    errno = error;
    return -1;
  }
  return fd;
}

/* Packets to send: headers are copied, bodies are not. */
class Outbox {
public:
  explicit Outbox(int fd) : fd_(fd) {}

  /* `padding` zero bytes follow the body. */
  void put(const sw_header &header, const void *body, size_t length, size_t padding, const sockaddr_in &to) {
    if (count_ == BATCH) flush();
    headers_[count_] = header;
    to_[count_] = to;
    iovec *parts = parts_[count_];
    parts[0] = {&headers_[count_], sizeof header};
    parts[1] = {const_cast<void *>(body), length};
    parts[2] = {const_cast<uint8_t *>(zeros_), padding};
    msghdr &message = messages_[count_].msg_hdr;
    message = msghdr{};
    message.msg_name = &to_[count_];
    message.msg_namelen = sizeof to;
    message.msg_iov = parts;
    message.msg_iovlen = padding ? 3 : length ? 2 : 1;
    count_++;
  }

  /* Send all. What the socket has no room for is lost, as it might be on the way. */
  void flush() {
    for (int sent = 0; sent < count_;) {
      int done = sendmmsg(fd_, messages_ + sent, unsigned(count_ - sent), 0);
      if (done < 0 && errno == EINTR) continue;
      if (done < 0) {
        if (errno == EMSGSIZE || errno == EINVAL || errno == EACCES) error = errno;
        failures++;
        done = 1;
      }
      sent += done;
    }
    count_ = 0;
  }

  int error = 0; /* of a packet that cannot be sent, however often; links that are down come back */
  uint64_t failures = 0;

private:
  static constexpr uint8_t zeros_[SW_BODY_9000] = {};
  int fd_;
  int count_ = 0;
  sw_header headers_[BATCH];
  sockaddr_in to_[BATCH];
  iovec parts_[BATCH][3];
  mmsghdr messages_[BATCH];
};

/* Packets that have come. */
class Inbox {
public:
  struct Packet {
    const sw_header *header;
    const uint8_t *body;
    uint32_t length; /* of the datagram */
    sockaddr_in from;
  };

  Inbox() {
    for (int k = 0; k < BATCH; k++) {
      parts_[k] = {data_[k], sizeof data_[k]};
      messages_[k].msg_hdr.msg_iov = &parts_[k];
      messages_[k].msg_hdr.msg_iovlen = 1;
      messages_[k].msg_hdr.msg_name = &from_[k];
    }
  }

  /* How many are here now; 0 if none, -1 with errno. */
  int receive(int fd) {
    for (mmsghdr &message : messages_) message.msg_hdr.msg_namelen = sizeof(sockaddr_in);
    int got = recvmmsg(fd, messages_, BATCH, MSG_DONTWAIT, nullptr);
    if (got < 0 && (errno == EAGAIN || errno == EINTR || errno == ECONNREFUSED)) return 0;
    return got;
  }

  Packet operator[](int k) const {
    return {reinterpret_cast<const sw_header *>(data_[k]), data_[k] + SW_HEADER, messages_[k].msg_len, from_[k]};
  }

private:
  alignas(8) uint8_t data_[BATCH][SW_HEADER + SW_BODY_9000 + 64];
  sockaddr_in from_[BATCH];
  iovec parts_[BATCH];
  mmsghdr messages_[BATCH] = {};
};

} // namespace sumwire::packets
