// The shared file, byte for byte. Any change of layout raises kVersion.
//
//   header   budget, generation (futex word)
//   hot[i]   what a claim reads: one cache line per client, written only by its owner
//   info[i]  what people read about it
//
// A reader trusts nothing here: every value is clamped before it is used.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace kvcached {

constexpr std::uint64_t kLedgerMagic = 0x7265676465'6c766bULL;  // "kvledger"
constexpr std::uint32_t kLedgerVersion = 1;
constexpr std::size_t kLedgerSlots = 64;
constexpr std::size_t kNameWords = 6;
constexpr std::size_t kNameBytes = kNameWords * sizeof(std::uint64_t);
constexpr std::int64_t kUnlimited = INT64_MAX;
// Larger than any device, small enough that the sum over all slots cannot overflow.
constexpr std::int64_t kMaxBytes = std::int64_t{1} << 56;

struct alignas(64) LedgerHeader {
  std::atomic<std::uint64_t> magic;
  std::uint32_t version;
  std::uint32_t slots;
  std::atomic<std::int64_t> budget_bytes;
  std::atomic<std::uint32_t> generation;   // futex word: bumped by all that may let a waiter through
  std::atomic<std::uint32_t> has_waiters;  // set by a waiter, cleared by whoever wakes
  std::atomic<std::uint32_t> high_slot;    // no slot at or above this was ever used
};

struct alignas(64) LedgerHotLine {
  std::atomic<std::int64_t> used_bytes;
  std::atomic<std::int64_t> floor_bytes;
  std::atomic<std::int64_t> limit_bytes;
  std::atomic<std::int64_t> want_bytes;  // refused to it and still wanted: a plea to whoever can spare some
};

struct alignas(64) LedgerInfoLine {
  std::atomic<std::uint32_t> pid;  // 0: free
  std::atomic<std::int32_t> priority;
  std::atomic<std::uint64_t> name[kNameWords];  // UTF-8, zero-padded
  std::atomic<std::uint64_t> range_base;
  std::atomic<std::uint64_t> range_bytes;
  std::atomic<std::uint64_t> rows_used;
  std::atomic<std::uint64_t> rows_backed;
};

struct LedgerSegment {
  LedgerHeader header;
  LedgerHotLine hot[kLedgerSlots];
  LedgerInfoLine info[kLedgerSlots];
};

static_assert(std::atomic<std::int64_t>::is_always_lock_free &&
              std::atomic<std::uint32_t>::is_always_lock_free);
static_assert(sizeof(LedgerHeader) == 64 && sizeof(LedgerHotLine) == 64 && sizeof(LedgerInfoLine) == 128);

inline std::int64_t clamp_bytes(std::int64_t value) noexcept {
  return std::clamp<std::int64_t>(value, 0, kMaxBytes);
}

inline std::size_t high_slot(const LedgerSegment& segment) noexcept {
  return std::min<std::size_t>(segment.header.high_slot.load(), kLedgerSlots);
}

// What slot `i` is entitled to: its floor counts whether used or not.
inline std::int64_t committed_bytes(const LedgerHotLine& line) noexcept {
  return std::max(clamp_bytes(line.used_bytes.load()), clamp_bytes(line.floor_bytes.load()));
}

// Sum of what all slots but `skip` are entitled to.
inline std::int64_t committed_by_others(const LedgerSegment& segment, std::size_t skip) noexcept {
  std::int64_t sum = 0;
  for (std::size_t i = 0; i < high_slot(segment); ++i) {
    if (i != skip) sum += committed_bytes(segment.hot[i]);
  }
  return sum;
}

inline std::int64_t wanted_by_others(const LedgerSegment& segment, std::size_t skip) noexcept {
  std::int64_t sum = 0;
  for (std::size_t i = 0; i < high_slot(segment); ++i) {
    if (i != skip) sum += clamp_bytes(segment.hot[i].want_bytes.load());
  }
  return sum;
}

inline std::int64_t floors_of_others(const LedgerSegment& segment, std::size_t skip) noexcept {
  std::int64_t sum = 0;
  for (std::size_t i = 0; i < high_slot(segment); ++i) {
    if (i != skip) sum += clamp_bytes(segment.hot[i].floor_bytes.load());
  }
  return sum;
}

}  // namespace kvcached
