// The backend contract, once for all backends and adaptors; then what is particular to the adaptors.
#include <fcntl.h>
#include <sys/mman.h>

#include <atomic>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include "vmm/error.hpp"
#include "vmm/host_vmm.hpp"
#include "vmm/limited_vmm.hpp"
#include "vmm/tracked_vmm.hpp"
#include "vmm_range.hpp"

namespace {

using namespace kvcached;
using backends::is_readable;
using backends::is_writable;
using backends::Range;

}  // namespace

TEST_EACH_BACKEND(vmm_capabilities_are_plausible) {
  const auto vmm = kit.make();
  const Capabilities& c = vmm->capabilities();
  CHECK(c.kind == "host" || c.kind == "cuda");
  CHECK(c.granularity_bytes > 0);
  CHECK_EQ(c.default_page_bytes % c.granularity_bytes, 0U);
}

TEST_EACH_BACKEND(vmm_reserved_addresses_are_aligned_and_hold_no_memory) {
  Range range(kit);
  CHECK_EQ(range.at(0) % range.vmm().capabilities().granularity_bytes, 0U);
  if (range.vmm().capabilities().strict) CHECK(!is_readable(range.at(0)));
  CHECK_EQ(backends::resident_bytes(range.at(0), Range::kPieces * range.piece_bytes()), 0U);
}

TEST_EACH_BACKEND(vmm_mapped_memory_holds_what_is_written) {
  Range range(kit);
  const auto handles = range.create(3);
  range.map(2, handles);
  for (std::size_t i = 2; i < 5; ++i) {
    std::memset(range.data(i), static_cast<int>(i), range.piece_bytes());
  }
  for (std::size_t i = 2; i < 5; ++i) {
    CHECK_EQ(static_cast<int>(range.data(i)[0]), static_cast<int>(i));
    CHECK_EQ(static_cast<int>(range.data(i)[range.piece_bytes() - 1]), static_cast<int>(i));
  }
  CHECK_EQ(backends::resident_bytes(range.at(2), 3 * range.piece_bytes()), 3 * range.piece_bytes());
  range.unmap(2, handles);
  range.release(handles);
}

TEST_EACH_BACKEND(vmm_unmapping_one_piece_keeps_its_neighbours) {
  Range range(kit);
  const auto handles = range.create(3);
  range.map(0, handles);
  for (std::size_t i = 0; i < 3; ++i) range.data(i)[0] = static_cast<char>(10 + i);
  range.unmap(1, {handles[1]});
  CHECK_EQ(static_cast<int>(range.data(0)[0]), 10);
  CHECK_EQ(static_cast<int>(range.data(2)[0]), 12);
  if (range.vmm().capabilities().strict) CHECK(!is_readable(range.at(1)));
  range.map(1, {handles[1]});
  CHECK(is_writable(range.at(1)));
  range.unmap(0, handles);
  range.release(handles);
}

TEST_EACH_BACKEND(vmm_unmapped_memory_is_gone) {
  Range range(kit);
  const auto handles = range.create(2);
  range.map(0, handles);
  std::memset(range.data(0), 1, 2 * range.piece_bytes());
  range.unmap(0, handles);
  range.release(handles);
  CHECK_EQ(backends::resident_bytes(range.at(0), 2 * range.piece_bytes()), 0U);
}

TEST_EACH_BACKEND(vmm_ranges_do_not_share_addresses_or_memory) {
  const auto vmm = kit.make();
  Range one(vmm);
  Range two(vmm);
  const auto first = one.create(1);
  const auto second = two.create(1);
  one.map(0, first);
  two.map(0, second);
  one.data(0)[0] = 1;
  two.data(0)[0] = 2;
  CHECK_EQ(static_cast<int>(one.data(0)[0]), 1);
  one.unmap(0, first);
  CHECK_EQ(static_cast<int>(two.data(0)[0]), 2);
  two.unmap(0, second);
  one.release(first);
  two.release(second);
}

TEST_EACH_BACKEND(vmm_threads_with_a_range_each_share_a_backend) {
  const auto vmm = kit.make();
  std::atomic<int> wrong{0};
  const auto work = [&](int number) {
    for (int round = 0; round < 10; ++round) {
      Range range(vmm);
      const auto handles = range.create(3);
      range.map(1, handles);
      std::memset(range.data(1), number, 3 * range.piece_bytes());
      wrong += range.data(3)[100] == number ? 0 : 1;
      range.unmap(1, handles);
      range.release(handles);
    }
  };
  std::vector<std::thread> threads;
  for (int number = 1; number <= 4; ++number) threads.emplace_back(work, number);
  for (std::thread& thread : threads) thread.join();
  CHECK_EQ(wrong.load(), 0);
}

