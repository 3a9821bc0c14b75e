#pragma once

#include <time.h>

#include <cstdint>

namespace kvcached {

// Of all processes of a machine the same, a few milliseconds coarse, without a system call.
inline std::int64_t coarse_now_ns() noexcept {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
  return std::int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

}  // namespace kvcached
