// Lives of pools and ranges in which every call beneath fails once. The tests require what the drill counts;
// the program fault_drill prints it for bench/faults.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "arena/geometry.hpp"
#include "arena/kv_pool.hpp"
#include "arena/virtual_range.hpp"
#include "ledger/client.hpp"
#include "vmm/vmm.hpp"

namespace drill {

// Pages of 16 rows in three stripes; ten and a half of them.
kvcached::Geometry geometry_for(const kvcached::Vmm& vmm);

using MakeBackend = std::function<std::shared_ptr<kvcached::Vmm>()>;

// A life as separate steps, so that each can be tried again after a failure.
class Life {
 public:
  Life(MakeBackend make, std::shared_ptr<kvcached::LedgerClient> client)
      : make_(std::move(make)), client_(std::move(client)) {}
  virtual ~Life() = default;

  virtual std::vector<std::function<void()>> steps() = 0;
  // All that a caller can tell apart. Throws if the books do not balance.
  virtual std::string look() const = 0;

 protected:
  MakeBackend make_;
  std::shared_ptr<kvcached::LedgerClient> client_;
  std::shared_ptr<kvcached::Vmm> vmm_;
};

class PoolLife : public Life {
 public:
  using Life::Life;
  std::vector<std::function<void()>> steps() override;
  std::string look() const override;

 private:
  std::unique_ptr<kvcached::KvPool> pool_;
  std::vector<std::int64_t> ids_;
};

class RangeLife : public Life {
 public:
  using Life::Life;
  std::vector<std::function<void()>> steps() override;
  std::string look() const override;

 private:
  std::unique_ptr<kvcached::VirtualRange> range_;
};

struct Passage {
  long failures = 0;        // steps that threw
  long state_changes = 0;   // of those: steps that changed something all the same
  long failed_retries = 0;  // steps that threw again
  std::string complaint;    // the first of the last two kinds, in words
};

// Goes through the steps. After one that throws, `mend` is called and the step tried again.
Passage live(Life& life, const std::function<void()>& mend);

struct Figures {
  long driver_calls = 0;     // of all lives without a failure, once for each injected code
  long injected = 0;         // calls that were made to fail
  long leaks = 0;            // objects left in the driver, credit left by a life, instants with more memory
                             // than credit
  long rule_violations = 0;  // calls that broke a rule of the driver
  long state_changes = 0;
  long failed_retries = 0;
  std::string complaint;
};

// The very first call of a process, whose failure makes CUDA unavailable in it: each code in a child, so this
// comes before any use of CUDA.
Figures fail_cuda_init();

// Both lives on the CUDA stand-in, with each driver call of theirs failing once, for want of memory and
// otherwise.
Figures fail_every_driver_call();

}  // namespace drill
