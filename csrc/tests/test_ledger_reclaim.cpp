// Who gives back how much, and whose want goes first: pure functions over what all lines show.
#include <memory>
#include <random>

#include "ledger/reclaim.hpp"
#include "testing.hpp"

namespace {

using namespace kvcached;

constexpr std::int64_t kNow = 1'000'000'000'000;
constexpr std::int64_t kOld = kNow - 2 * kPatienceNs;

Standing holder(std::int64_t used, std::int64_t spare, std::int32_t priority = 0, std::int64_t floor = 0) {
  Standing one;
  one.used_bytes = used;
  one.spare_bytes = spare;
  one.priority = priority;
  one.floor_bytes = floor;
  return one;
}

Standing waiter(std::int64_t want, std::int32_t priority = 0, std::int64_t since_ns = kOld) {
  Standing one;
  one.want_bytes = want;
  one.want_since_ns = since_ns;
  one.priority = priority;
  return one;
}

Standings of(std::int64_t budget, std::initializer_list<Standing> all) {
  Standings standings;
  standings.budget_bytes = budget;
  for (const Standing& one : all) standings.all[standings.count++] = one;
  return standings;
}

std::string asked(const Standings& standings) {
  std::string text;
  for (std::size_t i = 0; i < standings.count; ++i) {
    text += (i == 0 ? "" : " ") + std::to_string(asked_bytes(standings, i));
  }
  return text;
}

std::string ahead(const Standings& standings) {
  std::string text;
  for (std::size_t i = 0; i < standings.count; ++i) {
    text += (i == 0 ? "" : " ") + std::to_string(ahead_bytes(standings, i, kNow));
  }
  return text;
}

}  // namespace

TEST(ledger_reclaim_nobody_is_asked_where_the_free_budget_does) {
  CHECK_EQ(asked(of(100, {holder(60, 60), waiter(40)})), "0 0");
  CHECK_EQ(asked(of(100, {holder(60, 60), waiter(41)})), "1 0");
  CHECK_EQ(asked(of(100, {holder(100, 100), waiter(0)})), "0 0");
}

TEST(ledger_reclaim_the_least_important_give_first_and_the_more_important_nothing) {
  const auto plan = [](std::int64_t want) {
    return asked(of(100, {holder(40, 40, 2), holder(30, 30, 1), holder(30, 30, 0), waiter(want, 1)}));
  };
  CHECK_EQ(plan(20), "0 0 20 0");
  CHECK_EQ(plan(40), "0 10 30 0");
  CHECK_EQ(plan(90), "0 30 30 0");
}

TEST(ledger_reclaim_stops_at_floors_and_at_what_can_be_spared) {
  CHECK_EQ(asked(of(100, {holder(50, 50, 0, 35), holder(50, 20), waiter(90)})), "15 20 0");
  CHECK_EQ(asked(of(100, {holder(50, 50, 0, 60), holder(40, 40), waiter(90)})), "0 40 0");
}

TEST(ledger_reclaim_among_equals_the_one_that_wants_nothing_gives_first_then_the_fullest) {
  CHECK_EQ(asked(of(100, {holder(40, 40), holder(60, 60), waiter(50)})), "0 50 0");
  Standing busy = holder(60, 60);
  busy.want_bytes = 1;
  busy.want_since_ns = kOld;
  CHECK_EQ(asked(of(100, {holder(40, 40), busy, waiter(30)})), "31 0 0");
}

TEST(ledger_reclaim_the_free_budget_goes_to_the_more_important_want) {
  // 10 are free: the important want takes them, and the holder gives what is left of both.
  CHECK_EQ(asked(of(100, {holder(90, 90), waiter(15, 0), waiter(10, 5)})), "15 0 0");
  // The holder outranks the small want, so it gives nothing for it.
  CHECK_EQ(asked(of(100, {holder(90, 90, 1), waiter(15, 0), waiter(10, 5)})), "0 0 0");
}

TEST(ledger_reclaim_a_want_beyond_reach_is_served_as_far_as_it_can_be) {
  CHECK_EQ(asked(of(100, {holder(100, 100, 0, 30), waiter(1000)})), "70 0");
  Standing limited = waiter(1000);
  limited.limit_bytes = 25;
  CHECK_EQ(asked(of(100, {holder(100, 100), limited})), "25 0");
}

TEST(ledger_reclaim_a_floor_that_is_not_there_yet_is_asked_for_whoever_is_more_important) {
  CHECK_EQ(asked(of(100, {holder(90, 90, 9), holder(0, 0, 0, 30)})), "20 0");
  CHECK_EQ(asked(of(100, {holder(90, 90, 9), holder(10, 10, 1), holder(0, 0, 0, 30)})), "20 10 0");
}

