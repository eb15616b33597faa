/** A real model, downloaded as users do it: its tokens and logits match transformers' (test/data/smollm2/record.py). */
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { test } from 'node:test';
import { getPackagedModel } from '../../backends/hub/packaged-models.ts';
import { loadModelFolder } from '../../engine/index.ts';
import { trainGraphLogits } from './golden/read-golden.ts';

const name = 'smollm2-135m-instruct';
/** Share of the logits' deviation; transformers' own differ by as much between two machines. */
const tolerance = 1e-4;

/** The model's folder, or why it is missing: no Python, or no package index. */
const model = await getPackagedModel(name, { say: (line) => void process.stderr.write(`${line}\n`) }).then(
  ({ folder }) => ({ folder, why: false as const }),
  (error: Error) => ({ folder: '', why: error.message }),
);

test('the likeliest tokens of SmolLM2 have the logits that transformers gives them', { skip: model.why }, async () => {
  const { tokenizer, parameters, config } = await loadModelFolder(model.folder);
  const file = new URL('../data/smollm2/top-logits.json', import.meta.url);
  const { prompts } = JSON.parse(readFileSync(file, 'utf8')) as {
    readonly prompts: readonly {
      readonly question: string;
      readonly tokens: number[];
      readonly deviation: number;
      readonly likeliest: readonly { readonly token: number; readonly logit: number }[];
    }[];
  };
  for (const { question, tokens, deviation, likeliest } of prompts) {
    assert.deepEqual(tokenizer.renderChat([{ role: 'user', content: question }]), tokens);
    const logits = (await trainGraphLogits(parameters, tokens)).subarray(-config.vocabularySize);
    for (const { token, logit } of likeliest) {
      const difference = Math.abs(logits[token]! - logit) / deviation;
      assert.ok(difference <= tolerance, `${question}: token ${token} differs by ${difference} deviations`);
    }
  }
});
