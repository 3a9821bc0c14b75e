// Prints the figures of bench/faults as one JSON object.
#include <cstdio>

#include "fault_drill.hpp"

int main() {
  const drill::Figures init = drill::fail_cuda_init();
  drill::Figures figures = drill::fail_every_driver_call();
  figures.driver_calls += init.driver_calls;
  figures.injected += init.injected;
  if (figures.complaint.empty()) figures.complaint = init.complaint;
  if (!figures.complaint.empty()) std::fprintf(stderr, "%s\n", figures.complaint.c_str());
  std::printf(
      "{\"driver_calls\": %ld, \"injected\": %ld, \"leaks\": %ld, \"rule_violations\": %ld, "
      "\"state_changes\": %ld, \"failed_retries\": %ld}\n",
      figures.driver_calls, figures.injected, figures.leaks, figures.rule_violations, figures.state_changes,
      figures.failed_retries);
  return 0;
}
