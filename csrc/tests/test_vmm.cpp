// The backend contract, once for all backends and adaptors; then what is particular to each.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <thread>
#include <vector>

#include "backends.hpp"
#include "vmm/cuda_vmm.hpp"
#include "vmm/error.hpp"
#include "vmm/host_vmm.hpp"
#include "vmm/limited_vmm.hpp"
#include "vmm/memfd_vmm.hpp"
#include "vmm/tracked_vmm.hpp"

namespace {

using namespace kvcached;
using backends::is_readable;
using backends::is_writable;
using backends::Kit;
using backends::standin;

// A reservation of eight pieces, with the bookkeeping that a test would repeat.
class Range {
 public:
  static constexpr std::size_t kPieces = 8;

  explicit Range(const Kit& kit) : Range(kit.make()) {}
  explicit Range(std::shared_ptr<Vmm> vmm)
      : vmm_(std::move(vmm)),
        piece_bytes_(vmm_->capabilities().default_page_bytes),
        base_(vmm_->reserve(kPieces * piece_bytes_, piece_bytes_)) {}
  Range(const Range&) = delete;
  Range& operator=(const Range&) = delete;
  ~Range() { vmm_->free_reservation(base_, kPieces * piece_bytes_); }

  Vmm& vmm() { return *vmm_; }
  std::size_t piece_bytes() const { return piece_bytes_; }
  Address at(std::size_t piece) const { return base_ + piece * piece_bytes_; }
  char* data(std::size_t piece) const { return reinterpret_cast<char*>(at(piece)); }

  std::vector<Handle> create(std::size_t count) {
    std::vector<Handle> handles;
    for (std::size_t i = 0; i < count; ++i) handles.push_back(vmm_->create(piece_bytes_));
    return handles;
  }
  void map(std::size_t first, const std::vector<Handle>& handles) {
    vmm_->map(at(first), piece_bytes_, handles.data(), handles.size());
    vmm_->set_access(at(first), piece_bytes_ * handles.size());
  }
  void unmap(std::size_t first, const std::vector<Handle>& handles) {
    vmm_->unmap(at(first), piece_bytes_, handles.data(), handles.size());
  }
  void release(const std::vector<Handle>& handles) {
    for (const Handle handle : handles) vmm_->release(handle, piece_bytes_);
  }

 private:
  std::shared_ptr<Vmm> vmm_;
  std::size_t piece_bytes_;
  Address base_;
};

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

TEST(vmm_host_populates_only_what_is_mapped) {
  HostVmm vmm(false);
  const std::size_t page = vmm.capabilities().default_page_bytes;
  const std::size_t bytes = std::size_t{16} << 20;  // room for huge pages, which must not come
  const Address base = vmm.reserve(bytes, page);
  const Handle token = vmm.create(page);
  vmm.map(base + bytes / 2, page, &token, 1);
  CHECK_EQ(backends::resident_bytes(base, bytes), page);
  vmm.free_reservation(base, bytes);
}

TEST(vmm_host_huge_ranges_are_aligned_to_huge_pages) {
  HostVmm vmm(false);
  const std::size_t huge = std::size_t{2} << 20;
  const Address base = vmm.reserve(4 * huge, huge);
  CHECK_EQ(base % huge, 0U);
  const Handle token = vmm.create(huge);
  vmm.map(base + huge, huge, &token, 1);
  CHECK_EQ(backends::resident_bytes(base, 4 * huge), huge);
  vmm.free_reservation(base, 4 * huge);
}

TEST(vmm_host_refusals_name_call_arguments_code_and_limit) {
  HostVmm vmm(false);
  CHECK_THROWS(OutOfMemory, "mmap(0x0, 1152921504606846976) failed: ENOMEM (12): Cannot allocate memory",
               vmm.reserve(std::size_t{1} << 60, 4096));
  CHECK(backends::holds_in_child([&vmm] {
    const rlimit small{std::size_t{1} << 40, std::size_t{1} << 40};
    if (::setrlimit(RLIMIT_AS, &small) != 0) return false;
    CHECK_THROWS(OutOfMemory, "addresses are limited to 1099511627776 bytes (ulimit -v)",
                 vmm.reserve(std::size_t{2} << 40, 4096));
    return testing::failures_in_test() == 0;
  }));
  CHECK_THROWS(DriverError, "munmap(0x1, 4096) failed: EINVAL (22): Invalid argument",
               vmm.free_reservation(1, 4096));
}

// Addresses over an empty file: the kernel refuses to back them, as it does when memory has run out.
class RefusingVmm : public HostVmm {
 public:
  RefusingVmm() : HostVmm(false) {}