TEST(ledger_reclaim_what_is_held_over_a_limit_or_a_recall_is_asked_for_spare_or_not) {
  Standing one = holder(80, 0, 0, 20);
  one.limit_bytes = 50;
  CHECK_EQ(asked(of(100, {one})), "30");
  one.recall_to_bytes = 5;
  CHECK_EQ(asked(of(100, {one})), "60");
}

TEST(ledger_reclaim_new_work_yields_to_the_more_important_at_once_and_to_equals_after_a_while) {
  const std::int64_t fresh = kNow - kPatienceNs / 2;
  CHECK_EQ(ahead(of(100, {waiter(10, 1, fresh), waiter(0, 1), waiter(0, 0), waiter(0, 2)})), "0 0 10 0");
  CHECK_EQ(ahead(of(100, {waiter(10, 1, kOld), waiter(0, 1), waiter(0, 0), waiter(0, 2)})), "0 10 10 0");
}

TEST(ledger_reclaim_among_equals_the_older_want_goes_first_and_exactly_one_of_two) {
  CHECK_EQ(ahead(of(100, {waiter(10, 0, kOld), waiter(20, 0, kOld - 1)})), "20 0");
  CHECK_EQ(ahead(of(100, {waiter(10, 0, kOld), waiter(20, 0, kOld)})), "0 10");
}

TEST(ledger_reclaim_a_want_goes_first_for_its_turn_only) {
  CHECK_EQ(ahead(of(100, {waiter(10, 5, kNow - kPatienceNs - kTurnNs + 1), waiter(0)})), "0 10");
  CHECK_EQ(ahead(of(100, {waiter(10, 5, kNow - kPatienceNs - kTurnNs), waiter(0)})), "0 0");
  CHECK_EQ(ahead(of(100, {waiter(10, 5, kNow + 1), waiter(0)})), "0 0");  // a clock that lies
}

// Whatever the lines say: shares stay within what is held above the floor, together they are no more than
// what is missing, and of all who want there is one that yields to nobody.
TEST(ledger_reclaim_plans_over_any_lines_keep_their_promises) {
  std::mt19937_64 random(11);
  for (int round = 0; round < 20000; ++round) {
    Standings standings;
    standings.budget_bytes = 1000;
    standings.count = 1 + random() % 6;
    std::int64_t missing = 0;
    for (std::size_t i = 0; i < standings.count; ++i) {
      Standing& one = standings.all[i];
      one = holder(static_cast<std::int64_t>(random() % 400), static_cast<std::int64_t>(random() % 400),
                   static_cast<std::int32_t>(random() % 3), static_cast<std::int64_t>(random() % 100));
      one.want_bytes = random() % 2 == 0 ? static_cast<std::int64_t>(random() % 500) : 0;
      one.want_since_ns = kOld - static_cast<std::int64_t>(random() % 3);
      missing += one.want_bytes + std::max(one.used_bytes, one.floor_bytes);
    }
    missing = std::max<std::int64_t>(0, missing - standings.budget_bytes);
    std::int64_t sum = 0, most = 0;
    bool is_anybody_first = false, is_any_wanted = false;
    for (std::size_t i = 0; i < standings.count; ++i) {
      const Standing& one = standings.all[i];
      const std::int64_t share = asked_bytes(standings, i);
      CHECK(share >= 0 && share <= std::max<std::int64_t>(0, one.used_bytes - one.floor_bytes));
      CHECK(share <= one.spare_bytes);
      sum += share;
      most = std::max(most, one.want_bytes);
      is_any_wanted |= one.want_bytes > 0;
      is_anybody_first |= one.want_bytes > 0 && ahead_bytes(standings, i, kNow) == 0;
    }
    CHECK(sum <= missing);
    CHECK(is_anybody_first || !is_any_wanted);
  }
}

TEST(ledger_reclaim_plans_over_corrupt_lines_neither_crash_nor_ask_for_more_than_is_held) {
  std::mt19937_64 random(12);
  auto segment = std::make_unique<LedgerSegment>();
  for (int round = 0; round < 300; ++round) {
    auto* words = reinterpret_cast<std::uint64_t*>(segment.get());
    for (std::size_t i = 0; i < sizeof(LedgerSegment) / sizeof(*words); ++i) words[i] = random();
    const Standings standings = read_standings(*segment, kNow);
    for (std::size_t i = 0; i < standings.count; ++i) {
      const std::int64_t share = asked_bytes(standings, i);
      CHECK(share >= 0 && share <= standings.all[i].used_bytes);
      CHECK(ahead_bytes(standings, i, kNow) >= 0);
    }
  }
}
