#pragma once

#include <cstddef>
#include <cstdint>

namespace kvcached {

// How many empty pages are worth keeping ready, from the bursts in which pages were taken. Pure arithmetic:
// time is an argument.
//
// low:  the largest recent burst still fits. Below it the reserve is filled,
// high: to half a burst more, so that small takes do not wake anybody.
// What was seen counts half as much after each half-life without a larger burst.
class WarmMarks {
 public:
  static constexpr std::int64_t kHalfLifeNs = 2'000'000'000;

  explicit WarmMarks(std::size_t max_pages) noexcept : max_pages_(max_pages) {}

  // `pages` were taken at about one time.
  void saw_burst(std::size_t pages, std::int64_t now_ns) noexcept;

  std::size_t max_pages() const noexcept { return max_pages_; }
  std::size_t low_pages() const noexcept { return low_pages_; }
  std::size_t high_pages() const noexcept { return high_pages_; }

 private:
  std::size_t max_pages_;
  std::size_t burst_pages_ = 0;
  std::int64_t seen_ns_ = 0;  // when burst_pages_ was seen, or last halved
  std::size_t low_pages_ = 0;
  std::size_t high_pages_ = 0;
};

}  // namespace kvcached
