// libzmq, loaded when it is first needed: with it come a dozen libraries, which a program that
// publishes no events neither loads nor has to install.
#ifndef QUIRE_EVENTS_LIBZMQ_H_
#define QUIRE_EVENTS_LIBZMQ_H_

#include <zmq.h>

#include "quire/error.h"

namespace quire::events {

/// The functions of libzmq that are used, by their names without the prefix.
struct Libzmq {
  decltype(&::zmq_bind) bind;
  decltype(&::zmq_close) close;
  decltype(&::zmq_connect) connect;
  decltype(&::zmq_ctx_new) ctx_new;
  decltype(&::zmq_ctx_term) ctx_term;
  decltype(&::zmq_errno) last_errno;
  decltype(&::zmq_getsockopt) getsockopt;
  decltype(&::zmq_poll) poll;
  decltype(&::zmq_recv) recv;
  decltype(&::zmq_send) send;
  decltype(&::zmq_setsockopt) setsockopt;
  decltype(&::zmq_socket) socket;
  decltype(&::zmq_strerror) strerror;
};

/// Loads it at the first call.
///
/// Errors:  kUnsupported the library or one of these functions is missing
/// Threads: any
Result<const Libzmq*> LoadLibzmq();

}  // namespace quire::events

#endif  // QUIRE_EVENTS_LIBZMQ_H_
