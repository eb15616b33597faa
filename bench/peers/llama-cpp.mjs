/**
 * llama.cpp (node-llama-cpp) over a GGUF file, for bench/smollm2-parity.ts to compare texts with: node llama-cpp.mjs PACKAGE FILE THREADS, where PACKAGE
 * is the folder of node-llama-cpp. Keys and values are kept in 32-bit floats. Reads one JSON request per line and answers each with one line:
 *   {"text": "…"}                          ->  {"tokens": [id, …]}, special tokens recognised
 *   {"tokens": [id, …], "max_tokens": 32}  ->  {"tokens": [id, …]}, the likeliest ones up to the end of the text, which is left out
 */
import path from 'node:path';
import { createInterface } from 'node:readline';
import { pathToFileURL } from 'node:url';

const [folder = '', file = '', threads = '1'] = process.argv.slice(2);
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
  threads: Number(threads),
  flashAttention: false,
  experimentalKvCacheKeyType: 'F32',
  experimentalKvCacheValueType: 'F32',
});
const sequence = context.getSequence();

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

for await (const line of createInterface({ input: process.stdin })) {
  const { text, tokens, max_tokens: most } = JSON.parse(line);
  const answer = text === undefined ? await greedy(tokens, most) : model.tokenize(text, true);
  process.stdout.write(`${JSON.stringify({ tokens: answer })}\n`);
}
await llama.dispose();
