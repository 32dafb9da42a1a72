// A client that sends what it is told, byte by byte if need be, and reads answers with a deadline.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <vector>

namespace peregrine::test {

struct Answer {
  int status = 0;  // 0: the connection ended without one
  std::string head, body;
  bool ended_cleanly = false;  // by its length or its last chunk
  nlohmann::json json() const { return nlohmann::json::parse(body); }
  std::string header(const std::string& name) const {
    const size_t at = head.find("\r\n" + name + ": ");
    if (at == head.npos) return {};
    const size_t begin = at + name.size() + 4;
    return head.substr(begin, head.find("\r\n", begin) - begin);
  }
  // The data of each event of a stream.
  std::vector<std::string> events() const {
    std::vector<std::string> all;
    size_t at = 0;
    for (size_t end; (end = body.find("\n\n", at)) != body.npos; at = end + 2)
      if (body.compare(at, 6, "data: ") == 0) all.push_back(body.substr(at + 6, end - at - 6));
    return all;
  }
};

class Client {
 public:
  // `receive_bytes`: size of the socket's buffer; 0: the system's.
  explicit Client(int port, int receive_bytes = 0) : fd_(socket(AF_INET, SOCK_STREAM, 0)) {
    if (receive_bytes > 0)
      setsockopt(fd_, SOL_SOCKET, SO_RCVBUF, &receive_bytes, sizeof receive_bytes);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0)
      throw std::runtime_error("cannot connect");
  }
  ~Client() { disconnect(); }
  Client(const Client&) = delete;

  void disconnect() {
    if (fd_ >= 0) close(fd_);
    fd_ = -1;
  }
  // Drops the connection without a word of goodbye (RST).
  void reset() {
    const linger at_once{1, 0};
    if (fd_ >= 0) setsockopt(fd_, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
    disconnect();
  }

  // False: the server has closed its side.
  bool send(const std::string& bytes) {
    size_t sent = 0;
    while (sent < bytes.size()) {
      const ssize_t n = ::send(fd_, bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL);
      if (n <= 0) return false;
      sent += static_cast<size_t>(n);
    }
    return true;
  }

  // More bytes into the buffer; false at the end of the stream.
  bool read_some() {
    pollfd p{fd_, POLLIN, 0};
    if (poll(&p, 1, kDeadlineMs) <= 0) throw std::runtime_error("no answer in time");
    char block[65536];
    const ssize_t n = recv(fd_, block, sizeof block, 0);
    if (n <= 0) return false;
    buffer_.append(block, static_cast<size_t>(n));
    return true;
  }
  // Until the buffer holds `text`; false at the end of the stream.
  bool read_until(const std::string& text) {
    while (buffer_.find(text) == buffer_.npos)
      if (!read_some()) return false;
    return true;
  }
  // The same, and forgets the buffer up to behind `text`.
  bool read_past(const std::string& text) {
    if (!read_until(text)) return false;
    buffer_.erase(0, buffer_.find(text) + text.size());
    return true;
  }
  // True when the server closes without sending anything more.
  bool closed() {
    while (read_some()) {
    }
    return buffer_.empty();
  }

  Answer receive() {
    Answer answer;
    if (!read_until("\r\n\r\n")) return answer;
    const size_t end = buffer_.find("\r\n\r\n");
    answer.head = buffer_.substr(0, end + 2);
    buffer_.erase(0, end + 4);
    answer.status = std::stoi(answer.head.substr(9, 3));
    if (answer.status == 100) return receive();
    if (answer.header("Transfer-Encoding") == "chunked") {
      receive_chunks(answer);
    } else if (const std::string length = answer.header("Content-Length"); !length.empty()) {
      const size_t size = std::stoul(length);
      while (buffer_.size() < size && read_some()) {
      }
      answer.ended_cleanly = buffer_.size() >= size;
      answer.body = buffer_.substr(0, size);
      buffer_.erase(0, size);
    } else {
      while (read_some()) {
      }
      answer.body = std::exchange(buffer_, {});
    }
    return answer;
  }

  Answer post(const std::string& path, const std::string& body, const std::string& headers = {}) {
    send("POST " + path + " HTTP/1.1\r\nHost: t\r\nContent-Type: application/json\r\n" + headers +
         "Content-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body);
    return receive();
  }
  Answer get(const std::string& path, const std::string& headers = {}) {
    send("GET " + path + " HTTP/1.1\r\nHost: t\r\n" + headers + "\r\n");
    return receive();
  }

 private:
  static constexpr int kDeadlineMs = 120000;

  void receive_chunks(Answer& answer) {
    for (;;) {
      if (!read_until("\r\n")) return;
      const size_t line = buffer_.find("\r\n");
      const size_t size = std::stoul(buffer_.substr(0, line), nullptr, 16);
      while (buffer_.size() < line + 2 + size + 2)
        if (!read_some()) return;
      answer.body += buffer_.substr(line + 2, size);
      buffer_.erase(0, line + 2 + size + 2);
      if (size == 0) {
        answer.ended_cleanly = true;
        return;
      }
    }
  }

  int fd_;
  std::string buffer_;
};

}  // namespace peregrine::test
