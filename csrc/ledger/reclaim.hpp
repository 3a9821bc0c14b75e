// Who has to give back how much, and whose wants go first. Pure functions over what all lines show: every
// process computes the same plan for itself, so nobody has to be told.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "ledger/segment.hpp"

namespace kvcached {

// Among equals a want goes before new work of others only once it is this old: memory is not left idle for
// it at once.
constexpr std::int64_t kPatienceNs = 500'000'000;
// A want goes first for this long at a time; then it queues again. One that cannot be met holds up nobody for
// good.
constexpr std::int64_t kTurnNs = 5'000'000'000;

struct Standing {
  std::int64_t used_bytes = 0;
  std::int64_t floor_bytes = 0;
  std::int64_t limit_bytes = kUnlimited;
  std::int64_t spare_bytes = 0;
  std::int64_t want_bytes = 0;  // beyond what it is entitled to; 0 once lapsed
  std::int64_t want_since_ns = 0;
  std::int64_t recall_to_bytes = kUnlimited;  // kUnlimited: not recalled
  std::int32_t priority = 0;
};

struct Standings {
  std::int64_t budget_bytes = 0;
  std::size_t count = 0;
  std::array<Standing, kLedgerSlots> all;
};

Standings read_standings(const LedgerSegment& segment, std::int64_t now_ns);

// What `self` should give back now: its share of what others want (lowest priority first, none to lower ones,
// never beyond its spare bytes or below its floor), and what it holds over its limit or over a recall.
std::int64_t asked_bytes(const Standings& standings, std::size_t self);

// Whether any other client was refused memory that it could have and still wants it, or `self` holds beyond
// its floor what is promised to the floors of others.
bool do_others_want(const Standings& standings, std::size_t self);

// What new work of `self` must leave free: the wants that go before it.
std::int64_t ahead_bytes(const Standings& standings, std::size_t self, std::int64_t now_ns);

}  // namespace kvcached
