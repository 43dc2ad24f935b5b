#include "remote/socket.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <system_error>
#include <utility>

namespace quire::remote {
namespace {

std::string ErrnoText(int error) { return std::generic_category().message(error); }

std::string TlsError() {
  std::array<char, 256> text{};
  ERR_error_string_n(ERR_get_error(), text.data(), text.size());
  ERR_clear_error();
  return text.data();
}

bool IsNotNow(int error) { return error == EAGAIN || error == EWOULDBLOCK || error == EINTR; }

}  // namespace

Result<std::unique_ptr<TlsContext>> TlsContext::Create(const std::string& ca_file) {
  auto context = std::unique_ptr<TlsContext>(new TlsContext(SSL_CTX_new(TLS_client_method())));
  SSL_CTX* const made = context->get();
  if (made == nullptr) return Fail(ErrorCode::kIo, fmt::format("TLS: {}", TlsError()));
  SSL_CTX_set_min_proto_version(made, TLS1_2_VERSION);
  SSL_CTX_set_verify(made, SSL_VERIFY_PEER, nullptr);
  SSL_CTX_set_mode(made, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
  const int loaded = ca_file.empty()
                         ? SSL_CTX_set_default_verify_paths(made)
                         : SSL_CTX_load_verify_locations(made, ca_file.c_str(), nullptr);
  if (loaded != 1) {
    return Fail(ErrorCode::kNotFound, fmt::format("{}: no certificates: {}", ca_file, TlsError()));
  }
  return context;
}

TlsContext::~TlsContext() { SSL_CTX_free(context_); }

void Socket::Fail(std::string why) {
  Close();
  failure_ = std::move(why);
}

void Socket::Close() {
  if (tls_ != nullptr) SSL_free(std::exchange(tls_, nullptr));
  if (descriptor_ >= 0) close(std::exchange(descriptor_, -1));
  state_ = State::kFailed;
  connected_ = false;
  wants_write_ = false;
}

void Socket::Connect(const HostAndPort& to, const TlsContext* tls) {
  Close();
  addrinfo hints{};
  hints.ai_flags = AI_NUMERICSERV;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const std::string port = std::to_string(to.port);
  if (const int error = getaddrinfo(to.host.c_str(), port.c_str(), &hints, &found); error != 0) {
    return Fail(fmt::format("{}: {}", to.host, gai_strerror(error)));
  }
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> addresses(found, &freeaddrinfo);
  int error = 0;
  for (const addrinfo* address = found; address != nullptr; address = address->ai_next) {
    descriptor_ = socket(address->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (descriptor_ < 0) {
      error = errno;
      continue;
    }
    const int now = 1;
    setsockopt(descriptor_, IPPROTO_TCP, TCP_NODELAY, &now, sizeof(now));
    if (connect(descriptor_, address->ai_addr, address->ai_addrlen) == 0 || errno == EINPROGRESS) {
      state_ = State::kConnecting;
      wants_write_ = true;
      break;
    }
    error = errno;
    close(std::exchange(descriptor_, -1));
  }
  if (descriptor_ < 0) return Fail(ErrnoText(error));
  if (tls == nullptr) return;
  tls_ = SSL_new(tls->get());
  if (tls_ == nullptr || SSL_set_fd(tls_, descriptor_) != 1) return Fail(TlsError());
  in6_addr numeric{};
  const bool is_address = inet_pton(AF_INET, to.host.c_str(), &numeric) == 1 ||
                          inet_pton(AF_INET6, to.host.c_str(), &numeric) == 1;
  if (is_address) {
    X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(tls_), to.host.c_str());
  } else {
    SSL_set_tlsext_host_name(tls_, to.host.c_str());
    SSL_set1_host(tls_, to.host.c_str());
  }
}

// True: it is to be tried again when the descriptor is ready. False: it has failed.
bool Socket::Retry(int result) {
  const int error = SSL_get_error(tls_, result);
  wants_write_ = error == SSL_ERROR_WANT_WRITE;
  if (error == SSL_ERROR_WANT_READ || error == SSL_ERROR_WANT_WRITE) return true;
  const long verified = SSL_get_verify_result(tls_);
  if (verified != X509_V_OK) {
    Fail(fmt::format("its certificate is not believed: {}",
                     X509_verify_cert_error_string(verified)));
  } else {
    Fail(error == SSL_ERROR_ZERO_RETURN ? "it hung up" : "TLS: " + TlsError());
  }
  return false;
}

void Socket::Step() {
  if (state_ != State::kConnecting) return;
  if (!connected_) {
    int error = 0;
    socklen_t bytes = sizeof(error);
    getsockopt(descriptor_, SOL_SOCKET, SO_ERROR, &error, &bytes);
    if (error != 0) return Fail(ErrnoText(error));
    connected_ = true;
    wants_write_ = false;
  }
  if (tls_ != nullptr) {
    ERR_clear_error();
    const int result = SSL_connect(tls_);
    if (result != 1) {
      Retry(result);
      return;
    }
  }
  state_ = State::kOpen;
  wants_write_ = false;
}

bool Socket::has_pending() const { return tls_ != nullptr && SSL_pending(tls_) > 0; }

size_t Socket::Read(std::span<std::byte> into) {
  if (state_ != State::kOpen || into.empty()) return 0;
  if (tls_ != nullptr) {
    size_t bytes = 0;
    ERR_clear_error();
    const int result = SSL_read_ex(tls_, into.data(), into.size(), &bytes);
    if (result != 1) Retry(result);
    return bytes;
  }
  const ssize_t bytes = recv(descriptor_, into.data(), into.size(), 0);
  if (bytes > 0) return static_cast<size_t>(bytes);
  if (bytes == 0) {
    Fail("it hung up");
  } else if (!IsNotNow(errno)) {
    Fail(ErrnoText(errno));
  }
  return 0;
}

size_t Socket::Write(std::span<const std::byte> from) {
  if (state_ != State::kOpen || from.empty()) return 0;
  if (tls_ != nullptr) {
    size_t bytes = 0;
    ERR_clear_error();
    const int result = SSL_write_ex(tls_, from.data(), from.size(), &bytes);
    if (result != 1) Retry(result);
    return bytes;
  }
  const ssize_t bytes = send(descriptor_, from.data(), from.size(), MSG_NOSIGNAL);
  if (bytes >= 0) return static_cast<size_t>(bytes);
  if (!IsNotNow(errno)) Fail(ErrnoText(errno));
  return 0;
}

}  // namespace quire::remote
