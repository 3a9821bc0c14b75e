#include <random>
#include <set>

#include "arena/geometry.hpp"
#include "arena/index_set.hpp"
#include "testing.hpp"
#include "vmm/error.hpp"

namespace {

using kvcached::Geometry;
using kvcached::GeometrySpec;
using kvcached::IndexSet;
using kvcached::Misuse;

GeometrySpec spec(std::int64_t rows, std::vector<std::int64_t> row_bytes, std::int64_t page_bytes = 65536) {
  GeometrySpec s;
  s.rows = rows;
  s.row_bytes = std::move(row_bytes);
  s.granularity_bytes = 4096;
  s.page_bytes = page_bytes;
  return s;
}

}  // namespace

TEST(geometry_rows_per_page_fill_whole_granules_and_fit_the_page) {
  const Geometry g(spec(1000, {384, 384}));
  CHECK_EQ(g.rows_per_page(), 160U);  // 384 = 3 * 128, so 32 rows are 3 granules; 5 * 32 * 384 <= 65536
  CHECK_EQ(g.pages(), 7U);
  CHECK_EQ(g.page_set_bytes(), 2U * 160 * 384);
  CHECK_EQ(g.stripe_offset_bytes(1), 7U * 160 * 384);
  CHECK_EQ(g.usable_rows(0), 159U);
  CHECK_EQ(g.usable_rows(6), 40U);
}

TEST(geometry_widest_stripe_decides) {
  const Geometry g(spec(4096, {512, 2048}));
  CHECK_EQ(g.rows_per_page(), 32U);
  CHECK_EQ(g.segment_bytes(0), 16384U);
  CHECK_EQ(g.segment_bytes(1), 65536U);
  CHECK_EQ(g.common_segment_bytes(), 16384U);
}

TEST(geometry_page_grows_to_one_unit_where_the_wish_is_too_small) {
  const Geometry g(spec(100000, {4097}, 4096));
  CHECK_EQ(g.rows_per_page(), 4096U);
}

TEST(geometry_row_multiple_is_kept) {
  GeometrySpec s = spec(10000, {512});
  s.row_multiple = 48;
  const Geometry g(s);
  CHECK_EQ(g.rows_per_page() % 48, 0U);
  CHECK_EQ(g.segment_bytes(0) % 4096, 0U);
  CHECK(g.segment_bytes(0) <= 65536U);
}

TEST(geometry_reserved_rows_may_span_pages_or_be_none) {
  GeometrySpec s = spec(1000, {4096});
  s.reserved_rows = 20;
  const Geometry g(s);
  CHECK_EQ(g.pinned_pages(), 2U);
  CHECK_EQ(g.usable_rows(0), 0U);
  CHECK_EQ(g.usable_rows(1), 12U);
  s.reserved_rows = 0;
  CHECK_EQ(Geometry(s).pinned_pages(), 0U);
}

TEST(geometry_every_row_belongs_to_one_page_for_random_shapes) {
  std::mt19937 random(1);
  for (int round = 0; round < 300; ++round) {
    GeometrySpec s;
    s.rows = 2 + static_cast<std::int64_t>(random() % 100000);
    const std::size_t stripes = 1 + random() % 4;
    for (std::size_t i = 0; i < stripes; ++i)
      s.row_bytes.push_back(2 * (1 + static_cast<std::int64_t>(random() % 600)));
    s.granularity_bytes = 4096;
    s.page_bytes = 4096 << (random() % 8);
    s.reserved_rows = static_cast<std::int64_t>(random() % 2);
    const Geometry g(s);
    std::size_t usable = 0;
    for (std::size_t page = 0; page < g.pages(); ++page) usable += g.usable_rows(page);
    CHECK_EQ(usable, g.rows() - g.reserved_rows());
    CHECK(g.pages() * g.rows_per_page() >= g.rows());
    std::size_t end = 0;
    for (std::size_t stripe = 0; stripe < g.stripes(); ++stripe) {
      CHECK_EQ(g.stripe_offset_bytes(stripe), end);
      CHECK_EQ(g.segment_bytes(stripe) % 4096, 0U);
      end += g.segment_bytes(stripe) * g.pages();
    }
    CHECK_EQ(end, g.reservation_bytes());
  }
}

TEST(geometry_bad_values_are_named) {
  CHECK_THROWS(Misuse, "rows is 0", Geometry(spec(0, {64})));
  CHECK_THROWS(Misuse, "row_bytes is 0", Geometry(spec(10, {0})));
  CHECK_THROWS(Misuse, "number of stripes is 0", Geometry(spec(10, {})));
  CHECK_THROWS(Misuse, "page_bytes is 100", Geometry(spec(10, {64}, 100)));
  GeometrySpec s = spec(10, {64});
  s.reserved_rows = 10;
  CHECK_THROWS(Misuse, "reserved_rows is 10, must be between 0 and 9", Geometry{s});
  CHECK_THROWS(Misuse, "address space", Geometry(spec(std::int64_t{1} << 30, {65536, 65536, 65536, 65536})));
  GeometrySpec odd = spec(1000, {8191});
  odd.row_multiple = (1 << 30) - 1;
  CHECK_THROWS(Misuse, "smallest page", Geometry{odd});
}

TEST(geometry_index_set_agrees_with_a_plain_set) {
  std::mt19937 random(2);
  for (const std::size_t bound : {1U, 63U, 64U, 65U, 4096U, 4097U, 300000U}) {
    IndexSet set(bound);
    std::set<std::size_t> model;
    for (int step = 0; step < 3000; ++step) {
      const std::size_t index = random() % bound;
      if (random() % 2 == 0) {
        set.insert(index);
        model.insert(index);
      } else {
        set.erase(index);
        model.erase(index);
      }
      const std::size_t from = random() % bound;
      const auto above = model.lower_bound(from);
      CHECK_EQ(set.next(from), above == model.end() ? IndexSet::kNone : *above);
      const auto beyond = model.upper_bound(from);
      CHECK_EQ(set.previous(from), beyond == model.begin() ? IndexSet::kNone : *std::prev(beyond));
      CHECK_EQ(set.contains(index), model.count(index) != 0);
    }
  }
}
