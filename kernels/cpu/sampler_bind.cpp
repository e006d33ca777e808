// What Python sees of sampling: `Sampler` (a request's state), `draw`, `logprobs`, and the noise for the tests.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <stdexcept>

#include "runtime.h"
#include "sampler.h"
#include "unlocked.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace sf {
namespace {

using Logits = nb::ndarray<const float, nb::ndim<2>, nb::device::cpu>;
using Ids = nb::ndarray<const int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Masks = nb::ndarray<const uint32_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

void check_ids(const int32_t* ids, size_t count, int64_t vocab_size) {
  for (size_t i = 0; i < count; ++i)
    if (ids[i] < 0 || ids[i] >= vocab_size) throw std::invalid_argument("a token id outside the vocabulary");
}

const float* row_of(const Logits& logits, int64_t row, int64_t count) {
  if (row < 0 || row + count > int64_t(logits.shape(0))) throw std::invalid_argument("no such logits row");
  if (logits.stride(1) != 1) throw std::invalid_argument("logits rows must be contiguous");
  return logits.data() + row * logits.stride(0);
}

void make_state(SamplerState* self, uint64_t seed, double temperature, int64_t top_k, double top_p, double min_p,
                float repetition, float presence, float frequency, std::vector<std::pair<int32_t, float>> bias,
                std::vector<int32_t> suppress_ids, int64_t suppress_until, std::optional<int> num_logprobs,
                Ids prompt_ids, int64_t vocab_size) {
  for (const auto& [id, value] : bias) check_ids(&id, 1, vocab_size);
  check_ids(suppress_ids.data(), suppress_ids.size(), vocab_size);
  check_ids(prompt_ids.data(), prompt_ids.size(), vocab_size);
  SamplingSpec spec{seed,     temperature, top_k,     top_p,           min_p,
                    repetition, presence,  frequency, std::move(bias), std::move(suppress_ids),
                    suppress_until, num_logprobs};
  new (self) SamplerState(std::move(spec), prompt_ids.data(), prompt_ids.size(), vocab_size);
}

void commit(SamplerState& self, const std::vector<int32_t>& ids) {
  check_ids(ids.data(), ids.size(), self.vocab_size);
  self.commit(ids.data(), ids.size());
}

// A DrawRequest as a tuple: (sampler, first row, position, history, drafts, masks or None).
DrawTask task_of(const Logits& logits, nb::handle request) {
  const auto fields = nb::cast<nb::tuple>(request);
  DrawTask task;
  task.state = &nb::cast<const SamplerState&>(fields[0]);
  task.position = nb::cast<int64_t>(fields[2]);
  task.output = nb::cast<std::vector<int32_t>>(fields[3]);
  task.history = task.output.size();
  for (int32_t id : nb::cast<std::vector<int32_t>>(fields[4])) task.output.push_back(id);
  const int64_t rows = int64_t(task.num_drafts()) + 1, vocab_size = task.state->vocab_size;
  check_ids(task.output.data(), task.output.size(), vocab_size);
  if (int64_t(logits.shape(1)) != vocab_size) throw std::invalid_argument("logits of another vocabulary");
  task.rows = row_of(logits, nb::cast<int64_t>(fields[1]), rows);
  task.stride = logits.stride(0);
  if (!nb::handle(fields[5]).is_none()) {
    const auto masks = nb::cast<Masks>(fields[5], false);
    task.mask_words = (vocab_size + 31) / 32;
    if (int64_t(masks.shape(0)) != rows || int64_t(masks.shape(1)) != task.mask_words)
      throw std::invalid_argument("masks of another shape");
    task.masks = masks.data();
  }
  return task;
}

nb::object token_as(const nb::object& type, const DrawnToken& token) {
  if (!token.logprob) return type(token.id);
  nb::list top;
  for (const auto& [id, logprob] : token.top) top.append(nb::make_tuple(id, logprob));
  return type(token.id, *token.logprob, nb::tuple(top));
}

// The requests of one call, one chunk each.
class DrawJob : public Job {
 public:
  DrawJob(const SamplerKernels& kernels, std::vector<DrawTask>& tasks, std::vector<DrawScratch>& scratch)
      : kernels_(kernels), tasks_(tasks), scratch_(scratch) {}
  int chunks(int) override { return int(tasks_.size()); }
  void run(int, int chunk, int worker) noexcept override {
    draw(kernels_, tasks_[size_t(chunk)], scratch_[size_t(worker)]);
  }

