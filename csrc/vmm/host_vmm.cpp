#include "vmm/host_vmm.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <sstream>

#include "vmm/error.hpp"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23  // Linux 5.14; older headers lack the name
#endif
#ifndef EHWPOISON
#define EHWPOISON 133
#endif

namespace kvcached {
namespace {

constexpr std::size_t kHugePageBytes = std::size_t{2} << 20;
constexpr std::size_t kDefaultPageBytes = std::size_t{64} << 10;

void* pointer(Address address) { return reinterpret_cast<void*>(address); }

std::string describe(const char* call, Address first, std::size_t bytes, int code) {
  std::ostringstream out;
  out << call << " of " << bytes << " bytes at 0x" << std::hex << first << std::dec << " failed: errno "
      << code << " (" << std::strerror(code) << ")";
  return out.str();
}

[[noreturn]] void raise(const char* call, Address first, std::size_t bytes, int code) {
  const std::string message = describe(call, first, bytes, code);
  // EFAULT is what the kernel answers to a populate it could not charge or back.
  if (code == ENOMEM || code == EAGAIN || code == EFAULT || code == EHWPOISON) throw OutOfMemory(message);
  throw DriverError(message);
}

void touch_each_page(Address first, std::size_t bytes, std::size_t step) {
  for (Address at = first; at < first + bytes; at += step) *static_cast<volatile char*>(pointer(at)) = 0;
}

}  // namespace

HostVmm::HostVmm(bool strict) {
  capabilities_.kind = "host";
  capabilities_.granularity_bytes = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  capabilities_.default_page_bytes = kDefaultPageBytes;
  capabilities_.strict = strict;
}

Address HostVmm::reserve(std::size_t bytes, std::size_t page_bytes) {
  const bool huge = page_bytes % kHugePageBytes == 0;
  const std::size_t slack = huge ? kHugePageBytes : 0;
  void* raw = ::mmap(nullptr, bytes + slack, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (raw == MAP_FAILED) raise("mmap", 0, bytes + slack, errno);

  Address base = reinterpret_cast<Address>(raw);
  if (slack != 0) {
    const Address aligned = (base + slack - 1) / slack * slack;
    if (aligned > base) ::munmap(pointer(base), aligned - base);
    const std::size_t tail = base + slack - aligned;
    if (tail > 0) ::munmap(pointer(aligned + bytes), tail);
    base = aligned;
  }
  // Advice only: where a kernel lacks one of these the range still works. A core dump must not fault in the
  // reservation, and a forked child must not share pages whose budget belongs to its parent.
  ::madvise(pointer(base), bytes, MADV_DONTDUMP);
  ::madvise(pointer(base), bytes, MADV_DONTFORK);
  // Under MADV_HUGEPAGE a populate of 64 KiB commits 2 MiB, which no budget would see.
  ::madvise(pointer(base), bytes, huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
  if (capabilities_.strict) {
    // One write while the whole range is a single area gives all later fragments the same anon_vma; without
    // it neighbours never merge again and mprotect runs into the kernel's limit on areas.
    touch_each_page(base, 1, 1);
    ::madvise(pointer(base), huge ? kHugePageBytes : capabilities_.granularity_bytes, MADV_DONTNEED);
    if (::mprotect(pointer(base), bytes, PROT_NONE) != 0) {
      const int code = errno;
      ::munmap(pointer(base), bytes);
      raise("mprotect", base, bytes, code);
    }
  }
  return base;
}

void HostVmm::free_reservation(Address base, std::size_t bytes) {
  if (::munmap(pointer(base), bytes) != 0) raise("munmap", base, bytes, errno);
}

Handle HostVmm::create(std::size_t) { return 0; }

void HostVmm::release(Handle, std::size_t) {}

void HostVmm::map(Address first, std::size_t piece_bytes, const Handle*, std::size_t count) {
  const std::size_t bytes = piece_bytes * count;
  if (capabilities_.strict && ::mprotect(pointer(first), bytes, PROT_READ | PROT_WRITE) != 0) {
    raise("mprotect", first, bytes, errno);
  }
  try {
    populate(first, bytes);
  } catch (...) {
    forget(first, bytes);
    throw;
  }
}

// map() had to make the range writable in order to commit it.
void HostVmm::set_access(Address, std::size_t) {}

void HostVmm::unmap(Address first, std::size_t piece_bytes, const Handle*, std::size_t count) {
  forget(first, piece_bytes * count);
}

void HostVmm::populate(Address first, std::size_t bytes) {
  for (;;) {
    if (::madvise(pointer(first), bytes, MADV_POPULATE_WRITE) == 0) return;
    if (errno == EINTR) continue;
    if (errno != EINVAL) raise("madvise(MADV_POPULATE_WRITE)", first, bytes, errno);
    touch_each_page(first, bytes, capabilities_.granularity_bytes);  // kernel before 5.14
    return;
  }
}

// Memory first, protection second: at the kernel's limit on areas mprotect fails, and the memory must be
// gone all the same. A range that stays accessible then merely loses its strictness.
void HostVmm::forget(Address first, std::size_t bytes) noexcept {
  ::madvise(pointer(first), bytes, MADV_DONTNEED);
  if (capabilities_.strict) ::mprotect(pointer(first), bytes, PROT_NONE);
}

}  // namespace kvcached
