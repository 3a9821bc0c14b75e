// The marks of the warm reserve: what bursts teach them, and how they forget.
#include "arena/warm_marks.hpp"
#include "testing.hpp"

namespace {

using namespace kvcached;

constexpr std::int64_t kHalfLife = WarmMarks::kHalfLifeNs;

TEST(warm_marks_start_with_nothing) {
  const WarmMarks marks(100);
  CHECK_EQ(marks.low_pages(), 0u);
  CHECK_EQ(marks.high_pages(), 0u);
}

TEST(warm_marks_hold_the_largest_burst_and_half_of_it) {
  WarmMarks marks(100);
  marks.saw_burst(8, 0);
  marks.saw_burst(3, 1);
  CHECK_EQ(marks.low_pages(), 8u);
  CHECK_EQ(marks.high_pages(), 12u);
  marks.saw_burst(20, 2);
  CHECK_EQ(marks.low_pages(), 20u);
  CHECK_EQ(marks.high_pages(), 30u);
}

TEST(warm_marks_keep_one_spare_page_for_single_pages) {
  WarmMarks marks(100);
  marks.saw_burst(1, 0);
  CHECK_EQ(marks.low_pages(), 1u);
  CHECK_EQ(marks.high_pages(), 2u);
}

TEST(warm_marks_halve_what_is_long_ago_but_keep_what_is_seen_now) {
  WarmMarks marks(100);
  marks.saw_burst(16, 0);
  marks.saw_burst(1, kHalfLife - 1);
  CHECK_EQ(marks.low_pages(), 16u);
  marks.saw_burst(1, kHalfLife);
  CHECK_EQ(marks.low_pages(), 8u);
  marks.saw_burst(1, kHalfLife + 1);
  CHECK_EQ(marks.low_pages(), 8u);
  marks.saw_burst(3, 3 * kHalfLife);
  CHECK_EQ(marks.low_pages(), 3u);
  marks.saw_burst(0, INT64_MAX);
  CHECK_EQ(marks.low_pages(), 0u);
  CHECK_EQ(marks.high_pages(), 0u);
}

TEST(warm_marks_never_exceed_their_bound) {
  WarmMarks marks(10);
  marks.saw_burst(8, 0);
  CHECK_EQ(marks.low_pages(), 8u);
  CHECK_EQ(marks.high_pages(), 10u);
  marks.saw_burst(1000, 1);
  CHECK_EQ(marks.low_pages(), 10u);
  CHECK_EQ(marks.high_pages(), 10u);
  WarmMarks none(0);
  none.saw_burst(8, 0);
  CHECK_EQ(none.high_pages(), 0u);
}

}  // namespace
