// The slot allocator against a model: plain sets that say which rows are used and which pages are backed.
#include <algorithm>
#include <random>
#include <set>
#include <vector>

#include "arena/slots.hpp"
#include "testing.hpp"
#include "vmm/error.hpp"

namespace {

using namespace kvcached;

using Ids = std::vector<std::int64_t>;

Geometry geometry(std::int64_t rows, std::int64_t rows_per_page, std::int64_t reserved_rows) {
  GeometrySpec s;
  s.rows = rows;
  s.row_bytes = {4096};
  s.granularity_bytes = 4096;
  s.page_bytes = 4096 * rows_per_page;
  s.reserved_rows = reserved_rows;
  return Geometry(s);
}

Ids alloc(SlotAllocator& slots, std::size_t count) {
  Ids ids(count);
  REQUIRE(slots.alloc(count, ids.data()));
  return ids;
}

void back(SlotAllocator& slots, std::size_t rows) {
  const auto plan = slots.plan_back(rows);
  REQUIRE(plan.has_value());
  slots.mark_staged(*plan);
  slots.mark_backed(*plan);
}

class Model {
 public:
  Model(const Geometry& geometry, PagePolicy policy, unsigned seed)
      : geometry_(geometry), slots_(geometry_, policy), random_(seed) {
    if (geometry_.pinned_pages() > 0) apply_backed({{0, geometry_.pinned_pages()}});
  }

  void step() {
    switch (random_() % 8) {
      case 0:
      case 1:
      case 2:
        allocate();
        break;
      case 3:
      case 4:
        release();
        break;
      case 5:
        grow();
        break;
      case 6:
        trim();
        break;
      case 7:
        misuse();
        break;
    }
    compare();
  }

 private:
  void allocate() {
    const std::size_t count = random_() % (2 * geometry_.rows_per_page() + 2);
    Ids ids(count);
    const bool granted = slots_.alloc(count, ids.data());
    CHECK_EQ(granted, count <= free_rows());
    if (!granted) return;
    for (const std::int64_t id : ids) {
      CHECK(id >= static_cast<std::int64_t>(geometry_.reserved_rows()));
      CHECK(id < static_cast<std::int64_t>(geometry_.rows()));
      CHECK(backed_.count(static_cast<std::size_t>(id) / geometry_.rows_per_page()) != 0);
      CHECK(used_.insert(id).second);
    }
  }

  Ids some_used() {
    Ids ids(used_.begin(), used_.end());
    std::shuffle(ids.begin(), ids.end(), random_);
    if (!ids.empty()) ids.resize(random_() % (ids.size() + 1));
    return ids;
  }

  void release() {
    const Ids ids = some_used();
    slots_.free(ids.data(), ids.size());
    for (const std::int64_t id : ids) used_.erase(id);
  }

  void grow() {
    const std::size_t rows = random_() % (geometry_.rows() + 5);
    const auto plan = slots_.plan_back(rows);
    std::size_t most = free_rows();
    for (std::size_t page = 0; page < geometry_.pages(); ++page) {
      if (backed_.count(page) == 0) most += geometry_.usable_rows(page);
    }
    CHECK_EQ(plan.has_value(), rows <= most);
    if (!plan) return;
    std::set<std::size_t> unbacked;
    for (std::size_t page = 0; page < geometry_.pages(); ++page) {
      if (backed_.count(page) == 0) unbacked.insert(page);
    }
    for (const PageRun& run : *plan) {
      for (std::size_t page = run.first; page < run.first + run.count; ++page) {
        CHECK_EQ(page, *unbacked.begin());  // the lowest ones, in order
        unbacked.erase(unbacked.begin());
      }
    }
    apply_backed(*plan);
    CHECK(free_rows() >= rows);
  }

