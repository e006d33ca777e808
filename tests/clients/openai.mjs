// The official npm client: chat, a stream, tools, a schema, embeddings, responses and an error, as one JSON object.
import OpenAI from "openai";

const [baseURL, apiKey, model] = process.argv.slice(2);
const client = new OpenAI({ baseURL, apiKey, maxRetries: 0 });
const result = {};

const ask = (content, rest = {}) => ({ model, messages: [{ role: "user", content }], temperature: 0, ...rest });

result.models = (await client.models.list()).data.map((entry) => entry.id);

const question = ask("Name the capital of France in one word.", { max_tokens: 8 });
const whole = await client.chat.completions.create(question);
result.chat = whole.choices[0].message.content;
result.seedIsExact = Number.isSafeInteger(whole.seed);

let streamed = "";
let usage = null;
for await (const chunk of await client.chat.completions.create({
  ...question,
  stream: true,
  stream_options: { include_usage: true },
})) {
  streamed += chunk.choices[0]?.delta?.content ?? "";
  usage = chunk.usage ?? usage;
}
result.streamed = streamed;
result.usage = usage;

const stock = {
  type: "function",
  function: {
    name: "get_stock",
    description: "Get how many pieces of a fruit are in stock",
    parameters: {
      type: "object",
      properties: { fruit: { type: "string", enum: ["apples", "pears"] } },
      required: ["fruit"],
    },
    function: ({ fruit }) => JSON.stringify({ fruit, pieces: { apples: 12, pears: 7 }[fruit] }),
    parse: JSON.parse,
  },
};
const request = ask("How many apples do we have in stock?", { max_tokens: 100 });
const runner = client.chat.completions.runTools(
  { ...request, tools: [stock], stream: true },
  { maxChatCompletions: 1 }, // so small a model calls again and again
);
await runner.done();
result.toolMessages = runner.messages;
const last = await client.chat.completions.create({ ...request, messages: runner.messages, tools: [stock], tool_choice: "none" });
result.toolAnswer = last.choices[0].message.content;

const schema = {
  type: "object",
  properties: { city: { type: "string" }, population: { type: "integer" } },
  required: ["city", "population"],
  additionalProperties: false,
};
const parsed = await client.chat.completions.parse(
  ask("Paris, as JSON.", {
    max_tokens: 60,
    response_format: { type: "json_schema", json_schema: { name: "city", strict: true, schema } },
  }),
);
result.parsed = parsed.choices[0].message.parsed;

const vectors = await client.embeddings.create({ model, input: ["a cat", "a dog"] });
result.embeddings = vectors.data.map((entry) => entry.embedding);

const stream = client.responses.stream({ model, input: "Name the capital of Italy.", temperature: 0, max_output_tokens: 20 });
let answer = "";
stream.on("response.output_text.delta", (event) => (answer += event.delta));
result.response = (await stream.finalResponse()).output_text;
result.responseDeltas = answer;

try {
  await client.chat.completions.create(ask("x", { temperature: -1 }));
} catch (error) {
  result.error = { name: error.constructor.name, status: error.status, param: error.param, message: error.message };
}

const left = await client.chat.completions.create({ ...ask("Count to a thousand."), stream: true });
for await (const chunk of left) {
  left.controller.abort();
  break;
}

console.log(JSON.stringify(result));
