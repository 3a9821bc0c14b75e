#include "arena/warm_marks.hpp"

#include <algorithm>

namespace kvcached {

void WarmMarks::saw_burst(std::size_t pages, std::int64_t now_ns) noexcept {
  // Ends after as many turns as burst_pages_ has bits, however long ago that was.
  while (burst_pages_ > pages && now_ns - seen_ns_ >= kHalfLifeNs) {
    burst_pages_ = std::max(pages, burst_pages_ / 2);
    seen_ns_ += kHalfLifeNs;
  }
  if (pages >= burst_pages_) {
    burst_pages_ = pages;
    seen_ns_ = now_ns;
  }
  const std::size_t spare_pages = burst_pages_ == 0 ? 0 : std::max<std::size_t>(1, burst_pages_ / 2);
  low_pages_ = std::min(burst_pages_, max_pages_);
  high_pages_ = std::min(burst_pages_ + spare_pages, max_pages_);
}

}  // namespace kvcached
