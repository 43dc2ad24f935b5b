// Events and answers: what an engine says to a prompt, one after the other.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "handles.h"

namespace quire::python {
namespace {

constexpr Name<quire_finish> kFinishes[] = {{"length", QUIRE_FINISH_LENGTH},
                                            {"stop", QUIRE_FINISH_STOP},
                                            {"no_space", QUIRE_FINISH_NO_SPACE},
                                            {"cancelled", QUIRE_FINISH_CANCELLED}};

Event EventOf(const quire_event& of_c, std::string text) {
  Event event{.kind = "progress", .text = std::move(text)};
  event.prompt_done = of_c.prompt_done;
  event.prompt_tokens = of_c.prompt_tokens;
  if (of_c.kind == QUIRE_EVENT_TOKEN) {
    event.kind = "token";
    event.token = of_c.token;
  } else if (of_c.kind == QUIRE_EVENT_DONE) {
    event.kind = "done";
    event.reused_tokens = of_c.reused_tokens;
    event.loaded_tokens = of_c.loaded_tokens;
    event.generated_tokens = of_c.generated_tokens;
    event.dropped_tokens = of_c.dropped_tokens;
    event.retained_tokens = of_c.retained_tokens;
    event.approximate_tokens = of_c.approximate_tokens;
    event.approximate_error = static_cast<double>(of_c.approximate_error_ppm) * 1e-6;
    for (const Name<quire_finish>& finish : kFinishes) {
      if (finish.value == of_c.finish) event.finish = finish.name;
    }
  }
  return event;
}

Event Next(PyAnswer& self) {
  if (self.is_over) throw nb::stop_iteration();
  const auto talk = self.get();
  quire_event of_c{};
  of_c.size = sizeof of_c;
  quire_error error{};
  quire_code code = QUIRE_OK;
  std::string text;
  {
    const GilFree free;
    const std::lock_guard one(talk->turn);
    code = quire_session_next(talk->session, &of_c, &error);
    if (code == QUIRE_OK) text = of_c.text;
  }
  if (code != QUIRE_OK) self.is_over = true;
  Check(code, error);
  Event event = EventOf(of_c, std::move(text));
  self.text += event.text;
  if (event.kind == "token") self.tokens.push_back(event.token);
  if (event.kind == "done") {
    self.is_over = true;
    self.done = event;
  }
  return event;
}

Event Read(PyAnswer& self) {
  while (!self.is_over) {
    Next(self);
    if (PyErr_CheckSignals() != 0) throw nb::python_error();
  }
  if (!self.done) Raise(ErrorCode::kInvalidArgument, "the answer failed before");
  return *self.done;
}

void Cancel(const PyAnswer& self) {
  const auto talk = self.get();
  const GilFree free;
  quire_error error{};
  Check(quire_session_cancel(talk->session, &error), error);
}

// A turn that is not heard to its end would keep its session busy.
void CloseAnswer(PyAnswer& self) {
  if (self.closed() || !self.is_here()) return self.Close();
  if (!self.is_over) {
    Cancel(self);
    try {
      Read(self);
    } catch (const Failure&) {  // it failed, so it has ended
    }
  }
  self.Close();
}

}  // namespace

void BindEvent(nb::module_& module) {
  nb::class_<Event>(module, "Event",
                    "What an answer says: kind \"progress\" (prompt_done of prompt_tokens are "
                    "read), \"token\" (token, and the characters that it completes as text), or "
                    "\"done\" (the rest). Units: tokens.")
      .def_ro("kind", &Event::kind)
      .def_ro("text", &Event::text)
      .def_ro("token", &Event::token)
      .def_ro("prompt_done", &Event::prompt_done)
      .def_ro("prompt_tokens", &Event::prompt_tokens)
      .def_ro("reused_tokens", &Event::reused_tokens)
      .def_ro("loaded_tokens", &Event::loaded_tokens)
      .def_ro("generated_tokens", &Event::generated_tokens)
      .def_ro("dropped_tokens", &Event::dropped_tokens)
      .def_ro("retained_tokens", &Event::retained_tokens)
      .def_ro("approximate_tokens", &Event::approximate_tokens)
      .def_ro("approximate_error", &Event::approximate_error)
      .def_ro("finish", &Event::finish)
      .def("__repr__", [](const Event& self) {
        if (self.kind == "token")
          return "<quire.engine.Event: token " + std::to_string(self.token) + ">";
        return "<quire.engine.Event: " + self.kind + ">";
      });
}

void BindAnswer(nb::module_& module) {
  nb::class_<PyAnswer>(module, "Answer",
                       "The answer to one prompt, as it is generated: an iterator of Event. "
                       "Threads: any, one after the other; cancel() beside one that waits.")
      .def(
          "__iter__", [](nb::object self) { return self; }, nb::sig("def __iter__(self) -> Answer"))
      .def("__next__", &Next, "Waits for the next event. Raises: what made it fail.")
      .def("read", &Read,
           "Hears it to its end and returns the last event; text and tokens have the rest. Raises: "
           "what made it fail.")
      .def("cancel", &Cancel, "Ends it soon: a last event follows, and a session is as before.")
      .def_ro("text", &PyAnswer::text, "What it said so far.")
      .def_ro("tokens", &PyAnswer::tokens, "The same as token ids.")
      .def_ro("done", &PyAnswer::done, "Its last event, when it has come.")
      .def("close", &CloseAnswer, "Cancels what was not heard; twice is once.")
      .def(
          "__enter__", [](nb::object self) { return self; },
          nb::sig("def __enter__(self) -> Answer"))
      .def(
          "__exit__", [](PyAnswer& self, const nb::args&) { CloseAnswer(self); },
          nb::sig("def __exit__(self, *_: object) -> None"))
      .def("__repr__", [](const PyAnswer& self) {
        return self.Repr("engine.Answer", [&](const TalkState&) {
          return std::to_string(self.tokens.size()) + " tokens" + (self.is_over ? ", over" : "");
        });
      });
}

}  // namespace quire::python
