#include "python/without_gil.h"

#include <unistd.h>

namespace etshared::runtime {

WithoutGil::~WithoutGil() {
  try {
    PyEval_RestoreThread(state_);
  } catch (...) {
    // The unwinding that ends a thread; going on with it would end the process.
    while (true) {
      ::pause();
    }
  }
}

} // namespace etshared::runtime
