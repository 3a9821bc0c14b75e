// The slot allocator against a model: plain sets that say which rows are used and which pages are backed.
#include <algorithm>
#include <random>
#include <set>
#include <utility>
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

// All there is to know about pages and rows, in plain sets, and every rule of who gets what in the obvious
// way.
class Model {
 public:
  Model(const Geometry& geometry, PagePolicy policy, unsigned seed)
      : geometry_(geometry), slots_(geometry_, policy), random_(seed) {
    if (geometry_.pinned_pages() == 0) return;
    slots_.mark_staged({{0, geometry_.pinned_pages()}});
    apply_backed({{0, geometry_.pinned_pages()}});
  }

  void step() {
    switch (random_() % 20) {
      case 0:
        return reset();
      case 1:
      case 2:
        return stage();
      case 3:
      case 4:
      case 5:
        return grow();
      case 6:
      case 7:
      case 8:
        return trim();
      case 9:
      case 10:
        return misuse();
      case 11:
      case 12:
      case 13:
      case 14:
        return release();
      default:
        return allocate();
    }
  }

  void compare() const {
    slots_.check_invariants();
    CHECK_EQ(slots_.rows_used(), used_.size());
    CHECK_EQ(slots_.rows_free_backed(), free_rows());
    CHECK_EQ(slots_.pages_backed(), backed_.size());
    std::size_t empty = 0;
    for (const std::size_t page : backed_) empty += is_removable(page) ? 1 : 0;
    CHECK_EQ(slots_.pages_empty(), empty);
  }

 private:
  void allocate() {
    const std::size_t count = random_() % (2 * geometry_.rows_per_page() + 2);
    Ids ids(count);
    const bool granted = slots_.alloc(count, ids.data());
    CHECK_EQ(granted, count <= free_rows());
    if (!granted) return;
    for (std::size_t done = 0; done < count;) {
      const std::size_t page = choose_page(count - done);
      const std::size_t begin = page * geometry_.rows_per_page();
      for (std::size_t row = begin; row < begin + geometry_.rows_per_page() && done < count; ++row) {
        const auto id = static_cast<std::int64_t>(row);
        if (row < geometry_.reserved_rows() || row >= geometry_.rows() || used_.count(id) != 0) continue;
        CHECK_EQ(ids[done++], id);
        used_.insert(id);
      }
    }
  }

  // The page that the next rows of a request come from, by the policy's own words.
  std::size_t choose_page(std::size_t wanted) const {
    using Candidate = std::pair<std::size_t, std::size_t>;  // free rows, page
    std::set<Candidate> partial;
    std::size_t lowest_empty = SIZE_MAX;
    for (const std::size_t page : backed_) {
      if (is_removable(page)) {
        lowest_empty = std::min(lowest_empty, page);
      } else if (free_rows(page) > 0) {
        partial.insert({free_rows(page), page});
      }
    }
    const std::size_t fitting = slots_.policy() == PagePolicy::best_fit ? wanted : 1;
    const auto best = partial.lower_bound({fitting, 0});
    if (best != partial.end()) return best->second;
    return lowest_empty != SIZE_MAX ? lowest_empty : partial.rbegin()->second;
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

  void reset() {
    slots_.reset();
    used_.clear();
  }

  void grow() {
    const std::size_t rows = random_() % (geometry_.rows() + 5);
    const auto plan = slots_.plan_back(rows);
    std::size_t most = free_rows();
    for (const std::size_t page : unbacked()) most += geometry_.usable_rows(page);
    CHECK_EQ(plan.has_value(), rows <= most);
    if (!plan) return;
    require_lowest(*plan);
    slots_.mark_staged(*plan);
    apply_backed(*plan);
    CHECK(free_rows() >= rows);
  }

  // Pages that are being backed belong to nobody meanwhile; that may succeed or fail.
  void stage() {
    const std::size_t wanted = 1 + random_() % 3;
    const PageRuns plan = slots_.plan_pages(wanted);
    CHECK_EQ(count_pages(plan), std::min(wanted, unbacked().size()));
    require_lowest(plan);
    slots_.mark_staged(plan);
    compare();
    allocate();
    compare();
    if (random_() % 2 == 0) {
      slots_.mark_unstaged(plan);
    } else {
      apply_backed(plan);
    }
  }

  void require_lowest(const PageRuns& plan) const {
    std::set<std::size_t> left = unbacked();
    for (const PageRun& run : plan) {
      for (std::size_t page = run.first; page < run.first + run.count; ++page) {
        CHECK_EQ(page, *left.begin());
        left.erase(left.begin());
      }
    }
  }

  void trim() {
    const std::size_t keep = random_() % (free_rows() + 2);
    std::set<std::size_t> expected;
    std::size_t left = free_rows();
    for (auto page = backed_.rbegin(); page != backed_.rend(); ++page) {
      if (!is_removable(*page)) continue;
      if (left < keep + geometry_.usable_rows(*page)) break;
      left -= geometry_.usable_rows(*page);
      expected.insert(*page);
    }
    const PageRuns plan = slots_.plan_unback(keep);
    slots_.mark_unbacked(plan);
    CHECK_EQ(count_pages(plan), expected.size());
    for (const PageRun& run : plan) {
      for (std::size_t page = run.first; page < run.first + run.count; ++page) {
        CHECK(expected.count(page) != 0);
        backed_.erase(page);
      }
    }
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
    slots_.mark_backed(runs);
    for (const PageRun& run : runs) {
      for (std::size_t page = run.first; page < run.first + run.count; ++page)
        CHECK(backed_.insert(page).second);
    }
  }

  std::set<std::size_t> unbacked() const {
    std::set<std::size_t> pages;
    for (std::size_t page = 0; page < geometry_.pages(); ++page) {
      if (backed_.count(page) == 0) pages.insert(page);
    }
    return pages;
  }

  bool is_removable(std::size_t page) const {
    return page >= geometry_.pinned_pages() && free_rows(page) == geometry_.usable_rows(page);
  }

  std::size_t free_rows(std::size_t page) const {
    const auto begin = used_.lower_bound(static_cast<std::int64_t>(page * geometry_.rows_per_page()));
    const auto end = used_.lower_bound(static_cast<std::int64_t>((page + 1) * geometry_.rows_per_page()));
    return geometry_.usable_rows(page) - static_cast<std::size_t>(std::distance(begin, end));
  }

  std::size_t free_rows() const {
    std::size_t rows = 0;
    for (const std::size_t page : backed_) rows += geometry_.usable_rows(page);
    return rows - used_.size();
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
        for (int step = 0; step < 1000; ++step) {
          model.step();
          model.compare();
        }
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
