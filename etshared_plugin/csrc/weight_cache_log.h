#pragma once

#include <array>
#include <string>
#include <string_view>

namespace etshared::runtime {

/// While one lives, XNNPACK's weight cache does not report from this thread
/// what it opens, packs and saves, nor what it may not open or lock for writing:
/// that would be lines on stderr for every session. All other logging goes where it
/// went. One per thread at a time.
class QuietWeightCache {
 public:
  QuietWeightCache();
  ~QuietWeightCache();
  QuietWeightCache(const QuietWeightCache&) = delete;
  QuietWeightCache& operator=(const QuietWeightCache&) = delete;

  /// The first error that the cache has reported from this thread, which it may
  /// have made up for by keeping something elsewhere than in its file; empty
  /// when there was none.
  std::string first_error() const {
    return std::string(error_.data(), error_length_);
  }

  /// Takes an error's text, without allocating: memory may have run out.
  void note_error(std::string_view text);

 private:
  std::array<char, 200> error_;
  size_t error_length_ = 0;
};

} // namespace etshared::runtime
