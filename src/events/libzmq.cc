#include "events/libzmq.h"

#include "env/dynamic_library.h"

namespace quire::events {
namespace {

Result<Libzmq> Load() {
  QUIRE_ASSIGN(const DynamicLibrary library, DynamicLibrary::Load("libzmq.so.5", "libzmq5"));
  Libzmq zmq{};
  QUIRE_TRY(library.Find("zmq_bind", zmq.bind));
  QUIRE_TRY(library.Find("zmq_close", zmq.close));
  QUIRE_TRY(library.Find("zmq_connect", zmq.connect));
  QUIRE_TRY(library.Find("zmq_ctx_new", zmq.ctx_new));
  QUIRE_TRY(library.Find("zmq_ctx_term", zmq.ctx_term));
  QUIRE_TRY(library.Find("zmq_errno", zmq.last_errno));
  QUIRE_TRY(library.Find("zmq_getsockopt", zmq.getsockopt));
  QUIRE_TRY(library.Find("zmq_poll", zmq.poll));
  QUIRE_TRY(library.Find("zmq_recv", zmq.recv));
  QUIRE_TRY(library.Find("zmq_send", zmq.send));
  QUIRE_TRY(library.Find("zmq_setsockopt", zmq.setsockopt));
  QUIRE_TRY(library.Find("zmq_socket", zmq.socket));
  QUIRE_TRY(library.Find("zmq_strerror", zmq.strerror));
  return zmq;
}

}  // namespace

Result<const Libzmq*> LoadLibzmq() {
  static const Result<Libzmq> loaded = Load();
  if (!loaded) return std::unexpected(loaded.error());
  return &*loaded;
}

}  // namespace quire::events
