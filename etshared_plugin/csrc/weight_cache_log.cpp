#include "weight_cache_log.h"

#include <atomic>

#include <executorch/runtime/platform/platform.h>

namespace etshared::runtime {
namespace {

namespace et = ::executorch::runtime;

thread_local QuietWeightCache* active = nullptr;
std::atomic<pal_emit_log_message_method> next = nullptr;

void emit_log_message(
    et_timestamp_t timestamp,
    et_pal_log_level_t level,
    const char* filename,
    const char* function,
    size_t line,
    const char* message,
    size_t length) {
  if (active != nullptr &&
      std::string_view(filename) == "XNNWeightsCache.cpp") {
    const std::string_view text(message, length);
    if (level == kError) {
      active->note_error(text);
    }
    // What the cache cannot open or lock is what PackedMemory withholds, a file
    // that it would write to.
    if (level == kInfo || text.starts_with("open(") ||
        text.starts_with("flock(")) {
      return;
    }
  }
  next.load()(timestamp, level, filename, function, line, message, length);
}

/// In front of whoever takes the messages now. ExecuTorch 1.5.1 has one table,
/// which executorch.runtime replaces when it is imported; register_pal() would
/// complain about the second to do so.
void stand_in_front() {
  auto* emit = &const_cast<et::PalImpl*>(et::get_pal_impl())->emit_log_message;
  const auto current = __atomic_load_n(emit, __ATOMIC_ACQUIRE);
  if (current != &emit_log_message) {
    next.store(current);
    __atomic_store_n(emit, &emit_log_message, __ATOMIC_RELEASE);
  }
}

} // namespace

QuietWeightCache::QuietWeightCache() {
  stand_in_front();
  active = this;
}

QuietWeightCache::~QuietWeightCache() {
  active = nullptr;
}

void QuietWeightCache::note_error(std::string_view text) {
  if (error_length_ == 0) {
    error_length_ = text.copy(error_.data(), error_.size());
  }
}

} // namespace etshared::runtime
