#pragma once

#include <sstream>
#include <string>
#include <utility>
#include <variant>

#include <executorch/runtime/core/error.h>

namespace etshared::runtime {

namespace et = ::executorch::runtime;

/// What went wrong; the Python layer has one error class for each.
enum class FailureKind {
  kInput,
  kSessionPoisoned,
  kStateMismatch,
  kProgramFormat,
  kContextFormat,
  kExecutorch,
  kUnsupported,
};

struct Failure {
  FailureKind kind;
  std::string message;
  std::string method_name = {};
  et::Error code = et::Error::Internal;
};

/// A value, or why there is none. ExecuTorch's own Result carries a code only.
template <typename T>
class [[nodiscard]] Outcome {
 public:
  /* implicit */ Outcome(T value) : content_(std::move(value)) {}
  /* implicit */ Outcome(Failure failure) : content_(std::move(failure)) {}

  bool ok() const {
    return content_.index() == 0;
  }
  T& value() {
    return *std::get_if<0>(&content_);
  }
  Failure& failure() {
    return *std::get_if<1>(&content_);
  }

 private:
  std::variant<T, Failure> content_;
};

using Status = Outcome<std::monostate>;

inline Status success() {
  return std::monostate{};
}

template <typename... Parts>
std::string concat(const Parts&... parts) {
  std::ostringstream out;
  (out << ... << parts);
  return std::move(out).str();
}

inline std::string quoted(std::string_view name) {
  return concat('\'', name, '\'');
}

#define ETSHARED_RETURN_IF_FAILED(expression)        \
  do {                                               \
    auto outcome_ = (expression);                    \
    if (!outcome_.ok()) {                            \
      return std::move(outcome_.failure());          \
    }                                                \
  } while (0)

} // namespace etshared::runtime
