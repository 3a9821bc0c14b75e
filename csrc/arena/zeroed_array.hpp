#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <new>
#include <type_traits>
#include <utility>

namespace kvcached {

// A fixed array that starts as zeros without touching them: per-page tables of a terabyte range then cost
// memory only where pages are in use. Large ones come from the kernel: calloc clears memory that it recycles.
template <typename T>
class ZeroedArray {
  static_assert(std::is_trivially_copyable_v<T>, "zero bytes must be a valid T");

 public:
  explicit ZeroedArray(std::size_t count) : bytes_(count * sizeof(T)) {
    if (count > SIZE_MAX / sizeof(T)) throw std::bad_alloc();
    void* memory = nullptr;
    if (is_large()) {
      memory =
          ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
      if (memory == MAP_FAILED) throw std::bad_alloc();
      ::madvise(memory, bytes_, MADV_NOHUGEPAGE);  // else the first touch may cost 2 MiB
    } else {
      memory = std::calloc(count, sizeof(T));
      if (memory == nullptr && count != 0) throw std::bad_alloc();
    }
    data_ = static_cast<T*>(memory);
  }
  ZeroedArray(ZeroedArray&& other) noexcept
      : bytes_(std::exchange(other.bytes_, 0)), data_(std::exchange(other.data_, nullptr)) {}
  ZeroedArray& operator=(ZeroedArray&& other) noexcept {
    std::swap(bytes_, other.bytes_);
    std::swap(data_, other.data_);
    return *this;
  }
  ~ZeroedArray() {
    if (is_large()) {
      ::munmap(data_, bytes_);
    } else {
      std::free(data_);
    }
  }

  T& operator[](std::size_t index) noexcept { return data_[index]; }
  const T& operator[](std::size_t index) const noexcept { return data_[index]; }

 private:
  bool is_large() const noexcept { return bytes_ >= std::size_t{64} << 10; }

  std::size_t bytes_;
  T* data_ = nullptr;
};

}  // namespace kvcached
