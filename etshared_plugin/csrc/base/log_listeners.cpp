#include "base/log_listeners.h"

#include <atomic>
#include <utility>

#include <executorch/runtime/platform/platform.h>

#include "base/failure.h"

namespace etshared::runtime {
namespace {

thread_local QuietWeightCache* quiet_cache = nullptr;
thread_local FailureReason* failure_reason = nullptr;
std::atomic<bool> is_info_hidden = false;
std::atomic<pal_emit_log_message_method> next = nullptr;
/// The one that was there before any of ours, and calls none of ours.
std::atomic<pal_emit_log_message_method> first = nullptr;
thread_local bool is_forwarding = false;

void emit_log_message(
    et_timestamp_t timestamp,
    et_pal_log_level_t level,
    const char* filename,
    const char* function,
    size_t line,
    const char* message,
    size_t length) {
  const std::string_view text(message, length);
  if (quiet_cache != nullptr &&
      std::string_view(filename) == "XNNWeightsCache.cpp") {
    if (level == kError) {
      quiet_cache->note_error(text);
    }
    // What the cache cannot open or lock is what PackedMemory withholds, a file
    // that it would write to.
    if (level == kInfo || text.starts_with("open(") ||
        text.starts_with("flock(")) {
      return;
    }
  }
  if (failure_reason != nullptr && level == kError) {
    failure_reason->note_error(text);
  }
  if (is_info_hidden.load() && (level == kInfo || level == kDebug)) {
    return;
  }
  // Who stands in front of us may hand on to us, and we to them.
  const auto emit = is_forwarding ? first.load() : next.load();
  const bool was_forwarding = std::exchange(is_forwarding, true);
  emit(timestamp, level, filename, function, line, message, length);
  is_forwarding = was_forwarding;
}

/// In front of whoever takes the messages now. ExecuTorch 1.5.1 has one table,
/// which executorch.runtime replaces when it is imported; register_pal() would
/// complain about the second to do so.
void stand_in_front() {
  auto* emit = &const_cast<et::PalImpl*>(et::get_pal_impl())->emit_log_message;
  const auto current = __atomic_load_n(emit, __ATOMIC_ACQUIRE);
  if (current != &emit_log_message) {
    pal_emit_log_message_method none = nullptr;
    first.compare_exchange_strong(none, current);
    next.store(current);
    __atomic_store_n(emit, &emit_log_message, __ATOMIC_RELEASE);
  }
}

} // namespace

QuietWeightCache::QuietWeightCache() {
  stand_in_front();
  quiet_cache = this;
}

QuietWeightCache::~QuietWeightCache() {
  quiet_cache = nullptr;
}

void QuietWeightCache::note_error(std::string_view text) {
  if (first_error_.is_empty()) {
    first_error_.keep(text);
  }
}

FailureReason::FailureReason() {
  stand_in_front();
  failure_reason = this;
}

FailureReason::~FailureReason() {
  failure_reason = nullptr;
}

void FailureReason::note_error(std::string_view text) {
  // 1.5.1 method.cpp: "KernelCall failed at instruction 0:3 in operator x: 0x12"
  constexpr std::string_view kBeforeName = " in operator ";
  const size_t place = text.find(kBeforeName);
  if (text.starts_with("KernelCall failed") && place != text.npos) {
    const std::string_view name = text.substr(place + kBeforeName.size());
    operator_name_.keep(name.substr(0, name.rfind(": ")));
  } else if (first_error_.is_empty()) {
    first_error_.keep(text);
  }
}

std::string FailureReason::text() const {
  const char* between =
      operator_name_.is_empty() || first_error_.is_empty() ? "" : ": ";
  return concat(operator_name_.view(), between, first_error_.view());
}

void hide_info() {
  stand_in_front();
  is_info_hidden.store(true);
}

} // namespace etshared::runtime
