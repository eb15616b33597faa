/**
 * Adds to sentencepiece.json what llama.cpp goes on with after the first text, and checks that it cuts each text as SentencePiece does.
 *
 *     node record-tokens.mjs FOLDER      # that of node-llama-cpp 3.22.1
 */
import assert from 'node:assert/strict';
import { readFileSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { fileURLToPath, pathToFileURL } from 'node:url';

const { getLlama } = await import(pathToFileURL(path.join(process.argv[2] ?? '', 'dist/index.js')).href);
/** @param {string} name */
const here = (name) => fileURLToPath(new URL(name, import.meta.url));
const recorded = JSON.parse(readFileSync(here('sentencepiece.json'), 'utf8'));
const llama = await getLlama({ gpu: false, build: 'never', maxThreads: 1 });
for (const [name, entry] of Object.entries(recorded.models)) {
  const model = await llama.loadModel({ modelPath: here(`tiny-${name}.gguf`) });
  for (const [i, text] of recorded.texts.entries()) assert.deepEqual(Array.from(model.tokenize(text, true)), entry.ids[i]);
  const context = await model.createContext({ contextSize: 128, threads: 1, flashAttention: false });
  const sequence = context.getSequence();
  entry.greedy = [];
  for await (const token of sequence.evaluate([1, ...entry.ids[0]], { temperature: 0, yieldEogToken: true })) {
    if (entry.greedy.push(token) >= 24) break;
  }
}
writeFileSync(here('sentencepiece.json'), `${JSON.stringify({ ...recorded, 'node-llama-cpp': '3.22.1' }, null, 1)}\n`);
await llama.dispose();
