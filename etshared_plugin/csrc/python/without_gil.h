#pragma once

#include <Python.h>

namespace etshared::runtime {

/// Lets go of the GIL as long as it lives.
///
/// Before 3.14 CPython ends a daemon thread that takes the GIL while the
/// interpreter shuts down by unwinding it, which C++ forbids. Such a thread
/// waits here for the end of the process instead.
class WithoutGil {
 public:
  WithoutGil() : state_(PyEval_SaveThread()) {}
  ~WithoutGil();
  WithoutGil(const WithoutGil&) = delete;
  WithoutGil& operator=(const WithoutGil&) = delete;

 private:
  PyThreadState* state_;
};

} // namespace etshared::runtime
