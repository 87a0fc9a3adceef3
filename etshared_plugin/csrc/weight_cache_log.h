#pragma once

namespace etshared::runtime {

/// While one lives, XNNPACK's weight cache does not report from this thread
/// what it opens, packs and saves, nor what it may not open or lock for writing:
/// that would be lines on stderr for every session. All other logging goes where it went.
class QuietWeightCache {
 public:
  QuietWeightCache();
  ~QuietWeightCache();
  QuietWeightCache(const QuietWeightCache&) = delete;
  QuietWeightCache& operator=(const QuietWeightCache&) = delete;
};

} // namespace etshared::runtime
