#include "testing.hpp"

namespace testing {
namespace {

enum class Outcome { kPassed, kFailed, kSkipped };

Outcome run_one(const Test& test) {
  failures_in_test() = 0;
  try {
    test.body();
  } catch (const Skipped& reason) {
    std::printf("skip %s: %s\n", test.name.c_str(), reason.what());
    return Outcome::kSkipped;
  } catch (const RequirementFailed&) {
    // Reported where it happened.
  } catch (const std::exception& error) {
    std::fprintf(stderr, "  unexpected exception: %s\n", error.what());
    ++failures_in_test();
  }
  const bool passed = failures_in_test() == 0;
  std::printf("%s %s\n", passed ? "ok  " : "FAIL", test.name.c_str());
  return passed ? Outcome::kPassed : Outcome::kFailed;
}

}  // namespace

int run(int argc, char** argv) {
  const std::string filter = argc > 1 ? argv[1] : "";
  int passed = 0, failed = 0, skipped = 0;
  for (const Test& test : registry()) {
    if (test.name.rfind(filter, 0) != 0) continue;
    switch (run_one(test)) {
      case Outcome::kPassed:
        ++passed;
        break;
      case Outcome::kFailed:
        ++failed;
        break;
      case Outcome::kSkipped:
        ++skipped;
        break;
    }
    std::fflush(stdout);
  }
  std::printf("%d passed, %d failed, %d skipped\n", passed, failed, skipped);
  // A filter that matches nothing must not look like success.
  return failed != 0 || passed + skipped == 0 ? 1 : 0;
}

}  // namespace testing