  void trim() {
    const std::size_t keep = random_() % (free_rows() + 2);
    const PageRuns plan = slots_.plan_unback(keep);
    slots_.mark_unbacked(plan);
    for (const PageRun& run : plan) {
      for (std::size_t page = run.first; page < run.first + run.count; ++page) {
        CHECK(page >= geometry_.pinned_pages());
        CHECK(!is_in_use(page));
        CHECK_EQ(backed_.erase(page), 1U);
      }
    }
    if (!plan.empty()) CHECK(free_rows() >= keep);
  }

  // Whatever is wrong with a batch, nothing of it may take effect.
  void misuse() {
    Ids ids = some_used();
    std::int64_t bad = 0;
    switch (random_() % 5) {
      case 0:
        bad = -1 - static_cast<std::int64_t>(random_() % 3);
        break;
      case 1:
        bad = static_cast<std::int64_t>(geometry_.rows() + random_() % 100);
        break;
      case 2:
        if (geometry_.reserved_rows() == 0) return;
        bad = 0;
        break;
      case 3:
        if (ids.empty()) return;
        bad = ids.front();
        break;
      case 4:
        bad = static_cast<std::int64_t>(geometry_.reserved_rows() +
                                        random_() % (geometry_.rows() - geometry_.reserved_rows()));
        if (used_.count(bad) != 0) return;
        break;
    }
    const bool appended = random_() % 2 == 0;
    ids.insert(appended ? ids.end() : ids.begin(), bad);
    CHECK_THROWS(Misuse, "free: row", slots_.free(ids.data(), ids.size()));
  }

  void apply_backed(const PageRuns& runs) {
    slots_.mark_staged(runs);
    slots_.mark_backed(runs);
    for (const PageRun& run : runs) {
      for (std::size_t page = run.first; page < run.first + run.count; ++page)
        CHECK(backed_.insert(page).second);
    }
  }

  bool is_in_use(std::size_t page) const {
    const auto first = used_.lower_bound(static_cast<std::int64_t>(page * geometry_.rows_per_page()));
    return first != used_.end() && *first < static_cast<std::int64_t>((page + 1) * geometry_.rows_per_page());
  }

  std::size_t free_rows() const {
    std::size_t rows = 0;
    for (const std::size_t page : backed_) rows += geometry_.usable_rows(page);
    return rows - used_.size();
  }

  void compare() const {
    slots_.check_invariants();
    CHECK_EQ(slots_.rows_used(), used_.size());
    CHECK_EQ(slots_.rows_free_backed(), free_rows());
    CHECK_EQ(slots_.pages_backed(), backed_.size());
  }

  Geometry geometry_;
  SlotAllocator slots_;
  std::mt19937 random_;
  std::set<std::int64_t> used_;
  std::set<std::size_t> backed_;
};

}  // namespace

TEST(slots_agree_with_a_model_over_random_histories) {
  unsigned seed = 1;
  for (const std::int64_t rows_per_page : {1, 7, 64, 65, 128, 200}) {
    for (const std::int64_t reserved : {0, 1, 130}) {
      for (const PagePolicy policy : {PagePolicy::best_fit, PagePolicy::most_filled}) {
        Model model(geometry(rows_per_page * 12 + 140, rows_per_page, reserved), policy, seed++);
        for (int step = 0; step < 1500; ++step) model.step();
      }
    }
  }
}

TEST(slots_a_request_goes_to_the_tightest_page_that_holds_it) {
  SlotAllocator slots(geometry(64, 16, 0));
  back(slots, 64);
  const Ids all = alloc(slots, 64);
  slots.free(&all[0], 5);    // page 0 has 5 free rows
  slots.free(&all[16], 3);   // page 1 has 3
  slots.free(&all[32], 16);  // page 2 is empty
  CHECK_EQ(alloc(slots, 3)[0], all[16]);
  CHECK_EQ(alloc(slots, 4)[0], all[0]);
  CHECK_EQ(alloc(slots, 2)[0], all[32]);  // one row is left on page 0: not enough to stay together
}

