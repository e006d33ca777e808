// What Python sees of sampling: `Sampler` (a request's state), `draw`, `logprobs`, and the noise for the tests.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <stdexcept>

#include "bind_step.h"
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

// Logits in memory, from an array or from an executor's last step.
struct LogitsRows {
  explicit LogitsRows(const Logits& a)
      : data(a.data()), rows(int64_t(a.shape(0))), width(int64_t(a.shape(1))), stride(a.stride(0)) {
    if (a.stride(1) != 1) throw std::invalid_argument("logits rows must be contiguous");
  }
  explicit LogitsRows(const Executor& e) : LogitsRows(e, e.last()) {
    if (!e.valid()) throw std::invalid_argument("the last step did not finish, or none ran");
  }
  LogitsRows(const Executor& e, const Step& step)  // which has run, or will
      : data(e.logits().data), rows(int64_t(step.logits_rows.size())), width(e.logits().width),
        stride(e.logits().stride) {}
  const float* at(int64_t row, int64_t count) const {
    if (row < 0 || row + count > rows) throw std::invalid_argument("no such logits row");
    return data + row * stride;
  }

  const float* data;
  int64_t rows, width, stride;
};

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

void commit(SamplerState& self, nb::object token_ids) {
  const std::vector<int32_t> ids = ints_of(token_ids);
  check_ids(ids.data(), ids.size(), self.vocab_size);
  self.commit(ids.data(), ids.size());
}

// Reads DrawRequests and makes Draws: the names of the fields, and the types of the results.
class DrawTypes {
 public:
  DrawTypes(nb::object draw, nb::object not_a_number, nb::object nothing_allowed)
      : draw_(std::move(draw)), not_a_number_(std::move(not_a_number)), nothing_allowed_(std::move(nothing_allowed)) {
    if (!PyType_Check(draw_.ptr()) || !PyType_IsSubtype(type(), &PyTuple_Type))
      throw std::invalid_argument("a draw must be a named tuple");
  }

  DrawTask task_of(const LogitsRows& logits, nb::handle request) const {
    DrawTask task;
    const nb::object sampler = nb::getattr(request, sampler_);
    task.state = &nb::cast<const SamplerState&>(sampler);  // the request keeps it
    task.position = nb::cast<int64_t>(nb::getattr(request, position_));
    append_ints(task.output, nb::getattr(request, history_));
    task.history = task.output.size();
    append_ints(task.output, nb::getattr(request, drafts_));
    const int64_t rows = int64_t(task.num_drafts()) + 1, vocab_size = task.state->vocab_size;
    check_ids(task.output.data(), task.output.size(), vocab_size);
    if (logits.width != vocab_size) throw std::invalid_argument("logits of another vocabulary");
    task.rows = logits.at(nb::cast<int64_t>(nb::getattr(request, first_row_)), rows);
    task.stride = logits.stride;
    const nb::object masks = nb::getattr(request, masks_);
    if (!masks.is_none()) {
      const auto array = nb::cast<Masks>(masks, false);
      task.mask_words = (vocab_size + 31) / 32;
      if (int64_t(array.shape(0)) != rows || int64_t(array.shape(1)) != task.mask_words)
        throw std::invalid_argument("masks of another shape");
      task.masks = array.data();
    }
    return task;
  }

  nb::object result_of(const DrawTask& task) const {
    if (task.failure == DrawFailure::NotANumber) return not_a_number_;
    if (task.failure == DrawFailure::NothingAllowed) return nothing_allowed_;
    nb::list draws;
    for (const DrawnToken& token : task.draws) draws.append(draw_of(token));
    return draws;
  }

  // As tuple.__new__ makes it, without the Python function that a named tuple puts before that.
  nb::object draw_of(const DrawnToken& token) const {
    nb::object draw = nb::steal(type()->tp_alloc(type(), 3));
    if (!draw.is_valid()) nb::raise_python_error();
    nb::object logprob = nb::none();
    nb::list top;
    if (token.logprob) {
      logprob = nb::float_(*token.logprob);
      for (const auto& [id, value] : token.top) top.append(nb::make_tuple(id, value));
    }
    PyTuple_SET_ITEM(draw.ptr(), 0, nb::int_(token.id).release().ptr());
    PyTuple_SET_ITEM(draw.ptr(), 1, logprob.release().ptr());
    PyTuple_SET_ITEM(draw.ptr(), 2, nb::tuple(top).release().ptr());
    return draw;
  }

 private:
  PyTypeObject* type() const { return reinterpret_cast<PyTypeObject*>(draw_.ptr()); }
  static nb::object name(const char* text) { return nb::steal(PyUnicode_InternFromString(text)); }

