// The native module. What it offers is bound beside the code it belongs to.
#include <nanobind/nanobind.h>

#include <utility>

namespace sf {
void bind_executor(nanobind::module_& m);
void bind_linear(nanobind::module_& m);
void bind_sampler(nanobind::module_& m);
void bind_ngram(nanobind::module_& m);
void bind_recurrent(nanobind::module_& m);
void bind_machine(nanobind::module_& m);
}  // namespace sf

// Digests of the sources, compared with those beside Python when the module is loaded (stamp.py).
static constexpr std::pair<const char*, const char*> kBuiltFrom[] = {
#include "built_from.inc"
};

NB_MODULE(_ops, m) {
  nanobind::dict built_from;
  for (const auto& [name, digest] : kBuiltFrom) built_from[name] = digest;
  m.attr("built_from") = built_from;
  sf::bind_linear(m);
  sf::bind_executor(m);
  sf::bind_recurrent(m);
  sf::bind_sampler(m);
  sf::bind_ngram(m);
  sf::bind_machine(m);
}