TEST(slots_of_pages_that_fit_equally_the_lowest_is_taken) {
  SlotAllocator slots(geometry(64, 16, 0));
  back(slots, 64);
  const Ids all = alloc(slots, 64);
  for (const std::size_t page : {2U, 0U, 3U, 1U}) slots.free(&all[16 * page], 4);
  CHECK_EQ(alloc(slots, 4)[0], 0);
  CHECK_EQ(alloc(slots, 3)[0], 16);
  CHECK_EQ(alloc(slots, 4)[0], 32);
}

TEST(slots_most_filled_spreads_a_request_over_the_fullest_pages_first) {
  SlotAllocator slots(geometry(64, 16, 0), PagePolicy::most_filled);
  back(slots, 64);
  const Ids all = alloc(slots, 64);
  slots.free(&all[0], 5);    // page 0 has 5 free rows
  slots.free(&all[16], 3);   // page 1 has 3
  slots.free(&all[32], 16);  // page 2 is empty
  CHECK(alloc(slots, 9) == (Ids{16, 17, 18, 0, 1, 2, 3, 4, 32}));
}

TEST(slots_a_refused_batch_changes_nothing_at_whatever_place_the_bad_id_stands) {
  SlotAllocator slots(geometry(200, 16, 1));
  back(slots, 199);
  const Ids held = alloc(slots, 120);
  const std::size_t free_before = slots.rows_free_backed();
  for (const std::int64_t bad : {std::int64_t{0}, std::int64_t{-1}, std::int64_t{200}, held[7], INT64_MIN}) {
    for (std::size_t place = 0; place <= held.size(); ++place) {
      Ids batch = held;
      batch.insert(batch.begin() + static_cast<std::ptrdiff_t>(place), bad);
      CHECK_THROWS(Misuse, "free: row", slots.free(batch.data(), batch.size()));
      slots.check_invariants();
      CHECK_EQ(slots.rows_free_backed(), free_before);
    }
  }
  slots.free(held.data(), held.size());
  CHECK_EQ(slots.rows_used(), 0U);
}

TEST(slots_empty_pages_are_taken_lowest_first_and_given_back_highest_first) {
  SlotAllocator slots(geometry(80, 16, 0));
  back(slots, 80);
  CHECK_EQ(alloc(slots, 16)[0], 0);
  CHECK_EQ(alloc(slots, 16)[0], 16);
  const PageRuns plan = slots.plan_unback(16);
  REQUIRE(plan.size() == 1);
  CHECK_EQ(plan[0].first, 3U);
  CHECK_EQ(plan[0].count, 2U);
}

TEST(slots_large_requests_take_whole_pages_before_crumbs) {
  SlotAllocator slots(geometry(64, 16, 0));
  back(slots, 64);
  alloc(slots, 10);
  const Ids ids = alloc(slots, 40);  // two whole pages, then 8 rows where they fit best
  CHECK_EQ(ids.front(), 16);
  CHECK_EQ(slots.rows_free_backed(), 14U);
  slots.check_invariants();
}

TEST(slots_pinned_pages_serve_rows_but_never_leave) {
  SlotAllocator slots(geometry(64, 16, 1));
  slots.mark_staged({{0, 1}});
  slots.mark_backed({{0, 1}});
  CHECK_EQ(slots.rows_free_backed(), 15U);
  CHECK(slots.plan_unback(0).empty());
  CHECK_EQ(alloc(slots, 15).front(), 1);
  CHECK(!slots.alloc(1, nullptr));
}

TEST(slots_reset_frees_every_row) {
  SlotAllocator slots(geometry(200, 16, 1));
  back(slots, 100);
  alloc(slots, 77);
  slots.reset();
  slots.check_invariants();
  CHECK_EQ(slots.rows_used(), 0U);
  CHECK_EQ(alloc(slots, slots.rows_free_backed()).size(), slots.rows_backed());
}
