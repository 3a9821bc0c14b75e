#include "ledger/reclaim.hpp"

#include <algorithm>
#include <numeric>

namespace kvcached {
namespace {

using Order = std::array<std::size_t, kLedgerSlots>;

std::int64_t entitled_bytes(const Standing& one) { return std::max(one.used_bytes, one.floor_bytes); }

// A want for more than could ever be had is met as far as it can be.
std::int64_t want_within_reach(const Standings& standings, std::size_t slot, std::int64_t floors_bytes) {
  const Standing& one = standings.all[slot];
  const std::int64_t others_bytes = floors_bytes - one.floor_bytes;
  const std::int64_t most = std::min(one.limit_bytes, standings.budget_bytes - others_bytes);
  return std::clamp<std::int64_t>(most - entitled_bytes(one), 0, one.want_bytes);
}

std::int64_t floors_bytes(const Standings& standings) {
  std::int64_t sum = 0;
  for (std::size_t i = 0; i < standings.count; ++i) sum += standings.all[i].floor_bytes;
  return sum;
}

// Earlier is asked first: the least important, of those one that wants nothing itself, of those the fullest.
bool gives_before(const Standing& a, const Standing& b) {
  if (a.priority != b.priority) return a.priority < b.priority;
  if ((a.want_bytes > 0) != (b.want_bytes > 0)) return b.want_bytes > 0;
  return a.spare_bytes > b.spare_bytes;
}

bool is_served_before(const Standing& a, const Standing& b) {
  if (a.priority != b.priority) return a.priority > b.priority;
  return a.want_since_ns < b.want_since_ns;
}

// The slots in order; equal ones by slot, so that all readers agree.
template <typename Before>
Order sorted(const Standings& standings, Before before) {
  Order order{};
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(standings.count),
                   [&](std::size_t a, std::size_t b) { return before(standings.all[a], standings.all[b]); });
  return order;
}

// Shares what is needed out over those who can give.
class Collection {
 public:
  explicit Collection(const Standings& standings)
      : standings_(standings), order_(sorted(standings, gives_before)) {
    for (std::size_t i = 0; i < standings.count; ++i) {
      const Standing& one = standings.all[i];
      left_[i] = std::clamp<std::int64_t>(one.used_bytes - one.floor_bytes, 0, one.spare_bytes);
    }
  }

  void collect(std::int64_t need_bytes, std::size_t taker, std::int32_t most_priority) {
    for (std::size_t i = 0; i < standings_.count && need_bytes > 0; ++i) {
      const std::size_t giver = order_[i];
      if (giver == taker || standings_.all[giver].priority > most_priority) continue;
      const std::int64_t share = std::min(left_[giver], need_bytes);
      left_[giver] -= share;
      asked_[giver] += share;
      need_bytes -= share;
    }
  }

  std::int64_t asked_of(std::size_t slot) const { return asked_[slot]; }

 private:
  const Standings& standings_;
  Order order_;
  std::array<std::int64_t, kLedgerSlots> left_{};
  std::array<std::int64_t, kLedgerSlots> asked_{};
};

std::int64_t asked_for_others(const Standings& standings, std::size_t self) {
  std::int64_t free_bytes = standings.budget_bytes;
  bool is_wanted = false;
  for (std::size_t i = 0; i < standings.count; ++i) {
    free_bytes -= entitled_bytes(standings.all[i]);
    is_wanted |= i != self && standings.all[i].want_bytes > 0;
  }
  if (free_bytes >= 0 && !is_wanted) return 0;
  Collection collection(standings);
  // Floors that are promised and not yet there outrank everybody.
  if (free_bytes < 0) collection.collect(-free_bytes, kLedgerSlots, INT32_MAX);
  free_bytes = std::max<std::int64_t>(0, free_bytes);
  const std::int64_t floors = floors_bytes(standings);
  const Order order = sorted(standings, is_served_before);
  for (std::size_t i = 0; i < standings.count; ++i) {
    const std::size_t taker = order[i];
    const std::int64_t want = want_within_reach(standings, taker, floors);
    const std::int64_t found = std::min(free_bytes, want);
    free_bytes -= found;
    collection.collect(want - found, taker, standings.all[taker].priority);
  }
  return collection.asked_of(self);
}

}  // namespace

Standings read_standings(const LedgerSegment& segment, std::int64_t now_ns) {
  Standings standings;
  standings.budget_bytes = clamp_bytes(segment.header.budget_bytes.load());
  standings.count = high_slot(segment);
  for (std::size_t i = 0; i < standings.count; ++i) {
    const LedgerHotLine& line = segment.hot[i];
    Standing& one = standings.all[i];
    one.floor_bytes = floor_of(line);
    one.used_bytes = clamp_bytes(line.used_bytes.load());
    one.limit_bytes = std::max<std::int64_t>(0, line.limit_bytes.load());
    one.spare_bytes = clamp_bytes(line.spare_bytes.load());
    if (line.want_until_ns.load() > now_ns) {
      one.want_bytes = want_beyond(line.want_to_bytes.load(), entitled_bytes(one));
    }
    one.want_since_ns = line.want_since_ns.load();
    one.priority = line.priority.load();
    if (segment.info[i].recall_until_ns.load() > now_ns) {
      one.recall_to_bytes = clamp_bytes(segment.info[i].recall_to_bytes.load());
    }
  }
  return standings;
}

std::int64_t asked_bytes(const Standings& standings, std::size_t self) {
  const Standing& one = standings.all[self];
  const std::int64_t most = std::max(one.floor_bytes, std::min(one.limit_bytes, one.recall_to_bytes));
  return std::max({std::int64_t{0}, one.used_bytes - most, asked_for_others(standings, self)});
}

bool do_others_want(const Standings& standings, std::size_t self) {
  const std::int64_t floors = floors_bytes(standings);
  std::int64_t entitled = 0;
  for (std::size_t i = 0; i < standings.count; ++i) {
    if (i != self && want_within_reach(standings, i, floors) > 0) return true;
    entitled += entitled_bytes(standings.all[i]);
  }
  // A floor that is not there yet is wanted, too, though nobody says so: wants count beyond it.
  const Standing& one = standings.all[self];
  return entitled > standings.budget_bytes && one.used_bytes > one.floor_bytes;
}

std::int64_t ahead_bytes(const Standings& standings, std::size_t self, std::int64_t now_ns) {
  const Standing& mine = standings.all[self];
  const std::int64_t floors = floors_bytes(standings);
  std::int64_t sum = 0;
  for (std::size_t i = 0; i < standings.count; ++i) {
    const Standing& other = standings.all[i];
    if (i == self || other.want_bytes == 0 || other.priority < mine.priority) continue;
    // A line may hold any number: no subtraction that could overflow.
    const bool is_turn =
        other.want_since_ns > now_ns - kPatienceNs - kTurnNs && other.want_since_ns <= now_ns;
    if (!is_turn) continue;
    if (other.priority == mine.priority) {
      const bool is_old = other.want_since_ns <= now_ns - kPatienceNs;
      const bool is_mine_older =
          mine.want_bytes > 0 && (mine.want_since_ns < other.want_since_ns ||
                                  (mine.want_since_ns == other.want_since_ns && self < i));
      if (!is_old || is_mine_older) continue;
    }
    sum += want_within_reach(standings, i, floors);
  }
  return sum;
}

}  // namespace kvcached