  nb::object draw_, not_a_number_, nothing_allowed_;
  nb::object sampler_ = name("sampler"), first_row_ = name("first_row"), position_ = name("position"),
             history_ = name("history"), drafts_ = name("drafts"), masks_ = name("masks");
};

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
  Drawer(std::shared_ptr<Runtime> runtime, nb::object draw, nb::object not_a_number, nb::object nothing_allowed)
      : runtime_(std::move(runtime)),
        types_(std::move(draw), std::move(not_a_number), std::move(nothing_allowed)),
        scratch_(size_t(runtime_->pool.threads())) {}
  Drawer(const Drawer&) = delete;

  // One list of draws per request, or the fault of its first row.
  nb::list draw(const LogitsRows& logits, nb::list requests) {
    read(logits, requests);
    {
      const Unlocked unlocked(runtime_->time);
      run();
    }
    return results();
  }

  // Rings the bell, runs a step and draws from its logits, with no Python in between. The status of a step that was not
  // done.
  nb::object step(Executor& e, Step step, nb::list requests, int bell) {
    tasks_.clear();
    if (requests.size()) read(LogitsRows(e, step), requests);
    StepStatus status;
    {
      const Unlocked unlocked(runtime_->time, bell);
      status = e.step(std::move(step));
      if (status == StepStatus::Done && !tasks_.empty()) run();
    }
    return status == StepStatus::Done ? nb::object(results()) : nb::object(nb::int_(int(status)));
  }

  nb::object logprobs(const LogitsRows& logits, int64_t row, int32_t token_id, int num_top) {
    const float* x = logits.at(row, 1);
    check_ids(&token_id, 1, logits.width);
    ExactFloatMode mode;
    return types_.draw_of(log_probabilities(kernels(), x, logits.width, token_id, num_top, scratch_[0]));
  }

 private:
  void read(const LogitsRows& logits, nb::list requests) {
    tasks_.clear();
    for (nb::handle request : requests) tasks_.push_back(types_.task_of(logits, request));
  }
  void run() {
    DrawJob job(kernels(), tasks_, scratch_);
    runtime_->pool.run(job, 1);
  }
  nb::list results() const {
    nb::list results;
    for (const DrawTask& task : tasks_) results.append(types_.result_of(task));
    return results;
  }
  const SamplerKernels& kernels() const { return *runtime_->kernels.sampler; }

  std::shared_ptr<Runtime> runtime_;
  DrawTypes types_;
  std::vector<DrawTask> tasks_;
  std::vector<DrawScratch> scratch_;  // by worker
};

}  // namespace

void bind_sampler(nb::module_& m) {
  nb::class_<SamplerState>(m, "Sampler")
      .def("__init__", &make_state, nb::kw_only(), "seed"_a, "temperature"_a, "top_k"_a, "top_p"_a, "min_p"_a,
           "repetition_penalty"_a, "presence_penalty"_a, "frequency_penalty"_a, "logit_bias"_a, "suppress_ids"_a,
           "suppress_until"_a, "num_logprobs"_a.none(), "prompt_ids"_a, "vocab_size"_a)
      .def_prop_ro("reads_output", [](const SamplerState& s) { return s.counts(); })
      .def("commit", &commit, "token_ids"_a);
  nb::class_<Drawer>(m, "Drawer")
      .def(nb::init<std::shared_ptr<Runtime>, nb::object, nb::object, nb::object>(), "runtime"_a, "draw_type"_a,
           "not_a_number"_a, "nothing_allowed"_a)
      .def("draw", [](Drawer& d, const Executor& e, nb::list requests) { return d.draw(LogitsRows(e), requests); })
      .def("draw", [](Drawer& d, const Logits& x, nb::list requests) { return d.draw(LogitsRows(x), requests); })
      .def("step",
           [](Drawer& d, Executor& e, nb::object token_ids, nb::object positions, nb::object row_offsets,
              nb::object slots, nb::object logits_rows, const std::vector<int>& taps, nb::list requests,
              int bell) {
             return d.step(e, make_step(token_ids, positions, row_offsets, slots, logits_rows, taps, e.num_taps()),
                           requests, bell);
           })
      .def("logprobs", [](Drawer& d, const Executor& e, int64_t row, int32_t token_id,
                          int num_top) { return d.logprobs(LogitsRows(e), row, token_id, num_top); })
      .def("logprobs", [](Drawer& d, const Logits& x, int64_t row, int32_t token_id, int num_top) {
        return d.logprobs(LogitsRows(x), row, token_id, num_top);
      });
  m.def("noise_word", [](const std::string& isa, uint64_t seed, uint32_t position, int32_t id) {
    return find_kernels(isa).sampler->noise_word({seed, position}, id);
  });
  m.def("gumbel", [](const std::string& isa, uint32_t word) { return find_kernels(isa).sampler->gumbel(word); });
  m.def("log", [](const std::string& isa, double x) { return find_kernels(isa).sampler->log(x); });
}

}  // namespace sf
