// The native module. What it offers is bound beside the code it belongs to.
#include <nanobind/nanobind.h>

namespace sf {
void bind_executor(nanobind::module_& m);
void bind_linear(nanobind::module_& m);
void bind_sampler(nanobind::module_& m);
void bind_ngram(nanobind::module_& m);
void bind_machine(nanobind::module_& m);
}  // namespace sf

NB_MODULE(_ops, m) {
  sf::bind_linear(m);
  sf::bind_executor(m);
  sf::bind_sampler(m);
  sf::bind_ngram(m);
  sf::bind_machine(m);
}
