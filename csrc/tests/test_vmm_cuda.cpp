// What is particular to CUDA devices: their facts, their memory, their errors. Over the stand-in.
#include <algorithm>
#include <memory>

#include "vmm/cuda_driver.hpp"
#include "vmm/cuda_vmm.hpp"
#include "vmm/error.hpp"
#include "vmm_range.hpp"

namespace {

using namespace kvcached;
using backends::is_readable;
using backends::is_writable;
using backends::Range;
using backends::standin;

}  // namespace

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

// Nothing is taken for granted: the devices of one process may differ.
TEST(vmm_cuda_granularity_is_asked_of_each_device) {
  const std::size_t kib = 1024;
  for (const std::size_t granularity_bytes : {64 * kib, 2048 * kib, 4096 * kib, 6144 * kib}) {
    standin().set_granularity(1, static_cast<long>(granularity_bytes));
    const auto first = std::make_shared<CudaVmm>(0), second = std::make_shared<CudaVmm>(1);
    CHECK_EQ(first->capabilities().granularity_bytes, 2048 * kib);
    CHECK_EQ(second->capabilities().granularity_bytes, granularity_bytes);
    CHECK_EQ(second->capabilities().default_page_bytes, std::max(2048 * kib, granularity_bytes));
    Range range(second);
    const auto handles = range.create(2);
    range.map(1, handles);
    CHECK(is_writable(range.at(2)));
    range.unmap(1, handles);
    range.release(handles);
  }
  standin().set_granularity(1, 2 << 20);
  standin().check_clean();
}

TEST(vmm_cuda_a_device_that_cannot_map_or_export_is_unavailable_for_it) {
  standin();
  standin().set_attribute(1, cuda::kAttributePosixFdSupported, 0);
  CHECK_THROWS(Unavailable, "device 1 cannot export memory", CudaVmm(1, /*exportable=*/true));
  CHECK(!CudaVmm(1).capabilities().exportable);
  CHECK(CudaVmm(0, /*exportable=*/true).capabilities().exportable);
  standin().set_attribute(1, cuda::kAttributeVmmSupported, 0);
  CHECK_THROWS(Unavailable, "device 1 does not support virtual memory management", CudaVmm(1));
  CHECK_EQ(CudaVmm(0).capabilities().device, 0);
  standin().set_attribute(1, cuda::kAttributePosixFdSupported, 1);
  standin().set_attribute(1, cuda::kAttributeVmmSupported, 1);
  standin().check_clean();
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
