// Sleeping on a word that processes share. The kernel looks at the word and falls asleep in one step.
#pragma once

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <climits>
#include <cstdint>

namespace kvcached {

// Sleeps while the word is `value`, at most `timeout` (null: no limit); wakes early for no reason at times.
inline void futex_wait(const std::atomic<std::uint32_t>& word, std::uint32_t value,
                       const timespec* timeout) noexcept {
  ::syscall(SYS_futex, &word, FUTEX_WAIT, value, timeout, nullptr, 0);
}

inline void futex_wake_all(const std::atomic<std::uint32_t>& word) noexcept {
  ::syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace kvcached
