// The shared file, byte for byte. Any change of layout raises kLedgerVersion.
//
//   header   budget; hardly ever written
//   bell     generation (futex word); written by every release
//   hot[i]   what a claim or a plan of who gives back reads: one cache line per client
//   info[i]  what people read about it, and what its owner is asked by them
//
// Of a line, `used` to `want_until` are written by its owner alone; the settings (floor, limit, priority,
// recall) by anybody of this user under the admin lock. Whoever holds a dead client's lock may clear its
// line. A reader trusts nothing here: every value is clamped before it is used.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace kvcached {

constexpr std::uint64_t kLedgerMagic = 0x7265676465'6c766bULL;  // "kvledger"
constexpr std::uint32_t kLedgerVersion = 3;
constexpr std::size_t kLedgerSlots = 64;
constexpr std::size_t kNameWords = 6;
constexpr std::size_t kNameBytes = kNameWords * sizeof(std::uint64_t);
constexpr std::int64_t kUnlimited = INT64_MAX;
// Larger than any device, small enough that the sum over all slots cannot overflow, and that a floor leaves
// 16 bits of its word for the count of its changes.
constexpr std::int64_t kMaxBytes = std::int64_t{1} << 47;
constexpr int kFloorBits = 48;

enum class ClientKind : std::uint32_t { kKv, kWeights, kOther };
constexpr std::uint32_t kClientKinds = 3;

struct alignas(64) LedgerHeader {
  std::atomic<std::uint64_t> magic;
  std::uint32_t version;
  std::uint32_t slots;
  std::atomic<std::int64_t> budget_bytes;
  std::atomic<std::uint32_t> high_slot;  // no slot at or above this was ever used
};

struct alignas(64) LedgerBell {
  std::atomic<std::uint32_t> generation;     // futex word: bumped by all that may let a waiter through
  std::atomic<std::uint32_t> has_waiters;    // set by a waiter, cleared by whoever will wake it
  std::atomic<std::int64_t> lapses_rung_ns;  // what lapsed up to this instant has been rung for
};

// Instants are CLOCK_MONOTONIC nanoseconds, which all processes of a machine share.
struct alignas(64) LedgerHotLine {
  std::atomic<std::int64_t> used_bytes;
  std::atomic<std::int64_t> spare_bytes;    // of these, what it could give back without hurting running work
  std::atomic<std::int64_t> want_to_bytes;  // refused to it and still wanted: to hold this much; 0: nothing
  std::atomic<std::int64_t> want_since_ns;  // its turn: when the want began, or was last granted some of it
  std::atomic<std::int64_t> want_until_ns;  // the want lapses then unless it is renewed
  std::atomic<std::uint64_t> floor_word;    // floor in the low 48 bits, a count of its changes above
  std::atomic<std::int64_t> limit_bytes;
  std::atomic<std::int32_t> priority;
  std::atomic<std::uint32_t> kind;
};

struct alignas(64) LedgerInfoLine {
  std::atomic<std::uint32_t> pid;               // 0: free
  std::atomic<std::uint32_t> calls;             // futex word: bumped when its owner may be asked for more
  std::atomic<std::uint64_t> name[kNameWords];  // UTF-8, zero-padded
  std::atomic<std::uint64_t> range_base;
  std::atomic<std::uint64_t> range_bytes;
  std::atomic<std::uint64_t> rows_used;
  std::atomic<std::uint64_t> rows_backed;
  std::atomic<std::int64_t> recall_to_bytes;  // asked of it until recall_until: to hold no more than this
  std::atomic<std::int64_t> recall_until_ns;
};

struct LedgerSegment {
  LedgerHeader header;
  LedgerBell bell;
  LedgerHotLine hot[kLedgerSlots];
  LedgerInfoLine info[kLedgerSlots];
};

static_assert(std::atomic<std::int64_t>::is_always_lock_free &&
              std::atomic<std::uint32_t>::is_always_lock_free);
static_assert(sizeof(LedgerHeader) == 64 && sizeof(LedgerBell) == 64 && sizeof(LedgerHotLine) == 64 &&
              sizeof(LedgerInfoLine) == 128);

inline std::int64_t clamp_bytes(std::int64_t value) noexcept {
  return std::clamp<std::int64_t>(value, 0, kMaxBytes);
}

inline std::size_t high_slot(const LedgerSegment& segment) noexcept {
  return std::min<std::size_t>(segment.header.high_slot.load(), kLedgerSlots);
}

inline std::int64_t floor_of(std::uint64_t word) noexcept {
  return clamp_bytes(static_cast<std::int64_t>(word & ((std::uint64_t{1} << kFloorBits) - 1)));
}

inline std::int64_t floor_of(const LedgerHotLine& line) noexcept { return floor_of(line.floor_word.load()); }

// Nothing held, guaranteed or wanted. The count of floor changes stays: a new owner goes on from it.
inline void clear_account(LedgerHotLine& line) noexcept {
  line.want_to_bytes.store(0);
  line.spare_bytes.store(0);
  line.used_bytes.store(0);
  line.floor_word.store(line.floor_word.load() >> kFloorBits << kFloorBits);
}

// What a client is entitled to: its floor counts whether used or not. The floor is read first: a claim within
// a floor that is being lowered stands in `used` by the time the lower floor can be read.
inline std::int64_t committed_bytes(const LedgerHotLine& line) noexcept {
  const std::int64_t floor_bytes = floor_of(line);
  return std::max(clamp_bytes(line.used_bytes.load()), floor_bytes);
}

// What is still wanted by one that is entitled to so much. As the line holds the level to be reached, a claim
// serves the want in the very step in which it adds to `used`, and nobody ever sees both.
inline std::int64_t want_beyond(std::int64_t want_to_bytes, std::int64_t entitled_bytes) noexcept {
  return clamp_bytes(std::max<std::int64_t>(0, want_to_bytes) - entitled_bytes);
}

// Sum of what all slots but `skip` are entitled to.
inline std::int64_t committed_by_others(const LedgerSegment& segment, std::size_t skip) noexcept {
  std::int64_t sum = 0;
  for (std::size_t i = 0; i < high_slot(segment); ++i) {
    if (i != skip) sum += committed_bytes(segment.hot[i]);
  }
  return sum;
}

inline std::int64_t floors_of_others(const LedgerSegment& segment, std::size_t skip) noexcept {
  std::int64_t sum = 0;
  for (std::size_t i = 0; i < high_slot(segment); ++i) {
    if (i != skip) sum += floor_of(segment.hot[i]);
  }
  return sum;
}

}  // namespace kvcached