 protected:
  void lay(Address base, std::size_t bytes) override {
    const FileDescriptor empty(::memfd_create("empty", MFD_CLOEXEC));
    void* const laid = ::mmap(reinterpret_cast<void*>(base), bytes, PROT_READ | PROT_WRITE,
                              MAP_SHARED | MAP_FIXED, empty.get(), 0);
    REQUIRE(laid != MAP_FAILED);
  }
};

TEST(vmm_host_memory_that_the_kernel_refuses_is_an_error) {
  RefusingVmm vmm;
  const Address base = vmm.reserve(1 << 20, 4096);
  const Handle token = vmm.create(4096);
  CHECK_THROWS(OutOfMemory, "with MADV_POPULATE_WRITE failed: EFAULT (14)", vmm.map(base, 4096, &token, 1));
  CHECK_THROWS(OutOfMemory, "bytes available", vmm.map(base, 4096, &token, 1));
  vmm.free_reservation(base, 1 << 20);
}

TEST(vmm_host_locked_pages_are_given_back_too) {
  for (const std::shared_ptr<Vmm>& vmm : std::vector<std::shared_ptr<Vmm>>{
           std::make_shared<HostVmm>(false), std::make_shared<MemfdVmm>(false)}) {
    Range range(vmm);
    const auto tokens = range.create(2);
    range.map(0, tokens);
    if (::mlock(range.data(0), range.piece_bytes()) != 0) throw testing::Skipped("mlock is not allowed here");
    range.unmap(0, tokens);
    CHECK_EQ(backends::resident_bytes(range.at(0), 2 * range.piece_bytes()), 0U);
  }
}

// Every second granule accessible makes each of them a memory area of its own, up to the kernel's limit.
template <typename Backend>
void run_into_the_limit_on_areas() {
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
  throw testing::Skipped("sanitizers need memory areas of their own");
#endif
  std::size_t limit = 0;
  std::ifstream("/proc/sys/vm/max_map_count") >> limit;
  if (limit == 0 || limit > 100'000) throw testing::Skipped("the limit on memory areas is unknown or high");
  const auto vmm = std::make_shared<Backend>(/*strict=*/true);
  const std::size_t granule = vmm->capabilities().granularity_bytes;
  const std::size_t bytes = (limit + 2) * granule;
  const Address base = vmm->reserve(bytes, granule);
  const Handle token = vmm->create(granule);
  Address next = base;
  CHECK_THROWS(
      OutOfMemory, "vm.max_map_count", for (; next < base + bytes; next += 2 * granule) {
        vmm->map(next, granule, &token, 1);
        *reinterpret_cast<char*>(next) = 5;
      });
  CHECK(next > base + limit / 2 * granule);
  CHECK(!is_readable(next));
  CHECK_EQ(static_cast<int>(*reinterpret_cast<char*>(base)), 5);
  for (Address at = base; at < next; at += 2 * granule) vmm->unmap(at, granule, &token, 1);
  CHECK_EQ(backends::resident_bytes(base, bytes), 0U);
  CHECK(!is_readable(base));
  vmm->map(base, granule, &token, 1);  // the areas have merged again: there is room
  vmm->map(next, granule, &token, 1);
  vmm->free_reservation(base, bytes);
}

TEST(vmm_host_the_limit_on_areas_is_an_error_and_memory_still_goes) {
  run_into_the_limit_on_areas<HostVmm>();
}

TEST(vmm_memfd_the_limit_on_areas_is_an_error_and_memory_still_goes) {
  run_into_the_limit_on_areas<MemfdVmm>();
}

TEST(vmm_memfd_pages_lie_in_the_file_where_they_lie_in_the_range) {
  Range range(std::make_shared<MemfdVmm>(true));
  const auto tokens = range.create(3);
  range.map(4, tokens);
  CHECK_EQ(range.vmm().export_memory(range.at(6), tokens[2]).offset_bytes, 6 * range.piece_bytes());
  range.unmap(4, tokens);
}

TEST(vmm_memfd_unmapping_returns_the_memory_of_importers_too) {
  Range range(std::make_shared<MemfdVmm>(false));
  const auto tokens = range.create(2);
  range.map(0, tokens);
  const ExportedMemory shared = range.vmm().export_memory(range.at(0), tokens[0]);
  void* seen = ::mmap(nullptr, range.piece_bytes(), PROT_READ, MAP_SHARED, shared.fd.get(), 0);
  REQUIRE(seen != MAP_FAILED);
  range.data(0)[0] = 1;
  CHECK_EQ(static_cast<int>(*static_cast<char*>(seen)), 1);
  range.unmap(0, tokens);
  CHECK_EQ(backends::resident_bytes(reinterpret_cast<Address>(seen), range.piece_bytes()), 0U);
  ::munmap(seen, range.piece_bytes());
}

TEST(vmm_memfd_an_importer_can_neither_cut_nor_stretch_the_file) {
  Range range(std::make_shared<MemfdVmm>(false));
  const auto tokens = range.create(1);
  range.map(0, tokens);
  const ExportedMemory shared = range.vmm().export_memory(range.at(0), tokens[0]);
  CHECK(::ftruncate(shared.fd.get(), 0) != 0);
  CHECK(::ftruncate(shared.fd.get(), 1 << 30) != 0);
  range.unmap(0, tokens);
}

TEST(vmm_memfd_a_forked_child_does_not_keep_its_parents_memory) {
  const Range range(std::make_shared<MemfdVmm>(false));
  const auto files_of_ours = [] {
    long count = 0;
    for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
      std::error_code gone;
      const std::string target = std::filesystem::read_symlink(entry, gone).string();
      count += target.find("memfd:kvcached") != std::string::npos ? 1 : 0;
    }
    return count;
  };
  CHECK_EQ(files_of_ours(), 1);
  CHECK(backends::holds_in_child([&] { return files_of_ours() == 0; }));
}

TEST(vmm_memfd_a_limit_on_file_sizes_is_an_error_and_not_a_signal) {
  CHECK(backends::holds_in_child([] {
    const rlimit small{1 << 20, 1 << 20};
    if (::setrlimit(RLIMIT_FSIZE, &small) != 0) return false;
    MemfdVmm vmm(false);
    CHECK_THROWS(Unavailable, "1048576 bytes: raise ulimit -f", vmm.reserve(2 << 20, 4096));
    vmm.free_reservation(vmm.reserve(1 << 20, 4096), 1 << 20);
    return testing::failures_in_test() == 0;
  }));
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

TEST(vmm_cuda_names_call_code_and_arguments) {
  standin();
  const auto vmm = std::make_shared<CudaVmm>(0);
  standin().fail("cuMemAddressReserve", 1, 999);
  CHECK_THROWS(DriverError, "cuMemAddressReserve(2097152) failed: unknown error (999)",
               vmm->reserve(2 << 20, 0));
  standin().fail("cuMemCreate", 1, cuda::kOutOfMemory);
  CHECK_THROWS(OutOfMemory, "CUDA_ERROR_OUT_OF_MEMORY (2)", vmm->create(2 << 20));
}

TEST(vmm_cuda_unknown_device_is_unavailable) {
  standin();
  CHECK_THROWS(Unavailable, "device 7 does not exist: there are 2", CudaVmm(7));
  CHECK(!cuda::unavailable_reason().has_value());
}

TEST(vmm_cuda_memory_is_shared_by_all_ranges) {
  standin().set_total_bytes(4 << 20);
  {
    Range range(std::make_shared<CudaVmm>(0));
    const auto handles = range.create(2);
    CHECK_THROWS(OutOfMemory, "held here 4194304, by others 0, free 0 of 4194304 bytes", range.create(1));
    range.release(handles);
    range.release(range.create(2));
  }
  standin().set_total_bytes(1 << 30);
  standin().check_clean();
}

TEST(vmm_cuda_devices_of_one_process_have_memory_of_their_own) {
  standin().set_total_bytes(4 << 20);
  {
    Range first(std::make_shared<CudaVmm>(0));
    Range second(std::make_shared<CudaVmm>(1));
    const auto on_first = first.create(2);
    CHECK_THROWS(OutOfMemory, "device 0", first.create(1));
    const auto on_second = second.create(2);
    CHECK_THROWS(OutOfMemory, "device 1", second.create(1));
    first.map(0, on_first);
    second.map(0, on_second);
    first.unmap(0, on_first);
    second.unmap(0, on_second);
    first.release(on_first);
    second.release(on_second);
  }
  standin().set_total_bytes(1 << 30);
  standin().check_clean();
}

TEST(vmm_cuda_fails_whole_runs_and_undoes_them) {
  {
    Range range(std::make_shared<CudaVmm>(0));
    const auto handles = range.create(4);
    standin().fail("cuMemMap", 3, cuda::kOutOfMemory);
    CHECK_THROWS(OutOfMemory, "cuMemMap", range.map(0, handles));
    CHECK_EQ(standin().state().mappings, 0);
    range.map(0, handles);
    range.data(3)[0] = 5;
    standin().fail("cuMemUnmap", 3, cuda::kInvalidValue);
    CHECK_THROWS(DriverError, "cuMemUnmap", range.unmap(0, handles));
    CHECK_EQ(standin().state().mappings, 4);
    CHECK(is_writable(range.at(0)));
    range.unmap(0, handles);
    range.release(handles);
  }
  standin().check_clean();
}

TEST(vmm_standin_notices_broken_rules) {
  const cuda::Driver& driver = (standin(), cuda::driver());
  const std::size_t page = std::size_t{2} << 20;
  const long before = standin().state().violations;
  const cuda::AllocationProp prop{cuda::kAllocationPinned, 0, {cuda::kLocationDevice, 0}, nullptr, {}};
  const cuda::AccessDesc access{{cuda::kLocationDevice, 0}, cuda::kAccessReadWrite};
  cuda::DevicePtr base = 0;
  cuda::AllocationHandle handle = 0;
  REQUIRE(driver.MemAddressReserve(&base, 4 * page, 0, 0, 0) == cuda::kSuccess);
  REQUIRE(driver.MemCreate(&handle, 2 * page, &prop, 0) == cuda::kSuccess);
  CHECK(driver.MemMap(base, page, page, handle, 0) != cuda::kSuccess);
  REQUIRE(driver.MemMap(base, 2 * page, 0, handle, 0) == cuda::kSuccess);
  CHECK(!is_readable(base));
  CHECK(driver.MemUnmap(base, page) != cuda::kSuccess);
  CHECK(driver.MemSetAccess(base, 4 * page, &access, 1) != cuda::kSuccess);
  CHECK(driver.MemMap(base, 2 * page, 0, handle, 0) != cuda::kSuccess);
  CHECK(driver.MemAddressFree(base, 4 * page) != cuda::kSuccess);
  CHECK(driver.MemRelease(handle) == cuda::kSuccess);
  CHECK(driver.MemRelease(handle) != cuda::kSuccess);
  CHECK_EQ(standin().state().held_bytes, static_cast<long>(2 * page));  // mapped memory outlives its handle
  CHECK(driver.MemUnmap(base, 2 * page) == cuda::kSuccess);
  CHECK(driver.MemAddressFree(base, 4 * page) == cuda::kSuccess);
  CHECK_EQ(standin().state().violations - before, 6);
  CHECK_EQ(standin().state().held_bytes, 0);
  standin().forgive();
}
