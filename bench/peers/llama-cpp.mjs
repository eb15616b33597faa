/**
 * llama.cpp (node-llama-cpp) over a GGUF file, for bench/smollm2-parity.ts to compare texts with and bench/smollm2-decode.ts to take turns with:
 * node llama-cpp.mjs PACKAGE FILE THREADS [SEQUENCES], where PACKAGE is the folder of node-llama-cpp. Keys and values are kept in 32-bit floats. Reads one JSON request per line and answers each with one line:
 *   {"text": "…"}                          ->  {"tokens": [id, …]}, special tokens recognised
 *   {"tokens": [id, …], "max_tokens": 32}  ->  {"tokens": [id, …]}, the likeliest ones up to the end of the text, which is left out
 *   {"prompts": [[id, …], …], "new_tokens": 32}  ->  {"tokens": [[id, …], …], "wall_s": …, "cpu_s": …}, so many likeliest ones of each, decoded as one batch
 */
import path from 'node:path';
import { createInterface } from 'node:readline';
import { pathToFileURL } from 'node:url';

const [folder = '', file = '', threads = '1', sequences = '1'] = process.argv.slice(2);
const { getLlama, LlamaLogLevel } = await import(pathToFileURL(path.join(folder, 'dist/index.js')).href);
const llama = await getLlama({
  gpu: false,
  build: 'never',
  maxThreads: Number(threads),
  logLevel: LlamaLogLevel.error,
});
const model = await llama.loadModel({ modelPath: file });
const context = await model.createContext({
  contextSize: 512,
  sequences: Number(sequences),
  threads: Number(threads),
  flashAttention: false,
  experimentalKvCacheKeyType: 'F32',
  experimentalKvCacheValueType: 'F32',
});
const all = Array.from({ length: Number(sequences) }, () => context.getSequence());
const [sequence] = all;

/** @param {readonly number[]} tokens @param {number} most */
async function greedy(tokens, most) {
  await sequence.clearHistory();
  /** @type {number[]} */
  const said = [];
  for await (const token of sequence.evaluate(tokens, { temperature: 0 })) {
    if (model.isEogToken(token) || said.push(token) >= most) break;
  }
  return said;
}

/** @param {readonly (readonly number[])[]} prompts @param {number} count */
async function decode(prompts, count) {
  for (const one of all) await one.clearHistory();
  const [wall, cpu] = [performance.now(), process.cpuUsage()];
  const tokens = await Promise.all(
    prompts.map(async (prompt, i) => {
      /** @type {number[]} */
      const said = [];
      for await (const token of all[i].evaluate(prompt, { temperature: 0, yieldEogToken: true })) {
        if (said.push(token) >= count) break;
      }
      return said;
    }),
  );
  const { user, system } = process.cpuUsage(cpu);
  return { tokens, wall_s: (performance.now() - wall) / 1000, cpu_s: (user + system) / 1e6 };
}

for await (const line of createInterface({ input: process.stdin })) {
  const { text, tokens, max_tokens: most, prompts, new_tokens: count } = JSON.parse(line);
  const answer = prompts
    ? await decode(prompts, count)
    : { tokens: text === undefined ? await greedy(tokens, most) : model.tokenize(text, true) };
  process.stdout.write(`${JSON.stringify(answer)}\n`);
}
await llama.dispose();