 private:
  const SamplerKernels& kernels_;
  std::vector<DrawTask>& tasks_;
  std::vector<DrawScratch>& scratch_;
};

// Draws for whole steps, on the runtime's threads, with memory that stays from one step to the next.
class Drawer {
 public:
  explicit Drawer(std::shared_ptr<Runtime> runtime)
      : runtime_(std::move(runtime)), scratch_(size_t(runtime_->pool.threads())) {}
  Drawer(const Drawer&) = delete;

  // One list of `draw_type`s per request, or the fault of its first row.
  nb::list draw(const Logits& logits, const nb::list& requests, const nb::object& draw_type,
                const nb::object& not_a_number, const nb::object& nothing_allowed) {
    std::vector<DrawTask> tasks;
    for (nb::handle request : requests) tasks.push_back(task_of(logits, request));
    {
      const Unlocked unlocked(runtime_->time);
      DrawJob job(kernels(), tasks, scratch_);
      runtime_->pool.run(job, 1);
    }
    nb::list results;
    for (const DrawTask& task : tasks) {
      if (task.failure == DrawFailure::NotANumber) {
        results.append(not_a_number);
      } else if (task.failure == DrawFailure::NothingAllowed) {
        results.append(nothing_allowed);
      } else {
        nb::list draws;
        for (const DrawnToken& token : task.draws) draws.append(token_as(draw_type, token));
        results.append(draws);
      }
    }
    return results;
  }

  nb::object logprobs(const Logits& logits, int64_t row, int32_t token_id, int num_top, const nb::object& draw_type) {
    const float* x = row_of(logits, row, 1);
    const int64_t n = int64_t(logits.shape(1));
    check_ids(&token_id, 1, n);
    ExactFloatMode mode;
    return token_as(draw_type, log_probabilities(kernels(), x, n, token_id, num_top, scratch_[0]));
  }

 private:
  const SamplerKernels& kernels() const { return *runtime_->kernels.sampler; }

  std::shared_ptr<Runtime> runtime_;
  std::vector<DrawScratch> scratch_;  // by worker
};

}  // namespace

void bind_sampler(nb::module_& m) {
  nb::class_<SamplerState>(m, "Sampler")
      .def("__init__", &make_state, nb::kw_only(), "seed"_a, "temperature"_a, "top_k"_a, "top_p"_a, "min_p"_a,
           "repetition_penalty"_a, "presence_penalty"_a, "frequency_penalty"_a, "logit_bias"_a, "suppress_ids"_a,
           "suppress_until"_a, "num_logprobs"_a.none(), "prompt_ids"_a, "vocab_size"_a)
      .def("commit", &commit, "token_ids"_a);
  nb::class_<Drawer>(m, "Drawer")
      .def(nb::init<std::shared_ptr<Runtime>>(), "runtime"_a)
      .def("draw", &Drawer::draw, "logits"_a, "requests"_a, "draw_type"_a, "not_a_number"_a, "nothing_allowed"_a)
      .def("logprobs", &Drawer::logprobs, "logits"_a, "row"_a, "token_id"_a, "num_top"_a, "draw_type"_a);
  m.def("noise_word", [](const std::string& isa, uint64_t seed, uint32_t position, int32_t id) {
    return find_kernels(isa).sampler->noise_word({seed, position}, id);
  });
  m.def("gumbel", [](const std::string& isa, uint32_t word) { return find_kernels(isa).sampler->gumbel(word); });
  m.def("log", [](const std::string& isa, double x) { return find_kernels(isa).sampler->log(x); });
}

}  // namespace sf
