#pragma once

#include <array>
#include <string>
#include <string_view>

namespace etshared::runtime {

/// A text of bounded length that is kept without allocating: memory may have run
/// out where it comes from.
class KeptText {
 public:
  bool is_empty() const {
    return length_ == 0;
  }
  std::string_view view() const {
    return {text_.data(), length_};
  }
  void keep(std::string_view text) {
    length_ = text.copy(text_.data(), text_.size());
  }

 private:
  std::array<char, 240> text_;
  size_t length_ = 0;
};

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
    return std::string(first_error_.view());
  }

  void note_error(std::string_view text);

 private:
  KeptText first_error_;
};

/// While one lives, it keeps why ExecuTorch fails in this thread, which it tells
/// its log only. One per thread at a time.
class FailureReason {
 public:
  FailureReason();
  ~FailureReason();
  FailureReason(const FailureReason&) = delete;
  FailureReason& operator=(const FailureReason&) = delete;

  /// The first error that was logged, and which operator's kernel failed; empty
  /// when nothing was.
  std::string text() const;

  void note_error(std::string_view text);

 private:
  KeptText first_error_;
  KeptText operator_name_;
};

/// From now on, nothing of the process logs what is of interest to developers of
/// ExecuTorch only.
void hide_info();

} // namespace etshared::runtime
