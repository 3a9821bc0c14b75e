// Corrupt bytes never crash a reader of the ledger's file: neither bytes that were there before it was
// opened, nor bytes that a hostile process of the same user writes under living clients.
//
// With clang and -DKVCACHED_FUZZER=ON this is a libFuzzer target; otherwise `fuzz_ledger RUNS [SEED]` mutates
// a ledger in use at random.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "ledger/ledger.hpp"
#include "ledger_folder.hpp"
#include "vmm/error.hpp"

namespace {

using namespace kvcached;

constexpr std::int64_t kBudget = 1000;

// Writes over the start of the file and keeps its length: shorter files are another matter
// (docs/ledger-protocol.md).
void overwrite(const std::string& path, const std::uint8_t* data, std::size_t size) {
  const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (fd < 0 || ::pwrite(fd, data, size, 0) != static_cast<ssize_t>(size)) std::abort();
  ::close(fd);
}

// Every call may refuse what it finds, with one of our errors; it may not do anything else.
template <typename Call>
void attempt(Call call) {
  try {
    call();
  } catch (const Error&) {
  }
}

void use_as_observer(const Ledger& ledger) {
  attempt([&] { ledger.snapshot(); });
  attempt([&] { ledger.wait(0, 0.0); });
  const auto pid = static_cast<std::uint32_t>(::getpid());
  for (const std::size_t slot : {std::size_t{0}, std::size_t{1}, kLedgerSlots}) {
    attempt([&] { ledger.set_limit(slot, pid, 500); });
    attempt([&] { ledger.set_floor(slot, pid, 50); });
    attempt([&] { ledger.set_priority(slot, pid, 3); });
    attempt([&] { ledger.recall(slot, pid, 10, 1.0); });
  }
}

void use_as_client(LedgerClient& client) {
  for (const bool is_yielding : {false, true}) {
    client.set_yielding(is_yielding);
    attempt([&] { client.try_claim(10); });
    attempt([&] { client.obtainable_bytes(); });
  }
  attempt([&] { client.release(10); });
  attempt([&] { client.attainable_bytes(); });
  attempt([&] { client.asked_bytes(); });
  attempt([&] { client.set_want(5); });
  attempt([&] { client.set_spare(5); });
  attempt([&] { client.set_floor(20); });
  attempt([&] { client.set_limit(900); });
  attempt([&] { client.explain(); });
  attempt([&] { client.publish({1, 2, 3, 4}); });
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const LedgerFolder folder;
  const std::string& path = folder.path();
  size = std::min(size, sizeof(LedgerSegment));
  ::unlink(path.c_str());

  // Found so.
  overwrite(path, data, size);
  ::truncate(path.c_str(), sizeof(LedgerSegment));
  attempt([&] {
    const Ledger found(path, std::nullopt);
    use_as_observer(found);
    const auto client = found.register_client({"fuzz", 1, std::nullopt, 0});
    use_as_client(*client);
  });

  // Written under living clients.
  ::unlink(path.c_str());
  const Ledger ledger(path, kBudget);
  const auto client = ledger.register_client({"fuzz", 100, std::nullopt, 0});
  const auto other = ledger.register_client({"other", 0, 400, 1});
  other->try_claim(300);
  overwrite(path, data, size);
  use_as_client(*client);
  use_as_observer(ledger);
  use_as_client(*other);
  return 0;
}

#ifndef KVCACHED_FUZZER

namespace {

std::vector<std::uint8_t> ledger_in_use() {
  const LedgerFolder folder;
  const Ledger ledger(folder.path(), kBudget);
  const auto a = ledger.register_client({"seed", 10, 500, -1});
  const auto b = ledger.register_client({"seed, too", 0, std::nullopt, 1});
  a->try_claim(100);
  a->set_spare(50);
  b->set_want(2000);
  std::vector<std::uint8_t> bytes(sizeof(LedgerSegment));
  const int fd = ::open(folder.path().c_str(), O_RDONLY | O_CLOEXEC);
  if (::pread(fd, bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size())) std::abort();
  ::close(fd);
  return bytes;
}

// Whole words of interest more often than bytes: most fields are one.
void mutate(std::vector<std::uint8_t>& bytes, std::mt19937_64& random) {
  constexpr std::uint64_t kWords[] = {0,  1, 0x7fffffffffffffff, 0x8000000000000000, ~std::uint64_t{0},
                                      64, 65};
  const std::size_t changes = 1 + random() % 16;
  for (std::size_t i = 0; i < changes; ++i) {
    // Half of them where the header and the first lines are.
    const std::size_t span = random() % 2 == 0 ? std::size_t{512} : bytes.size();
    const std::size_t at = random() % (span - 8) / 8 * 8;
    const std::uint64_t word = random() % 2 == 0 ? kWords[random() % std::size(kWords)] : random();
    std::memcpy(&bytes[at], &word, random() % 4 == 0 ? 1 + random() % 8 : 8);
  }
}

}  // namespace

int main(int argc, char** argv) {
  const long runs = argc > 1 ? std::atol(argv[1]) : 1000;
  std::mt19937_64 random(argc > 2 ? std::strtoul(argv[2], nullptr, 10) : 1);
  const std::vector<std::uint8_t> seed = ledger_in_use();
  for (long run = 0; run < runs; ++run) {
    std::vector<std::uint8_t> bytes = seed;
    if (run % 8 == 0) {
      for (std::uint8_t& byte : bytes) byte = static_cast<std::uint8_t>(random());
    } else {
      mutate(bytes, random);
    }
    LLVMFuzzerTestOneInput(bytes.data(), bytes.size());
  }
  std::printf("%ld ledgers survived\n", runs);
  return 0;
}

#endif