// The peer mapped 32 GiB that the kernel would not promise, did not look at the answer, and went on.
TEST_EACH_BACKEND(vmm_peer_fault_12_addresses_are_no_promise_and_a_refusal_is_an_error) {
  const auto vmm = kit.make();
  const std::size_t page = vmm->capabilities().default_page_bytes;
#ifndef __SANITIZE_THREAD__
  const std::size_t terabyte = std::size_t{1} << 40;  // more than any machine that runs this has
  const Address base = vmm->reserve(terabyte, page);
  const Handle handle = vmm->create(page);
  vmm->map(base + terabyte - page, page, &handle, 1);
  vmm->set_access(base + terabyte - page, page);
  CHECK(is_writable(base + terabyte - 1));
  vmm->unmap(base + terabyte - page, page, &handle, 1);
  vmm->release(handle, page);
  vmm->free_reservation(base, terabyte);
#endif
  CHECK_THROWS(OutOfMemory, "(", vmm->reserve(std::size_t{1} << 60, page));
}

// The peer keeps one shared segment for all pools: making a second, smaller one shrinks the first.
TEST_EACH_BACKEND(vmm_peer_fault_02_a_second_range_leaves_the_first_as_it_is) {
  const auto vmm = kit.make();
  Range large(vmm);
  const auto handles = large.create(Range::kPieces);
  large.map(0, handles);
  std::memset(large.data(0), 7, Range::kPieces * large.piece_bytes());
  const Address small = vmm->reserve(large.piece_bytes(), large.piece_bytes());
  vmm->free_reservation(small, large.piece_bytes());
  CHECK_EQ(static_cast<int>(large.data(Range::kPieces)[-1]), 7);
  large.unmap(0, handles);
  large.release(handles);
}

TEST_EACH_BACKEND(vmm_exported_memory_is_the_same_memory_in_another_process) {
  Range range(kit);
  Vmm& vmm = range.vmm();
  const auto handles = range.create(2);
  range.map(1, handles);
  if (vmm.capabilities().exportable) {
    const ExportedMemory shared = vmm.export_memory(range.at(2), handles[1]);
    CHECK_EQ(::fcntl(shared.fd.get(), F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
    range.data(2)[7] = 42;
    CHECK(backends::holds_in_child([&] {
      void* seen = ::mmap(nullptr, range.piece_bytes(), PROT_READ | PROT_WRITE, MAP_SHARED, shared.fd.get(),
                          static_cast<off_t>(shared.offset_bytes));
      if (seen == MAP_FAILED || static_cast<char*>(seen)[7] != 42) return false;
      static_cast<char*>(seen)[7] = 43;
      return true;
    }));
    CHECK_EQ(static_cast<int>(range.data(2)[7]), 43);
  } else {
    CHECK_THROWS(Unavailable, "ask for exportable memory", vmm.export_memory(range.at(2), handles[1]));
  }
  range.unmap(1, handles);
  range.release(handles);
}

TEST(vmm_limited_refuses_beyond_its_limit_and_recovers) {
  LimitedVmm vmm(std::make_shared<HostVmm>(false), 3 * 4096);
  const Handle first = vmm.create(2 * 4096);
  CHECK_THROWS(OutOfMemory, "8192 held of a limit of 12288", vmm.create(2 * 4096));
  CHECK_EQ(vmm.held_bytes(), 2U * 4096);
  vmm.release(first, 2 * 4096);
  CHECK_EQ(vmm.held_bytes(), 0U);
  vmm.release(vmm.create(3 * 4096), 3 * 4096);
}

TEST(vmm_tracked_counts_and_enforces_the_contract) {
  TrackedVmm vmm(std::make_shared<HostVmm>(false));
  const Address base = vmm.reserve(4 * 4096, 4096);
  const Handle token = vmm.create(4096);
  CHECK_THROWS(Misuse, "outside", vmm.map(base - 4096, 4096, &token, 1));
  CHECK_THROWS(Misuse, "no such piece", vmm.map(base, 8192, &token, 1));
  vmm.map(base, 4096, &token, 1);
  CHECK_THROWS(Misuse, "already", vmm.map(base, 4096, &token, 1));
  CHECK_THROWS(Misuse, "not fully mapped", vmm.set_access(base, 8192));
  CHECK_THROWS(Misuse, "not mapped", vmm.unmap(base + 4096, 4096, &token, 1));
  CHECK_THROWS(Misuse, "still mapped", vmm.free_reservation(base, 4 * 4096));
  CHECK_EQ(vmm.live().mapped_bytes, 4096U);
  vmm.unmap(base, 4096, &token, 1);
  vmm.release(token, 4096);
  CHECK_THROWS(Misuse, "released before", vmm.release(token, 4096));
  vmm.free_reservation(base, 4 * 4096);
  CHECK_EQ(vmm.live().reservations + vmm.live().pieces + vmm.live().mappings, 0U);
}
